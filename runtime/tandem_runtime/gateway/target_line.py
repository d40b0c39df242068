"""Knows who waits for a place on a target, and whose turn it is when one comes free.

Refuses to know how many places there are: a target says that it is full when it is asked.

Next is, as for the gateway's own room (`gateway.admission`), whose tenant has fewest for its weight: choices that are
on a target, or ask one just now; of equals who came first. One is called for each session that ends here, and one more
where a place was found. Other gateways' sessions end unheard, so that the first in line looks by itself now and then.
Who waits for something else (another revision's targets, another adapter) stands in another line.
"""

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.errors import Overloaded
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.ports import Clock

LOOK_SECONDS = 0.25

Wanted: TypeAlias = tuple[RoleHash, AdapterDigest | None]
"""What a place must have."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One choice's claim, until a moment of the monotonic clock."""

    wanted: Wanted
    tenant: str
    weight: float
    until: float
    number: int
    called: asyncio.Event = field(default_factory=asyncio.Event)
    counts: bool = False
    """Among those who are on a target."""


class TargetLine:
    """The lines of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._lines: dict[Wanted, list[Ticket]] = {}
        self._seated: Counter[tuple[Wanted, str]] = Counter()
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    def ticket(self, wanted: Wanted, *, tenant: str, weight: float, until: float) -> Ticket:
        return Ticket(wanted, tenant, weight, until, next(self._numbers))

    async def turn(self, ticket: Ticket) -> None:
        """Returns when a target may be asked: at once, unless others wait whose turn is before. Raises Overloaded when
        the ticket's time is over."""
        if ticket.counts:
            return
        if ticket.wanted in self._lines:
            full = Overloaded(f"{self.waiting} requests wait for a place on a target; try again later")
            await self._wait(ticket, full, has_asked=False)
        self._count(ticket)

    async def refused(self, ticket: Ticket, full: Overloaded) -> None:
        """Every target is full. Returns when one may be asked again; raises `full` when the ticket's time is over."""
        self._uncount(ticket)
        await self._wait(ticket, full, has_asked=True)
        self._count(ticket)

    def served(self, ticket: Ticket) -> None:
        """It has found a place, so there may be more."""
        self._call(ticket.wanted)

    def left(self, ticket: Ticket) -> None:
        """It holds and wants nothing any more. Idempotent."""
        if ticket.counts:
            self._uncount(ticket)
            self._call(ticket.wanted)

    def _count(self, ticket: Ticket) -> None:
        ticket.counts = True
        self._seated[ticket.wanted, ticket.tenant] += 1

    def _uncount(self, ticket: Ticket) -> None:
        ticket.counts = False
        self._seated[ticket.wanted, ticket.tenant] -= 1
        if not self._seated[ticket.wanted, ticket.tenant]:
            del self._seated[ticket.wanted, ticket.tenant]

    async def _wait(self, ticket: Ticket, full: Overloaded, *, has_asked: bool) -> None:
        line = self._lines.setdefault(ticket.wanted, [])
        line.append(ticket)
        ticket.called.clear()
        try:
            if has_asked or self._first(line) is not ticket:
                await self._called_or_first(ticket, line, full)
        except BaseException:
            if ticket.called.is_set():
                self._call(ticket.wanted)
            raise
        finally:
            line.remove(ticket)
            if not line:
                del self._lines[ticket.wanted]

    async def _called_or_first(self, ticket: Ticket, line: list[Ticket], full: Overloaded) -> None:
        while not ticket.called.is_set():
            left = ticket.until - self.clock.monotonic()
            if left <= 0:
                raise full
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_SECONDS)):
                    await ticket.called.wait()
            if self._first(line) is ticket:
                return

    def _call(self, wanted: Wanted) -> None:
        waiting = [ticket for ticket in self._lines.get(wanted, ()) if not ticket.called.is_set()]
        if waiting:
            self._first(waiting).called.set()

    def _first(self, line: list[Ticket]) -> Ticket:
        return min(line, key=lambda each: (self._seated[each.wanted, each.tenant] / each.weight, each.number))
