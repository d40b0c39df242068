"""Knows drafters that no model stands behind: those that guess wildly, and those that know the answer.

Refuses to know engines and sampling.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from tests.exactness.texts import VOCAB

from tandem_runtime.domain.tokens import (
    Capabilities,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    ScoreTokens,
    SessionId,
    TokenId,
)

Guess: TypeAlias = Callable[[Sequence[TokenId], int, Random], list[TokenId]]
"""(output so far, K, chance) -> up to K ids, whatever they are."""


def anything(_output: Sequence[TokenId], k: int, chance: Random) -> list[TokenId]:
    """Any ids, also some that are in no vocabulary; sometimes fewer than K, sometimes none."""
    return [chance.randrange(-2, VOCAB + 3) for _ in range(chance.randrange(k + 1))]


def echo(output: Sequence[TokenId], k: int, _chance: Random) -> list[TokenId]:
    """The last K tokens over again, as a prompt lookup gone wrong would."""
    return list(output[-k:])


def one_token(_output: Sequence[TokenId], k: int, _chance: Random) -> list[TokenId]:
    return [0] * k


def knowing(answer: Sequence[TokenId], *, error: float) -> Guess:
    """The answer itself, each token spoilt with probability `error`: 0 makes every proposal stand whole, also beyond
    the ending."""

    def guess(output: Sequence[TokenId], k: int, chance: Random) -> list[TokenId]:
        known = [*answer[len(output) : len(output) + k]]
        ids = known + [0] * (k - len(known))
        return [(token + 1) % VOCAB if chance.random() < error else token for token in ids]

    return guess


class GuessingDraft:
    """`ports.DraftEngine` of one session around a `Guess`."""

    def __init__(self, guess: Guess, chance: Random) -> None:
        self._guess = guess
        self._chance = chance
        self._output: list[TokenId] = []

    async def capabilities(self) -> Capabilities:
        return Capabilities("guess", "t", VOCAB, 4096, "Bitwise")

    async def open(self, request: OpenSession) -> Opened:
        self._output = list(request.output)
        return Opened(Incarnation("guessing"))

    async def propose(self, request: ProposeRound) -> Proposal:
        self._output[request.base :] = request.committed
        ids = self._guess(self._output, request.k, self._chance)
        self._output += ids  # the next round's base counts those that were accepted
        return Proposal(tuple(ids))

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        return (False,) * len(request.ids)

    async def close(self, session: SessionId) -> None:
        self._output = []
