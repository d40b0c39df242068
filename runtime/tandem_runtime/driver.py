"""Knows the pipeline: open, choose K, propose, verify, emit, finish, with deadlines; always releases both engines.

Refuses to know HTTP, gRPC, tensors and settings, and to decide anything: the session does.

    async with aclosing(generate(session, engines=..., ...)) as items:
        async for item in items: ...            # Emit, Emit, ..., Finish
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from tandem_runtime.domain.lookahead import Bounds, Lookahead
from tandem_runtime.domain.session import Emit, Finish, Session
from tandem_runtime.ports import Clock, DraftEngine, Observer, TargetEngine


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest wait, in seconds, for each kind of answer. A verify may hold the prefill of a long prompt."""

    open_seconds: float = 10.0
    propose_seconds: float = 5.0
    verify_seconds: float = 60.0
    close_seconds: float = 2.0


@dataclass(slots=True)
class Engines:
    """Who serves this session. `reopen` gives another target of the same target hash, or raises TargetLost."""

    target: TargetEngine
    draft: DraftEngine | None
    reopen: Callable[[], Awaitable[TargetEngine]]
    deadlines: Deadlines = field(default_factory=Deadlines)


async def generate(
    session: Session,
    *,
    engines: Engines,
    lookahead: Lookahead,
    allowance: Callable[[], Bounds],
    observer: Observer,
    clock: Clock,
) -> AsyncIterator[Emit | Finish]:
    """Run the session to its end. `allowance` is asked before every choice of K (an off slot, a switched-off policy).

    Raises what the target refuses (BadRequest, Overloaded, NotANumber), TargetLost where nobody takes over.
    """
    raise NotImplementedError
    yield
