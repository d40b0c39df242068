"""Knows how a target writes a text with and without proposals, over the engine port alone.

Refuses to know what engine that is, and what a difference means.

A target tells rows of logits as log-probabilities, when it is asked for as many alternatives as its vocabulary has.
That is the row less its own log of a sum: every choice by it is the choice by the row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np
import numpy.typing as npt
from tests.exactness.loops import CountedClock

from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import StepModel, TargetEngine

LARGEST_K = 8
WRONG_GUESSES = 1 / 7
"""Rounds end in the middle and are rolled back, and most of them are long."""

Rows = npt.NDArray[np.float64]
"""[positions, vocab] log-probabilities."""

_numbers = count()


@dataclass(frozen=True)
class Asked:
    """One text: what is asked, and how many tokens are written."""

    prompt: tuple[TokenId, ...]
    parameters: SamplingParameters
    tokens: int


@dataclass(frozen=True)
class Guesses:
    """What is proposed: for each position a token, and for each round how many of them."""

    tokens: tuple[TokenId, ...]
    lengths: tuple[int, ...]


@contextmanager
def target_over(model: StepModel) -> Iterator[BatchedTarget]:
    facts = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation(f"kernels {next(_numbers)}"))
    with BatchedTarget(model, facts, clock=CountedClock()) as target:
        yield target


def guesses_for(text: Sequence[TokenId], *, vocab_size: int, seed: int) -> Guesses:
    """The tokens of `text`, some of them wrong, and lengths from 0 to `LARGEST_K`."""
    chance = Random(seed)
    tokens = [chance.randrange(vocab_size) if chance.random() < WRONG_GUESSES else token for token in text]
    return Guesses(tuple(tokens), tuple(chance.randint(0, LARGEST_K) for _ in text))


async def plain_text(engine: TargetEngine, asked: Asked) -> tuple[TokenId, ...]:
    verdicts = await _plain(engine, asked, alternatives=None)
    return tuple(verdict.token for verdict in verdicts)


async def verified_text(engine: TargetEngine, asked: Asked, guesses: Guesses) -> tuple[TokenId, ...]:
    verdicts = await _verified(engine, asked, guesses, alternatives=None)
    return _tokens(verdicts, guesses)[: asked.tokens]


async def plain_rows(engine: TargetEngine, asked: Asked) -> Rows:
    """The text once more, by the rows that gave its tokens."""
    return _rows(await _plain(engine, asked, alternatives=(await engine.capabilities()).vocab_size))


async def verified_rows(engine: TargetEngine, asked: Asked, guesses: Guesses) -> Rows:
    return _rows(await _verified(engine, asked, guesses, alternatives=(await engine.capabilities()).vocab_size))


async def _plain(engine: TargetEngine, asked: Asked, *, alternatives: int | None) -> list[Verdict]:
    opening = _opening(asked, alternatives)
    opened = await engine.open(opening)
    run = RunRounds(opening.session, opened.incarnation, round=0, offset=0, max_tokens=asked.tokens)
    verdicts = [verdict async for verdict in engine.run(run)]
    await engine.close(opening.session)
    return verdicts


async def _verified(engine: TargetEngine, asked: Asked, guesses: Guesses, *, alternatives: int | None) -> list[Verdict]:
    opening = _opening(asked, alternatives)
    opened = await engine.open(opening)
    verdicts: list[Verdict] = []
    offset = 0
    while offset < asked.tokens:
        number = len(verdicts)
        proposal = Proposal(guesses.tokens[offset : offset + guesses.lengths[number]])
        verdicts.append(await engine.verify(VerifyRound(opening.session, opened.incarnation, number, offset, proposal)))
        offset += verdicts[-1].accepted + 1
    await engine.close(opening.session)
    return verdicts


def _opening(asked: Asked, alternatives: int | None) -> OpenSession:
    return OpenSession(
        session=SessionId(f"text {next(_numbers)}"),
        prompt=asked.prompt,
        output=(),
        parameters=asked.parameters,
        verification=Verification.COUPLED,
        max_tokens=asked.tokens,
        logprobs=alternatives,
    )


def _tokens(verdicts: Sequence[Verdict], guesses: Guesses) -> tuple[TokenId, ...]:
    tokens: list[TokenId] = []
    for verdict in verdicts:
        tokens += [*guesses.tokens[verdict.offset : verdict.offset + verdict.accepted], verdict.token]
    return tuple(tokens)


def _rows(verdicts: Sequence[Verdict]) -> Rows:
    told = [logprob.top for verdict in verdicts for logprob in verdict.logprobs or ()]
    rows = np.empty((len(told), len(told[0])))
    for row, top in zip(rows, told, strict=True):
        ids, logprobs = zip(*top, strict=True)
        row[list(ids)] = logprobs
    return rows
