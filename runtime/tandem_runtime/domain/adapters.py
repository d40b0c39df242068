"""Knows the adapters of an engine by name and by content: which may be asked for, and which still have to stay.

Refuses to know files, tensors and sessions.

A *digest* stands for an adapter's content, and a *name* leads to a digest: a name may be given to other content while
sessions go on under the old one, and two names may lead to one content. Sessions hold digests. What no name leads to
any more takes no new session, and is *over* once no session holds it.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NewType

from tandem_runtime.domain.errors import BadRequest, NotLoaded, Overloaded

__all__ = [
    "MOST_ADAPTERS",
    "OF_THE_OPERATOR",
    "AdapterBook",
    "AdapterDigest",
    "AdapterFacts",
    "AdapterSource",
    "refuse_bad_name",
]

AdapterDigest = NewType("AdapterDigest", str)

MOST_ADAPTERS = 8
"""Held at a time, unless a server is told otherwise."""

OF_THE_OPERATOR = "tandem."
"""How names begin that the operator loads contents under. It tells gateways which digests requests mean by which names,
so nobody asks for an adapter by such a name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""No colon, which parts a model's name from an adapter's, and a digest's kind from its number."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """A loaded adapter as it is told to whoever asks."""

    name: str
    digest: AdapterDigest
    rank: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """Where an adapter is to be read: `revision` is for hf:// only; `digest`, where given, must be what is found."""

    uri: str
    revision: str | None = None
    digest: str | None = None


def refuse_bad_name(name: str) -> None:
    """Raises BadRequest."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"the adapter's name {name!r} is none: give 1 to 63 letters, digits, dots, underscores and dashes, with a"
            " letter or digit first",
            parameter="name",
        )


class AdapterBook:
    """The names and contents of one engine, of which it holds `most` at a time, those that are leaving included."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._named: dict[str, AdapterFacts] = {}
        self._held: set[AdapterDigest] = set()

    @property
    def loaded(self) -> tuple[AdapterFacts, ...]:
        """What may be asked for, by name. May be read on any thread."""
        return tuple(facts for _, facts in sorted(self._named.copy().items()))

    def find(self, asked: str) -> AdapterDigest:
        """The content under a name or a digest. Raises NotLoaded naming what there is."""
        if asked in self._named:
            return self._named[asked].digest
        if any(facts.digest == asked for facts in self._named.values()):
            return AdapterDigest(asked)
        raise NotLoaded(f"adapter {asked!r} is not loaded; {_listed(self._named)}", parameter="model")

    def add(self, facts: AdapterFacts) -> None:
        """Lead the name to that content. Raises Overloaded where there is no room for one more."""
        if facts.digest not in self._held and len(self._held) >= self._most:
            raise Overloaded(
                f"{len(self._held)} adapters are held, which is all that --max-adapters allows; unload one, or wait for"
                " the sessions of one that is leaving"
            )
        self._named[facts.name] = facts
        self._held.add(facts.digest)

    def remove(self, name: str) -> None:
        """No new session may ask for that name. Raises NotLoaded."""
        if name not in self._named:
            raise NotLoaded(f"adapter {name!r} is not loaded; {_listed(self._named)}", parameter="name")
        del self._named[name]

    def take_over(self, in_use: Collection[AdapterDigest | None]) -> set[AdapterDigest]:
        """The contents that are over, given what sessions hold; they are held no more."""
        led_to = {facts.digest for facts in self._named.values()}
        over = self._held - led_to - set(in_use)
        self._held -= over
        return over


def _listed(names: Collection[str]) -> str:
    return f"loaded are {', '.join(sorted(names))}" if names else "none is loaded"
