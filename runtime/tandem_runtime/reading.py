"""Knows how a target is asked how likely it finds the tokens of a prompt: in a session for that alone, piece by piece.

Refuses to know who asks, and what becomes of a target that is lost.

The session is one of its own, closed before the answer's begins, which so finds the prompt computed where its tenant's
sessions share what they have read. A piece is bounded, so that each has a deadline and its reply fits a message.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, TypeVar

from tandem_runtime.domain.errors import BadRequest, TandemError, TargetLate, TargetLost
from tandem_runtime.domain.tokens import OpenSession, PromptRead, ReadPrompt, TokenLogprob
from tandem_runtime.driver import Deadlines, refuse_to_begin_again
from tandem_runtime.ports import PromptReader, TargetEngine

_T = TypeVar("_T")

PIECE_TOKENS: Final = 1024
"""Some 50 KB of reply with five alternatives for each token."""

UNKNOWN_KIND: Final = "kind"
"""What a peer names that is older than the question, or of another make."""


async def read_prompt(
    target: TargetEngine, opening: OpenSession, *, alternatives: int, deadlines: Deadlines | None = None
) -> PromptRead:
    """All tokens of the prompt but the first, which has none before it. Raises what the target refuses, and TargetLost.

    A prompt of one token is read already.
    """
    limits, length = deadlines or Deadlines(), len(opening.prompt)
    if not isinstance(target, PromptReader):
        raise _illiterate()
    known: list[TokenLogprob] = []
    try:
        opened = await _in_time(limits.open_seconds, target.open(opening))
        for base in range(1, length, PIECE_TOKENS):
            count = min(PIECE_TOKENS, length - base)
            piece = ReadPrompt(opening.session, opened.incarnation, base, count, alternatives)
            try:
                read = await _in_time(limits.verify_of(opening.priority), _read(target, piece))
            except TargetLate as late:
                refuse_to_begin_again(late, opening.priority)
                raise
            if len(read.logprobs) != count:
                raise TargetLost(f"the target told of {len(read.logprobs)} prompt tokens where {count} were asked for")
            known += read.logprobs
    finally:
        with suppress(TandemError, TimeoutError):  # an engine that is gone has freed it already
            async with asyncio.timeout(limits.close_seconds):
                await target.close(opening.session)
    return PromptRead(tuple(known))


async def _read(target: PromptReader, piece: ReadPrompt) -> PromptRead:
    try:
        return await target.read(piece)
    except BadRequest as refused:
        raise _illiterate() if refused.parameter == UNKNOWN_KIND else refused from refused


def _illiterate() -> BadRequest:
    return BadRequest("this target tells no logprobs of prompts: leave echo or logprobs out", parameter="logprobs")


async def _in_time(limit_seconds: float, answer: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(limit_seconds):
            return await answer
    except TimeoutError as late:
        raise TargetLate(f"the target gave no answer in {limit_seconds} s") from late
