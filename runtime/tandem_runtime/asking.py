"""Knows how a draft is asked for anything: within a time, and for an answer that answers what was asked.

Refuses to know who asks, and whose trouble a failure is (`domain.patience`).

Whatever comes of asking is an answer in order or an error of the tree that says what it was: DraftLate where the time
was over, DraftLost for a fault that nobody foresaw and for what is no answer, and what the draft itself says as it says
it. Text goes on without a draft, so none of these ends a request.
"""

import logging
from collections.abc import Awaitable
from typing import TypeVar

from tandem_runtime.domain.errors import DraftLate, DraftLost, TandemError, origin
from tandem_runtime.domain.tokens import Proposal, ProposeRound, ScoreTokens
from tandem_runtime.limits import within
from tandem_runtime.ports import DraftEngine

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


async def in_time(limit_seconds: float, answer: Awaitable[Answer]) -> Answer:
    """Raises an error of the tree, whatever goes wrong."""
    limit = within(limit_seconds)
    try:
        with limit:
            return await answer
    except TandemError:
        raise
    except Exception as fault:
        if limit.expired:
            raise DraftLate(f"no answer in {limit_seconds:.3g} s") from fault
        log.error("a draft failed: %s", origin(fault))  # a traceback may quote what was said
        raise DraftLost("it failed") from fault


async def proposed(draft: DraftEngine, request: ProposeRound) -> Proposal:
    """As `DraftEngine.propose`. Raises DraftLost for more than was asked for, or confidences of something else."""
    proposal = await draft.propose(request)
    k = len(proposal.ids)
    if k > request.k:
        raise DraftLost(f"it offered {k} tokens where {request.k} were asked for")
    if len(proposal.confidences) not in (0, k):
        raise DraftLost(f"it told {len(proposal.confidences)} confidences of {k} tokens")
    return proposal


async def scored(draft: DraftEngine, request: ScoreTokens) -> tuple[bool, ...] | None:
    """As `DraftEngine.score`. Raises DraftLost where it does not say of each id whether it would have proposed it."""
    bits = await draft.score(request)
    if bits is not None and len(bits) != len(request.ids):
        raise DraftLost(f"it scored {len(bits)} tokens where {len(request.ids)} were asked for")
    return bits
