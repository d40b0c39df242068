"""Knows who is let in: what tenants have used of their quotas, how full the house is, who waits, and who is next.

Refuses to know what requests ask and how they are served.

**Tokens per minute** are a bucket: it holds a minute's worth, fills evenly, and a request may begin while there is
enough for its prompt (a full one is enough for any) and for those of the tenant's requests that wait for room. Prompts
are taken when a request begins, and given back if it leaves before; answers are taken token by token as they come, so a
bucket can be overdrawn, and then the tenant waits longer: over time it gets its rate, whatever its answers' lengths.
**Concurrent** counts choices. Both are those of one gateway: of several a tenant may have the sum.

**The house.** Who finds no room waits, for a while and in bounds. Next is whose tenant has the fewest choices in
progress for its weight, of equals who came first. Nobody overtakes it, so a request of many choices has its turn, but
where they would take its tenant above its share: else one that asks for all of the house would keep everybody out. The
last places of the house, and of the line before it, are kept for tenants below their share (`domain.places`).
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from tandem_runtime.domain.errors import BadRequest, Overloaded
from tandem_runtime.domain.places import Held, is_owed, is_welcome, most_of
from tandem_runtime.gateway.failures import QuotaUsedUp
from tandem_runtime.gateway.keys import Quota
from tandem_runtime.ports import Clock

MINUTE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    sessions: int = 256
    """Choices in progress on one gateway."""
    waiting: int = 256
    """Requests that wait for room."""
    wait_seconds: float = 5.0
    """How long one waits at most."""
    body_bytes: int = 8 * 2**20
    retry_seconds: int = 1


@dataclass(frozen=True, slots=True)
class Guest:
    """What a request takes up, and on whose account."""

    tenant: str
    weight: float
    quota: Quota
    sessions: int
    prompt_tokens: int
    field: str = "n"
    """Of the request: what asks for so many choices."""


@dataclass(slots=True)
class _Bucket:
    """A tenant's tokens as of a moment; below 0: overdrawn."""

    tokens: float
    at: float

    def fill(self, rate: int, now: float) -> None:
        self.tokens = min(self.tokens + (now - self.at) * rate / MINUTE_SECONDS, float(rate))
        self.at = now


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    guest: Guest
    called: asyncio.Event = field(default_factory=asyncio.Event)


class House:
    """The room of one gateway."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._used: Counter[str] = Counter()
        """Choices in progress, by tenant."""
        self._weights: dict[str, float] = {}
        """Of those that have some, as told last."""
        self._buckets: dict[str, _Bucket] = {}
        self._waiting: list[_Waiter] = []

    @property
    def sessions(self) -> int:
        """Choices in progress."""
        return self._used.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def admitted(self, guest: Guest) -> AsyncIterator[None]:
        """The request is in while the block lasts. Raises BadRequest where it never fits, QuotaUsedUp, Overloaded."""
        self._refuse_what_never_fits(guest)
        self._refuse_beyond_quota(guest)
        if self._waiting or not self._has_room(guest):
            await self._wait(guest)
        else:
            self._enter(guest)
        try:
            yield
        finally:
            self._leave(guest)

    def charge(self, guest: Guest, tokens: int) -> None:
        """The request has got so many more."""
        bucket = self._bucket(guest)
        if bucket is not None:
            bucket.tokens -= tokens

    def _refuse_what_never_fits(self, guest: Guest) -> None:
        most, mine = most_of(guest.tenant, guest.weight, self._limits.sessions), guest.quota.concurrent
        if guest.sessions > most:
            raise BadRequest(
                f"{guest.field} asks for {guest.sessions} choices; at most {most} fit here", parameter=guest.field
            )
        if mine is not None and guest.sessions > mine:
            raise BadRequest(
                f"{guest.field} asks for {guest.sessions} choices; at most {mine} may be in progress for this API key",
                parameter=guest.field,
            )

    def _refuse_beyond_quota(self, guest: Guest) -> None:
        """Of both quotas, what waits has its part already."""
        waiting = [waiter.guest for waiter in self._waiting if waiter.guest.tenant == guest.tenant]
        most = guest.quota.concurrent
        used = self._used[guest.tenant] + sum(each.sessions for each in waiting)
        if most is not None and used + guest.sessions > most:
            raise QuotaUsedUp(
                f"{used} of {most} choices of this API key are in progress or wait; send it again when one has ended",
                retry_after_seconds=self._limits.retry_seconds,
            )
        bucket, rate = self._bucket(guest), guest.quota.tokens_per_minute
        if bucket is None or rate is None:
            return
        left = bucket.tokens - sum(each.prompt_tokens for each in waiting)
        missing = min(max(guest.prompt_tokens, 1), rate) - left
        if missing > 0:
            raise QuotaUsedUp(
                f"the {rate} tokens per minute of this API key are used up; wait, or send a shorter prompt",
                retry_after_seconds=math.ceil(missing * MINUTE_SECONDS / rate),
            )

    def _bucket(self, guest: Guest) -> _Bucket | None:
        """As of now; None where tokens are not counted."""
        rate = guest.quota.tokens_per_minute
        if rate is None:
            return None
        now = self._clock.monotonic()
        bucket = self._buckets.setdefault(guest.tenant, _Bucket(float(rate), now))
        bucket.fill(rate, now)
        return bucket

    def _has_room(self, guest: Guest) -> bool:
        return is_welcome(guest.tenant, guest.weight, guest.sessions, held=self._held(), places=self._limits.sessions)

    def _held(self) -> Held:
        return {tenant: (count, self._weights[tenant]) for tenant, count in self._used.items()}

    def _may_wait(self, guest: Guest) -> bool:
        """The line is shared as the house is."""
        waiting = Counter(waiter.guest.tenant for waiter in self._waiting)
        weights = {waiter.guest.tenant: waiter.guest.weight for waiter in self._waiting}
        held: Held = {tenant: (count, weights[tenant]) for tenant, count in waiting.items()}
        return is_welcome(guest.tenant, guest.weight, 1, held=held, places=self._limits.waiting)

    async def _wait(self, guest: Guest) -> None:
        full = Overloaded(
            f"{self.sessions} of {self._limits.sessions} sessions are in use, {self.waiting} requests wait; try again",
            retry_after_seconds=self._limits.retry_seconds,
        )
        if not self._limits.wait_seconds or not self._may_wait(guest):
            raise full
        with self._in_line(guest) as waiter:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.wait_seconds):
                    await waiter.called.wait()
            if waiter in self._waiting:
                raise full

    @contextmanager
    def _in_line(self, guest: Guest) -> Iterator[_Waiter]:
        """Who gives up, or leaves, after it was called gives its room back."""
        waiter = _Waiter(guest)
        self._waiting.append(waiter)
        self._call()  # it may be welcome where those who wait are not
        try:
            yield waiter
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._call()
            else:
                self.charge(guest, -guest.prompt_tokens)
                self._leave(guest)
            raise

    def _enter(self, guest: Guest) -> None:
        self._used[guest.tenant] += guest.sessions
        self._weights[guest.tenant] = guest.weight
        self.charge(guest, guest.prompt_tokens)

    def _leave(self, guest: Guest) -> None:
        self._used[guest.tenant] -= guest.sessions
        if not self._used[guest.tenant]:
            del self._used[guest.tenant], self._weights[guest.tenant]
        self._call()

    def _call(self) -> None:
        """Let in who is next, as long as there is room."""
        while (first := self._next()) is not None:
            self._waiting.remove(first)
            self._enter(first.guest)
            first.called.set()

    def _next(self) -> _Waiter | None:
        """The first in order that there is room for; nobody behind one who is owed it."""
        places = self._limits.sessions
        for waiter in sorted(self._waiting, key=lambda each: self._used[each.guest.tenant] / each.guest.weight):
            guest = waiter.guest
            if self._has_room(guest):
                return waiter
            if is_owed(guest.tenant, guest.weight, guest.sessions, held=self._held(), places=places):
                return None
        return None
