"""Knows who goes first when sessions share a model: urgency, fair shares of what is computed, and of the memory.

Refuses to know blocks, models, threads and what a session is for.

**Urgency.** Priorities are strict. What is less urgent never takes room or memory that something more urgent at work
wants, and is not computed where it would make the others' step notably longer.

**Shares of the computing** (Sheng et al. 2024, "Fairness in serving large language models": virtual token counters).
Every tenant has a counter of the rows that were computed for it, divided by its weight: prompt tokens, verify slots and
draft steps, whether they led to a token or not, since that is what they cost the others. The next piece to be computed
is one of the tenant whose counter is least. A tenant that comes back from idleness is lifted to the least counter of
those at work, so that nobody saves up shares and nobody idles. If no piece is above P rows, then of two tenants that
always have pieces waiting, with weights v and w,

    | rows of the one / v - rows of the other / w |  <=  2 P (1/v + 1/w)

at any time, however many sessions either opens (as in theorem 4.4 there; twice, because a piece that does not fit into
what is left of a step lets a smaller one of another tenant pass). A tenant's own pieces go in the order in which they
began to wait, so each has its turn. Sessions without a tenant are one tenant together: not to say one's name must not
pay.

**Shares of the memory.** A session's keys and values can be computed anew from its tokens, so memory can be taken from
whoever has some; it costs that session a prefill. Sessions are ranked: by urgency, then by their place among the
sessions of their tenant, the one opened first having the first place, divided by the weight; then by opening. So the
first sessions of all tenants come before all second ones, and a tenant with many sessions pushes out its own. Memory is
given up by, of the least urgent first,

1. parked sessions (no work of theirs waits): those behind the asker, and those that have been parked for longer than
   `patience_seconds`; whoever has been parked longest goes first;
2. sessions whose work waits, if they stand behind the asker: the last first.

Ranks change when a session ends and at no other time, so two sessions that together are too large do not push each
other out in turns: the later one waits until the earlier one ends, or rests for longer than the patience. And the first
whose work waits can get all the memory there is once the patience of the parked ones has run out, so somebody always
goes on.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tandem_runtime.domain.tokens import Priority

__all__ = ["Claim", "Holder", "Rank", "Shares", "gives_way", "ranks"]

Tenant: TypeAlias = str | None
"""None: those who have none, together."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose account a session is computed, what that account weighs among others, and how urgent it is."""

    tenant: Tenant = None
    weight: float = 1.0
    priority: Priority = Priority.INTERACTIVE


class Shares:
    """The counters of the tenants of one priority, in rows per weight."""

    def __init__(self) -> None:
        self._counters: dict[Tenant, float] = {}
        self._floor = 0.0
        """The least counter of those at work, when there were any."""

    def turns(self, waiting: Iterable[tuple[Tenant, Item]]) -> Iterator[Item]:
        """All that waits, a tenant's own in the order given. Next is always one of the tenant whose counter is least
        when it is asked for, so `charge` what was served before asking for more."""
        queues: dict[Tenant, deque[Item]] = {}
        for tenant, item in waiting:
            queues.setdefault(tenant, deque()).append(item)
        self._meet(queues)
        while len(queues) > 1:
            tenant = min(queues, key=self._counters.__getitem__)
            yield queues[tenant].popleft()
            if not queues[tenant]:
                del queues[tenant]
        for queue in queues.values():
            yield from queue

    def charge(self, claim: Claim, rows: int) -> None:
        """`rows` were computed for a tenant that waited; of rows that were not computed after all, less than 0."""
        self._counters[claim.tenant] += rows / claim.weight

    def _meet(self, at_work: Mapping[Tenant, object]) -> None:
        """Lift those who come from idleness, and forget the idle whom the others have overtaken."""
        if not at_work:
            return
        known = self._counters
        staying = [known[tenant] for tenant in at_work if tenant in known]
        self._floor = max(self._floor, min(staying or known.values(), default=0.0))
        self._counters = {tenant: counter for tenant, counter in known.items() if counter > self._floor}
        for tenant in at_work:
            self._counters.setdefault(tenant, self._floor)


Rank: TypeAlias = tuple[Priority, float, int]
"""Priority, place among the tenant's sessions divided by its weight, number. The least goes first."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds memory; of two the one with the smaller number was opened earlier."""

    number: int
    rank: Rank
    parked_seconds: float | None
    """None: work of it waits."""


def ranks(claims: Mapping[int, Claim]) -> dict[int, Rank]:
    """The ranks of open sessions by their numbers.

    Of sessions 1 and 2 of one tenant and 3 of another, with equal weights, 1 comes first, then 3, then 2.
    """
    places: Counter[tuple[Priority, Tenant]] = Counter()
    ranked: dict[int, Rank] = {}
    for number, claim in sorted(claims.items()):
        places[claim.priority, claim.tenant] += 1
        ranked[number] = (claim.priority, places[claim.priority, claim.tenant] / claim.weight, number)
    return ranked


def gives_way(asker: Rank, others: Iterable[Holder], *, patience_seconds: float) -> int | None:
    """The number of the session whose memory a session of rank `asker` may have next; None: it has to wait.

    With a patience of 1 s, of sessions 1 (parked for 0.5 s), 2 (the asker), 3 (at work) and 4 (parked for 0.1 s), each
    of a tenant of its own, first 4 gives way, then 3, and 1 half a second later.
    """
    yielding = [other for other in others if other.rank > asker or _rests(other, patience_seconds)]
    last = max(yielding, key=_readiness, default=None)
    return None if last is None else last.number


def _rests(holder: Holder, patience_seconds: float) -> bool:
    return holder.parked_seconds is not None and holder.parked_seconds >= patience_seconds


def _readiness(holder: Holder) -> tuple[Priority, bool, float, Rank]:
    """How readily a session gives up its memory: greatest first."""
    return holder.rank[0], holder.parked_seconds is not None, holder.parked_seconds or 0.0, holder.rank
