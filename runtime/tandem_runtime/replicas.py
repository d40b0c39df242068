"""Knows the engines that a gateway may use now, by role hash: which are open to new sessions, and how busy each is.

Refuses to know how they were found and connected: discovery and the one-machine server put them here.

A replica that takes no new sessions keeps those it has: a pod under deletion drains. One that rests after a failure
(`domain.patience`) is left to those who find no other: a pod that fails at once is always the least busy, and would
else have nearly all sessions. Only where all rest are sessions begun on one of them, since it may be well again.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tandem_runtime.domain.adapters import AdapterDigest, AdapterFacts
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.routing import choose_pod
from tandem_runtime.domain.tokens import Capabilities
from tandem_runtime.ports import DraftEngine, TargetEngine

Engine = TypeVar("Engine", TargetEngine, DraftEngine)

WARM_AFTER_SECONDS = 60.0
WARM_AFTER_REQUESTS = 20
"""A pod's first minute or first 20 requests by a gateway, whichever ends first, show caches filling, and the gateway
learning what its rounds cost, and not the pair. They are counted from the first request that it decodes or proposes
for, whenever it became ready: a canary's draft may have scored for hours what it was never asked to propose."""


def _always() -> bool:
    return True


def _no_adapters() -> tuple[AdapterFacts, ...]:
    return ()


@dataclass(slots=True)
class Replica(Generic[Engine]):
    """One pod's engine. `ready_since` is in seconds since 1970 and absent for one that needs no warm-up.

    `first_used` is when the first request began on it, likewise.
    """

    uid: str
    role_hash: RoleHash
    engine: Engine
    capabilities: Capabilities
    ready_since: float | None = None
    connected: Callable[[], bool] = _always
    """Whether the sessions that are there can go on."""
    accepting: Callable[[], bool] = _always
    """Whether new sessions are welcome: not on a pod that drains."""
    adapters: Callable[[], tuple[AdapterFacts, ...]] = _no_adapters
    """Those that are loaded now."""
    patience: Patience = field(default_factory=Patience)
    """Whether it is left alone, and how long it is waited for where it is a draft."""
    sessions: int = field(default=0, init=False)
    served: int = field(default=0, init=False)
    """Requests that had it to the end."""
    first_used: float | None = field(default=None, init=False)

    @property
    def open(self) -> bool:
        """Whether new sessions may go there now."""
        return self.accepting() and self.connected()

    def serves(self, role_hash: RoleHash, adapter: AdapterDigest | None) -> bool:
        """Whether new sessions of that hash, with that adapter, may go there now."""
        has_it = adapter is None or any(facts.digest == adapter for facts in self.adapters())
        return self.role_hash == role_hash and self.open and has_it

    def take_up(self, *, wall: float) -> bool:
        """A request begins on it; whether it has warmed up by now."""
        if self.first_used is None:
            self.first_used = wall
        if self.ready_since is None or self.served >= WARM_AFTER_REQUESTS:
            return True
        return wall - self.first_used >= WARM_AFTER_SECONDS


class Pool(Generic[Engine]):
    """All replicas of one role."""

    def __init__(self) -> None:
        self._replicas: dict[str, Replica[Engine]] = {}

    def __iter__(self) -> Iterator[Replica[Engine]]:
        return iter(list(self._replicas.values()))

    @contextmanager
    def holding(self, replica: Replica[Engine]) -> Iterator[None]:
        """Have the replica in the pool while the block lasts; its sessions may outlive that."""
        self._replicas[replica.uid] = replica
        try:
            yield
        finally:
            del self._replicas[replica.uid]

    def admitted(self) -> dict[str, int]:
        """Replicas open to sessions, counted by role hash."""
        return dict(Counter(str(replica.role_hash) for replica in self if replica.open))

    def adapters(self, role_hash: RoleHash) -> dict[str, AdapterDigest]:
        """What open replicas of that hash have loaded, by name. While a name changes its content, either."""
        serving = [replica for replica in self if replica.serves(role_hash, None)]
        return {facts.name: facts.digest for replica in serving for facts in replica.adapters()}

    def adapted(self) -> dict[str, dict[str, int]]:
        """Replicas open to sessions that have each content of an adapter, counted by role hash and digest."""
        found: dict[str, Counter[str]] = {}
        for replica in self:
            if replica.open and replica.adapters():
                contents = {str(facts.digest) for facts in replica.adapters()}
                found.setdefault(str(replica.role_hash), Counter()).update(contents)
        return {role_hash: dict(counts) for role_hash, counts in found.items()}

    def resting(self, now: float) -> int:
        """How many open replicas are left alone."""
        return sum(replica.open and replica.patience.rests(now) for replica in self)

    def borrow(
        self,
        role_hash: RoleHash,
        pin: str,
        *,
        now: float = math.inf,
        barred: Iterable[str] = (),
        adapter: AdapterDigest | None = None,
    ) -> Replica[Engine] | None:
        """An open replica of that hash with that adapter, by load and by `pin` (`domain.routing`), one session busier
        now; None if there is none but those that are barred, and such as rest while others do not. Without `now` nobody
        rests."""
        serving = [replica for replica in self if replica.serves(role_hash, adapter)]
        sound = [replica for replica in serving if not replica.patience.rests(now)]
        chosen = choose_pod(pin, {replica.uid: replica.sessions for replica in sound or serving}, barred=barred)
        if chosen is None:
            return None
        replica = self._replicas[chosen]
        replica.sessions += 1
        return replica

    def idle(self, role_hash: RoleHash, *, now: float, adapter: AdapterDigest | None = None) -> Replica[Engine] | None:
        """One that does not rest and has no session of this gateway; asking makes it no busier."""
        serving = (replica for replica in self if replica.serves(role_hash, adapter))
        return next((each for each in serving if each.sessions == 0 and not each.patience.rests(now)), None)

    def give_back(self, replica: Replica[Engine], *, served: bool = True) -> None:
        """End a session begun by `borrow`. `served`: it was a request's, which warms a pod up."""
        replica.sessions -= 1
        replica.served += served
