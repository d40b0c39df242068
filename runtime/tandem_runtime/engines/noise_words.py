"""Knows `domain.noise` as whole arrays: the words and the Gumbel numbers of many tokens at one position.

Refuses to know logits and laws.

uint64 arithmetic wraps as the definition asks, so the integers are those of the domain bit for bit; mix(token) is kept
per vocabulary. What is dear here is the pass over memory, so a row is mixed in pieces that stay in a cache.
"""

import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ids", "Words", "gumbels", "lucky_words", "mixed", "mixed_tokens", "noise_bits"]

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ADDED, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

_PIECE = 3 << 13
"""Words mixed at once: two pieces are 384 KB, which a second-level cache holds."""


def noise_bits(position_key: int, tokens: Ids, *, vocab_size: int) -> Words:
    """`domain.noise.bits` of many tokens."""
    return mixed(np.uint64(position_key) ^ mixed_tokens(vocab_size)[tokens])


def gumbels(words: Words) -> Floats:
    """`domain.noise.gumbel` of many words, but for the last bits of the two logarithms."""
    u = ((words >> np.uint64(12)).astype(np.float64) + 0.5) / (1 << 52)
    numbers: Floats = -np.log(-np.log(u))
    return numbers


def mixed(words: Words) -> Words:
    """`domain.noise.mix` of many words, in their own place."""
    words += _ADDED
    words ^= words >> _SHIFTS[0]
    words *= _FIRST
    words ^= words >> _SHIFTS[1]
    words *= _SECOND
    words ^= words >> _SHIFTS[2]
    return words


def lucky_words(position_key: int, tokens: Words, least: np.uint64) -> tuple[Ids, Words]:
    """Which of the tokens whose mix is `tokens` have a word of at least `least`, and those words.

    The mixer's last step, w = z ^ (z >> 31), leaves the upper 31 bits as they are, so z is compared in place of w:
    the lower 33 bits of `least` must be 0.
    """
    places, words = [], []
    for begin in range(0, len(tokens), _PIECE):
        piece = _nearly_mixed(position_key, tokens[begin : begin + _PIECE])
        found = np.flatnonzero(piece >= least)
        places.append(found + begin)
        words.append(piece[found])
    screened = np.concatenate(words)
    return np.concatenate(places), screened ^ (screened >> _SHIFTS[2])


def _nearly_mixed(position_key: int, tokens: Words) -> Words:
    """`mixed` of key ^ tokens but for its last step, in this thread's own memory: fresh memory costs as much again."""
    piece, shifted = (part[: len(tokens)] for part in _scratch.parts)
    np.bitwise_xor(tokens, np.uint64(position_key), out=piece)
    np.add(piece, _ADDED, out=piece)
    for shift, factor in zip(_SHIFTS, (_FIRST, _SECOND), strict=False):
        np.right_shift(piece, shift, out=shifted)
        np.bitwise_xor(piece, shifted, out=piece)
        np.multiply(piece, factor, out=piece)
    return piece


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.parts = np.empty((2, _PIECE), np.uint64)


_scratch = _Scratch()


@lru_cache(maxsize=8)
def mixed_tokens(vocab_size: int) -> Words:
    return mixed(np.arange(vocab_size, dtype=np.uint64))
