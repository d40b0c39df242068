"""Knows the objects that were left with nothing to do, what the API server held of them, and when to read them again.

Refuses to know how a look is made and what follows from it (`reconcile`).

A look at an object *at rest* asks its pods what they measured, and the API server nothing: that is a *glance*. What it
rests on is remembered as the API server said it, packed: a thousand objects take some ten megabytes. Nothing is written
on the strength of memory: where a glance decides otherwise than the last look, everything is read and decided anew.

A change that a watch tells of ends the rest, unless it is one that the last look has seen, by its resourceVersion. A
watch may be silent and wrong, so time ends it too. Of few objects each is read at every look; the more there are, the
rarer each is polled and read, so that a thousand do not take more than a part of a processor.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tandem_operator.domain.decide import STEADY_SECONDS
from tandem_operator.domain.nested import mapping, text
from tandem_operator.domain.observed import Node
from tandem_operator.ports import Change, Json, Key, Kind

POLLS_PER_SECOND = 40.0
"""At most, of objects at rest: 400 are polled every 10 s, a thousand every 25 s."""
READS_PER_SECOND = 3.0
"""At most, of objects at rest: up to 30 are read at every poll, each of a thousand within 333 s."""
SOONEST_READ = 1 / 3
"""Of that time, by chance of the name: objects that were read together are not so for ever."""

Versions = Mapping[str, str]
"""resourceVersions by kind and name: `Pod/chat-0`."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the API server held of one object at one moment, without managedFields: itself, its children, its pods.

    `nodes` is None where they may not be read.
    """

    resource: Json
    children: tuple[Json, ...]
    pods: tuple[Json, ...]
    nodes: tuple[Node, ...] | None

    @property
    def versions(self) -> Versions:
        known = {f"{Kind.SPECULATIVE_DEPLOYMENT}/{_name(self.resource)}": _version(self.resource)}
        known |= {f"{Kind.POD}/{_name(body)}": _version(body) for body in self.pods}
        return known | {f"{text(body, 'kind')}/{_name(body)}": _version(body) for body in self.children}


def _name(body: Json) -> str:
    return text(body, "metadata", "name")


def _version(body: Json) -> str:
    return text(body, "metadata", "resourceVersion")


def without_managed_fields(body: Json) -> Json:
    metadata = {name: value for name, value in mapping(body, "metadata").items() if name != "managedFields"}
    return {**body, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class Rest:
    """An object at rest: its packed bodies, their versions as JSON, what was decided, and when it was read.

    Four blocks of bytes and nothing else, since a thousand small values that stay keep the memory around them in use.
    """

    packed: bytes
    versions: bytes
    essence: bytes
    read_at: datetime

    def has_seen(self, change: Change) -> bool:
        return _has_seen(json.loads(self.versions), change)


@dataclass(slots=True)
class Steady:
    """All objects at rest of one process; a restart forgets them."""

    _resting: dict[Key, Rest] = field(default_factory=dict)
    _looked_at: dict[Key, list[Change]] = field(default_factory=dict)
    _nodes: tuple[Node, ...] | None = None

    def __len__(self) -> int:
        return len(self._resting)

    def is_news(self, change: Change) -> bool:
        """Whether a change is to be looked at; it ends the rest of its object. What comes during a look is kept until
        that look knows what it has seen."""
        rest = self._resting.get(change.key)
        if rest is not None and rest.has_seen(change):
            return False
        self._resting.pop(change.key, None)
        if change.key in self._looked_at:
            self._looked_at[change.key].append(change)
        return True

    def begin(self, key: Key) -> None:
        """A look reads everything from now on."""
        self._resting.pop(key, None)
        self._looked_at[key] = []

    def end(self, key: Key) -> None:
        """The look is over, however it ended."""
        self._looked_at.pop(key, None)

    def keep(self, key: Key, found: Found, essence: bytes, at: datetime) -> None:
        """The look that has begun found nothing to do; one that missed a change of its time is not rested on."""
        versions = found.versions
        if all(_has_seen(versions, change) for change in self._looked_at.get(key, ())):
            self._nodes = found.nodes
            self._resting[key] = Rest(_packed(found), json.dumps(versions).encode(), essence, at)

    def recall(self, key: Key, now: datetime) -> Found | None:
        """What there was when the object came to rest; None where it is to be read."""
        rest = self._resting.get(key)
        if rest is None or now - rest.read_at >= timedelta(seconds=self._read_seconds(key)):
            return None
        resource, children, pods = json.loads(zlib.decompress(rest.packed))
        return Found(resource, tuple(children), tuple(pods), self._nodes)

    def is_same(self, key: Key, essence: bytes) -> bool:
        """Whether an object is still at rest, and the same was decided."""
        rest = self._resting.get(key)
        return rest is not None and rest.essence == essence

    def paced(self, wish: float) -> float:
        """Seconds until the next look at an object at rest that wishes for one after so many."""
        return wish if wish < STEADY_SECONDS else max(wish, len(self) / POLLS_PER_SECOND)

    def _read_seconds(self, key: Key) -> float:
        chance = zlib.crc32(str(key).encode()) / 2**32
        longest = len(self) / READS_PER_SECOND
        return max(STEADY_SECONDS, longest * (SOONEST_READ + (1 - SOONEST_READ) * chance))


def _has_seen(versions: Versions, change: Change) -> bool:
    """Whether who knows these versions knows of a change; one that is gone is known by its absence."""
    return versions.get(f"{change.kind}/{change.name}", "") == change.version


def _packed(found: Found) -> bytes:
    return zlib.compress(json.dumps([found.resource, found.children, found.pods]).encode(), level=1)
