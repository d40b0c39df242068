"""Knows how a file names the targets and drafts of a gateway without a cluster, and which of them it names now.

Refuses to know connections, and whether anybody listens there.

A file that is of no use changes nothing: the last good one stays, and the log says what is wrong. A peer that leaves
the file drains as a pod under deletion does: it gets no new sessions, and is let go when its last one has ended.
"""

import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from tandem_runtime.discovery import EnginePod, Role
from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.policy import ControlPolicy, PairRevision, Policy, RevisionName, RoleHash
from tandem_runtime.followed_file import FollowedFile

MOST_PEERS = 1024
LONGEST_HASH = 64
FIELDS = ("role", "hash", "address")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", re.ASCII)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OnePair:
    """Without a policy file all targets are of one hash, and all drafts of one: they are the only revision."""

    served_model_name: str

    def policy(self, pods: Collection[EnginePod], *, number: int) -> Policy:
        """Raises SettingRefused for more than one hash of a role, and where there is no target."""
        target, draft = (self._only(pods, role) for role in (Role.TARGET, Role.DRAFT))
        if target is None:
            raise SettingRefused("peers name no target: one at least is needed where there is no --policy")
        name = RevisionName(target if draft is None else f"{target}-{draft}")  # another pair is another revision
        revision = PairRevision(name, target, draft, weight=100)
        control = ControlPolicy(off_percent=0)
        return Policy(number, self.served_model_name, salt="local", revisions=(revision,), control=control)

    @staticmethod
    def _only(pods: Collection[EnginePod], role: Role) -> RoleHash | None:
        hashes = sorted({pod.role_hash for pod in pods if pod.role is role})
        if len(hashes) > 1:
            told = f"peers name {role}s of the hashes {', '.join(hashes)}"
            raise SettingRefused(f"{told}: give them one, or say by --policy which gets what")
        return hashes[0] if hashes else None


class PeersFile:
    """The peers that the file at `path` names. Raises SettingRefused where it is wrong at the start.

    `pair`: there is no policy beside it, so that the file has to name one pair, and makes its `policy`.
    """

    def __init__(self, path: Path, *, now: Callable[[], float], pair: OnePair | None = None) -> None:
        self._file = FollowedFile(path, option="--peers")
        self._now = now
        self._pair = pair
        self.policy: Policy | None = None
        self.pods: dict[str, EnginePod] = {}
        self._take(self._file.first())

    async def follow(self) -> AsyncIterator[Collection[EnginePod]]:
        """The peers now, and after every change that is of use, for ever."""
        yield self.pods.values()
        while True:
            try:
                self._take(await self._file.next())
            except SettingRefused as refused:
                log.error("peers stay as they were, as their file is of no use: %s", refused)
                continue
            log.info("peers read anew: %d", len(self.pods))
            yield self.pods.values()

    def _take(self, content: str) -> None:
        """All of it or nothing. Who was known stays as known."""
        try:
            read = {pod.uid: pod for pod in read_peers(content, since=self._now())}
            number = 1 if self.policy is None else self.policy.number
            policy = None if self._pair is None else self._pair.policy(read.values(), number=number)
        except SettingRefused as refused:
            raise SettingRefused(f"{self._file.named}: {refused}") from refused
        if policy is not None and self.policy is not None and policy != self.policy:
            policy = replace(policy, number=number + 1)
        self.pods = {uid: self.pods.get(uid, pod) for uid, pod in read.items()}
        self.policy = policy


def read_peers(content: str, *, since: float) -> tuple[EnginePod, ...]:
    """Of YAML, or JSON, which is YAML. Raises SettingRefused by a field's path, its value and what would be right."""
    try:
        document = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none is a ValueError
        raise SettingRefused(f"is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or set(document) != {"peers"}:
        raise SettingRefused(f"holds {_told(document)}; an object with the field peers alone is needed")
    items = document["peers"]
    if not isinstance(items, list) or len(items) > MOST_PEERS:
        raise _wrong("peers", items, f"a list of at most {MOST_PEERS} peers")
    pods = tuple(_peer(item, f"peers[{at}]", since=since) for at, item in enumerate(items))
    _refuse_twice(pods)
    return pods


def _refuse_twice(pods: Collection[EnginePod]) -> None:
    places: dict[tuple[str, int | None], int] = {}
    for at, pod in enumerate(pods):
        first = places.setdefault((pod.address, pod.port), at)
        if first != at:
            raise SettingRefused(f"peers[{at}].address is that of peers[{first}]; leave one out")


def _peer(item: object, path: str, *, since: float) -> EnginePod:
    if not isinstance(item, dict):
        raise _wrong(path, item, "an object with role, hash and address")
    for name in item.keys() - set(FIELDS):
        raise _wrong(f"{path}.{name}", item[name], f"none of it: a peer has {', '.join(FIELDS)}, and nothing else")
    role, role_hash = _role(item, path), _hash(item, path)
    host, port = _address(item, path)
    return EnginePod(
        uid=f"{role}-{role_hash}@{host}:{port}",
        role=role,
        role_hash=role_hash,
        address=host,
        ready_since=since,
        draining=False,
        port=port,
    )


def _role(item: Mapping[str, object], path: str) -> Role:
    told = item.get("role")
    if not isinstance(told, str) or told not in set(Role):
        raise _wrong(f"{path}.role", told, " or ".join(Role))
    return Role(told)


def _hash(item: Mapping[str, object], path: str) -> RoleHash:
    told = item.get("hash")
    if not isinstance(told, str) or not told.isprintable() or not 1 <= len(told) <= LONGEST_HASH:
        right = f"a text of 1 to {LONGEST_HASH} printable characters, in quotes where it looks like a number,"
        raise _wrong(f"{path}.hash", told, right)
    return RoleHash(told)


def _address(item: Mapping[str, object], path: str) -> tuple[str, int]:
    told = item.get("address")
    found = _ADDRESS.fullmatch(told) if isinstance(told, str) else None
    if found is None or not 1 <= int(found[3]) <= 65535:
        raise _wrong(f"{path}.address", told, "host:port, such as 10.0.0.5:8001 or [fd00::5]:8001,")
    return found[1] or found[2], int(found[3])


def _wrong(path: str, value: object, right: str) -> SettingRefused:
    return SettingRefused(f"{path} is {_told(value)}; {right} is needed")


def _told(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
