"""Knows the prompts by which a stream tells the timed engines who it is and what its rounds take.

Refuses to know clocks and sockets. A prompt is four ids, all within the vocabulary of the example pair: the stream's
number in two of them, then milliseconds, by halves, of a guess and of a verify.
"""

from typing import NamedTuple

from tandem_runtime.domain.tokens import TokenId

VOCABULARY = 1024
STREAMS = VOCABULARY**2
HALVES = 2
"""So many steps make a millisecond."""
FOR_EVER = VOCABULARY - 1
"""In place of a verify's time: the first one is answered at once, and no other ever."""


class Told(NamedTuple):
    """A stream by its number, and what the engines take for it. `verify_ms` None: only the first round ends."""

    stream: int
    guess_ms: float
    verify_ms: float | None


def prompt_of(told: Told) -> tuple[TokenId, ...]:
    """Stream 1030, 4 and 18 ms: (1, 6, 8, 36)."""
    verify = FOR_EVER if told.verify_ms is None else round(told.verify_ms * HALVES)
    return (*divmod(told.stream, VOCABULARY), round(told.guess_ms * HALVES), verify)


def told_by(prompt: tuple[TokenId, ...]) -> Told:
    high, low, guess, verify = prompt
    verify_ms = None if verify == FOR_EVER else verify / HALVES
    return Told(high * VOCABULARY + low, guess / HALVES, verify_ms)
