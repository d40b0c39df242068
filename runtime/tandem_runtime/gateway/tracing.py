"""Knows what is told of a request that has ended, to who traces requests, if anybody does.

Refuses to know spans (`spans`) and how they are sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tandem_runtime.gateway.accounts import Account
from tandem_runtime.gateway.choices import Came, Choice
from tandem_runtime.ports import Clock
from tandem_runtime.telemetry import RoundSums


class Progress(Protocol):
    """A request as it goes: `seated_at` is when its choices had their places, by the monotonic clock; None: not yet."""

    @property
    def came(self) -> Came: ...
    @property
    def seated_at(self) -> float | None: ...
    @property
    def choices(self) -> Sequence[Choice]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A request that has ended; `caller` has its headers of trace context.

    `failure` is the kind of what ended it, None of an answer.
    """

    request: str
    revision: str
    caller: Mapping[str, str]
    progress: Progress
    ended_at: float
    sums: RoundSums
    failure: str | None


class Tracing(Protocol):
    """Who wants to know of each request that has ended."""

    def tell(self, told: Told) -> None: ...


@dataclass(frozen=True, slots=True)
class Heading:
    """What is known of a request before it begins."""

    id: str
    caller: Mapping[str, str]


@contextmanager
def traced(
    tracing: Tracing | None, heading: Heading, progress: Progress, account: Account, clock: Clock
) -> Iterator[None]:
    """Whatever ends the block, it is told of."""
    if tracing is None:
        yield
        return
    sums = account.sums = RoundSums()
    failure = None
    try:
        yield
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        tracing.tell(
            Told(
                request=heading.id,
                revision=account.revision.name,
                caller=heading.caller,
                progress=progress,
                ended_at=clock.monotonic(),
                sums=sums,
                failure=failure,
            )
        )
