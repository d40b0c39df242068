"""Knows `domain.noise` as whole arrays: the words and the Gumbel numbers of many tokens at one position.

Refuses to know logits and laws.

uint64 arithmetic wraps as the definition asks, so the integers are those of the domain bit for bit; mix(token) is kept
per vocabulary. What is dear here is passing over memory, and most of all over memory that was never touched before.
"""

import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ids", "Words", "gumbels", "lucky_words", "mixed", "mixed_tokens", "noise_bits"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ADDED, _FIRST, _SECOND, _THIRTY, _TWENTY_SEVEN, _THIRTY_ONE, _TWELVE = (
    np.array(number, np.uint64)
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31, 12)
)
"""Arrays without a dimension, which a ufunc takes up quicker than numbers."""

_PIECE = 1 << 16
"""Words mixed at once. A call costs about as much as passing over a thousand words does, so pieces are large."""


def noise_bits(position_key: int, tokens: Ids, *, vocab_size: int) -> Words:
    """`domain.noise.bits` of many tokens."""
    return mixed(np.uint64(position_key) ^ mixed_tokens(vocab_size)[tokens])


def gumbels(words: Words) -> Floats:
    """`domain.noise.gumbel` of many words, but for the last bits of the two logarithms."""
    numbers: Floats = (words >> _TWELVE).astype(np.float64) * 2.0**-52 + 2.0**-53
    for _ in range(2):
        np.negative(np.log(numbers, numbers), numbers)
    return numbers


def mixed(words: Words) -> Words:
    """`domain.noise.mix` of many words, in their own place."""
    _mix_nearly(words, np.empty_like(words))
    words ^= words >> _THIRTY_ONE
    return words


def lucky_words(position_key: int, tokens: Words, least: np.uint64) -> tuple[Ids, Words]:
    """Which of the tokens whose mix is `tokens` have a word of at least `least`, and those words.

    The mixer's last step, w = z ^ (z >> 31), leaves the upper 31 bits as they are, so z is compared in place of w:
    the lower 33 bits of `least` must be 0.
    """
    places, words, position_word = [], [], np.array(position_key, np.uint64)
    for begin in range(0, max(len(tokens), 1), _PIECE):
        part = tokens[begin : begin + _PIECE]
        piece, spare = (memory[: len(part)] for memory in _scratch.memories)
        _mix_nearly(np.bitwise_xor(part, position_word, piece), spare)
        found = np.flatnonzero(piece >= least)
        places.append(found + begin)
        words.append(piece[found])
    screened = np.concatenate(words)
    return np.concatenate(places), screened ^ (screened >> _THIRTY_ONE)


def _mix_nearly(words: Words, spare: Words) -> None:
    """The mixer but for its last step, in place. Outputs are given by position, which is quicker than by name."""
    np.add(words, _ADDED, words)
    np.right_shift(words, _THIRTY, spare)
    np.bitwise_xor(words, spare, words)
    np.multiply(words, _FIRST, words)
    np.right_shift(words, _TWENTY_SEVEN, spare)
    np.bitwise_xor(words, spare, words)
    np.multiply(words, _SECOND, words)


class _Scratch(threading.local):
    """Memory of a thread's own: fresh memory for whole rows would cost as much as the mixing."""

    def __init__(self) -> None:
        self.memories = np.empty((2, _PIECE), np.uint64)


_scratch = _Scratch()


@lru_cache(maxsize=8)
def mixed_tokens(vocab_size: int) -> Words:
    return mixed(np.arange(vocab_size, dtype=np.uint64))
