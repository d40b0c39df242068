"""Knows the online check of exactness: which finished answers are made again without speculation, and what that proves.

Refuses to know engines, queues and counters.

In coupled verification the token at offset t is the argmax of log p_t + g_t, where g_t hangs on seed, choice and offset
alone: plain decoding with the same seed must give the same ids, whatever was proposed. At temperature 0 that holds in
every verification. In rejection and block verification at a temperature the text keeps the target's *law* only
(Leviathan et al. 2023, theorem 1), so one answer against another proves nothing, and such answers are skipped.

Where a target is no `Bitwise` one, its rounding may split even an answer without proposals from its replay. So such
answers are replayed there too, apart, and say what speculation's are to be held against.

A replay goes on from the tokens found equal so far, so it can be given up at any token and taken up again, on another
replica too; it ends at the first difference.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from tandem_runtime.domain.errors import StaleOffset
from tandem_runtime.domain.policy import BASIS_POINTS, ExactnessPolicy
from tandem_runtime.domain.routing import hash64
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Priority,
    RunRounds,
    SessionId,
    TokenId,
    Verdict,
    Verification,
)

BITWISE = "Bitwise"
"""The determinism of a target whose logits hang on the prefix alone, to the last bit."""
RUN_TOKENS = 16
"""A run is this long at most: what a target still computes for a replay that has given way."""


class Result(StrEnum):
    """What became of an answer that was to be replayed."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNCERTAIN = "uncertain"
    """An id differs on a target that is no `Bitwise` one: a near tie of its rounding, or a fault."""
    SKIPPED = "skipped"
    """Its verification promises a law and no text."""
    DROPPED = "dropped"
    """There was no room, no time or no target for it."""
    FAILED = "failed"
    """The target did not carry the replay through."""


def is_sampled(session: SessionId, policy: ExactnessPolicy) -> bool:
    """Whether this answer is of the share to be replayed: by hash, so that it needs no chance."""
    return hash64(f"{session}|exactness") * BASIS_POINTS < policy.sample_basis_points << 64


def is_comparable(opening: OpenSession) -> bool:
    """Whether speculation must not change a single id of this answer."""
    return opening.verification is Verification.COUPLED or opening.parameters.temperature == 0


class Replay:
    """One finished answer against the target alone: `opening` is that of the request, `output` the answered ids."""

    def __init__(self, opening: OpenSession, output: tuple[TokenId, ...]) -> None:
        name = SessionId(f"{opening.session}-replay")
        self._asked = replace(
            opening, session=name, output=(), max_tokens=len(output), logprobs=None, priority=Priority.BACKGROUND
        )
        self._output = output
        self._equal = 0
        self._differs = False

    @property
    def tokens(self) -> int:
        """What it holds in memory, prompt included."""
        return len(self._asked.prompt) + len(self._output)

    @property
    def equal(self) -> int:
        """Tokens found equal so far, which is also the position of a difference."""
        return self._equal

    @property
    def compared(self) -> int:
        """Tokens that might have differed so far: those found equal, and the one that did."""
        return self._equal + self._differs

    @property
    def over(self) -> bool:
        """Whether no more tokens need be seen."""
        return self._differs or self._equal == len(self._output)

    def result(self, determinism: str) -> Result:
        """What a replay that is over proves of a target with that determinism."""
        if not self._differs:
            return Result.EQUAL
        return Result.DIFFERENT if determinism == BITWISE else Result.UNCERTAIN

    def opening(self) -> OpenSession:
        """How the target takes it up where it stands."""
        return replace(self._asked, output=self._output[: self._equal])

    def run(self, incarnation: Incarnation) -> RunRounds:
        """The next run of the target alone."""
        tokens = min(RUN_TOKENS, len(self._output) - self._equal)
        return RunRounds(self._asked.session, incarnation, self._equal, self._equal, tokens)

    def told(self, verdict: Verdict) -> None:
        """Compare the next token. Raises StaleOffset if it is not the next."""
        if (verdict.offset, verdict.accepted) != (self._equal, 0) or self.over:
            raise StaleOffset(f"a replay at offset {self._equal} was told of offset {verdict.offset}")
        self._differs = verdict.token != self._output[self._equal]
        self._equal += not self._differs


@dataclass(slots=True)
class Tally:
    """How many answers came to which result, and how many of their tokens were compared; it only grows."""

    equal: int = 0
    different: int = 0
    uncertain: int = 0
    skipped: int = 0
    dropped: int = 0
    failed: int = 0
    plain_equal: int = 0
    plain_uncertain: int = 0
    tokens: int = 0
    plain_tokens: int = 0

    @property
    def answers(self) -> int:
        """All of them."""
        compared = self.equal + self.different + self.uncertain + self.plain_equal + self.plain_uncertain
        return compared + self.skipped + self.dropped + self.failed

    def add(self, result: Result, tokens: int = 0) -> None:
        setattr(self, result.value, getattr(self, result.value) + 1)
        self.tokens += tokens

    def add_plain(self, result: Result, tokens: int) -> None:
        """Of an answer that had nothing proposed: what shows how often rounding alone splits two that should be one."""
        self.plain_equal += result is Result.EQUAL
        self.plain_uncertain += result is Result.UNCERTAIN
        self.plain_tokens += tokens
