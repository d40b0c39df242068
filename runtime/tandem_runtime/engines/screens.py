"""Knows a coupled choice's two passes over a whole row: which tokens can win, and what mass ranks before one.

Refuses to know requests, and what follows from either (see `coupling`).

They are most of what a choice costs, and numpy makes each of them many passes over memory. `screens.c` makes them one;
it is built (by `native`) when it is first asked for. Words are the same bit for bit, and bounds are compared alike in
both. Shares are of float32 sums, good to DOUBT; where that does not decide, `coupling` computes them exactly. Where C
cannot be had numpy does all of it, and `about` says why.

**DOUBT.** A weight is 2^y, y = (logit - peak) log2(e) / T in float32, in three operations that each are off by at most
2^-24 of themselves. Weights below 2^-125 are left out; elsewhere y is then off by at most 125 x 3 x 2^-24, and a weight
by less than 2^-15 of itself. In C its series adds 2^-14 (see there), in numpy the exponential a unit or two in the
last place. Sums are of up to 128 numbers before they go to float64 in C, and by pairs in numpy: less than 2^-16. All is
below 2^-13 of each mass, and of their quotient, which is at most 1, below 2^-12. What was left out, of up to 2^40
tokens, is less than 2^-85 of the whole, which is at least the 1 of the likeliest. DOUBT is 2^-10.
"""

import ctypes
import math
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines import native
from tandem_runtime.engines.noise_words import Ids, Words, lucky_words, mixed_tokens, noise_bits
from tandem_runtime.ports import Logits

__all__ = ["DOUBT", "Bounds", "NativeScreens", "NumpyScreens", "Screens", "built", "screens"]

DOUBT = 2.0**-10
"""More than any share here is off by."""

SOURCE = Path(__file__).with_name("screens.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A token passes by a logit of at least `near`, by a word of at least `lucky` beside a logit of at least `hopeful`,
    or by a word of at least `luckier`. The lower 33 bits of both words are 0; both logits are of the row's type, and
    `hopeful` is not above `near`."""

    lucky: np.uint64
    luckier: np.uint64
    hopeful: np.floating
    near: np.floating

    def numbers(self) -> tuple[int, int, float, float]:
        return int(self.lucky), int(self.luckier), float(self.hopeful), float(self.near)


class Screens(Protocol):
    """`about` is a line on how they came."""

    @property
    def about(self) -> str: ...

    def screened(self, row: Logits, tokens: Ids | None, position_key: int, bounds: Bounds) -> tuple[Ids, Words]:
        """Of `tokens`, ascending, all of `row` [vocab] where it is None, those that pass, and their words."""

    def share_before(self, row: Logits, peak: float, temperature: float, token: TokenId) -> float:
        """The share of the mass of `row` [vocab] that ranks before `token`, ties by the lower id, off by up to DOUBT.

        `peak` is the row's maximum, finite; 2^-20 <= temperature <= 2^20; `token` has a finite logit.
        """


class NumpyScreens:
    """Both by numpy."""

    def __init__(self, about: str) -> None:
        self.about = about

    def screened(self, row: Logits, tokens: Ids | None, position_key: int, bounds: Bounds) -> tuple[Ids, Words]:
        mixes = mixed_tokens(len(row))
        places, words = lucky_words(position_key, mixes if tokens is None else mixes[tokens], bounds.lucky)
        lucky = places if tokens is None else tokens[places]
        hopeful = (words >= bounds.luckier) | (row[lucky] >= bounds.hopeful)
        near = np.flatnonzero((row if tokens is None else row[tokens]) >= bounds.near)
        near = near if tokens is None else tokens[near]
        near_words = noise_bits(position_key, near, vocab_size=len(row))
        fresh = near_words < bounds.lucky
        return np.concatenate((lucky[hopeful], near[fresh])), np.concatenate((words[hopeful], near_words[fresh]))

    def share_before(self, row: Logits, peak: float, temperature: float, token: TokenId) -> float:
        with np.errstate(over="ignore", under="ignore"):
            weights = np.subtract(row, row.dtype.type(peak)).astype(np.float32, copy=False)
            np.multiply(weights, np.float32(1 / temperature), out=weights)
            np.exp(weights, out=weights)
        before = row > row[token]
        before[:token] |= row[:token] == row[token]
        return float(weights[before].sum() / weights.sum())


class NativeScreens(NumpyScreens):
    """Both by `screens.c`; rows of another type than float32, or with gaps, by numpy."""

    def __init__(self, library: Path) -> None:
        """Raises NotBuilt where `library` does not load."""
        super().__init__("ours, built for this processor")
        functions = native.loaded(library)
        pointer, word, number, count = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_float, ctypes.c_long
        self._screened, self._share_before = functions.screened, functions.share_before
        self._screened.argtypes = [pointer] * 3 + [count] + [word] * 3 + [number] * 2 + [pointer] * 2
        self._screened.restype = count
        self._share_before.argtypes = [pointer, count, number, number, count]
        self._share_before.restype = ctypes.c_double
        self._passed = _Passed()

    def screened(self, row: Logits, tokens: Ids | None, position_key: int, bounds: Bounds) -> tuple[Ids, Words]:
        if not _is_plain(row):
            return super().screened(row, tokens, position_key, bounds)
        mixes, asked = mixed_tokens(len(row)), None if tokens is None else np.ascontiguousarray(tokens, np.int64)
        count = len(row) if asked is None else len(asked)
        passed, words = self._passed.memory_for(count)
        found = self._screened(
            row.ctypes.data,
            mixes.ctypes.data,
            None if asked is None else asked.ctypes.data,
            count,
            position_key,
            *bounds.numbers(),
            passed.ctypes.data,
            words.ctypes.data,
        )
        return passed[:found].copy(), words[:found].copy()

    def share_before(self, row: Logits, peak: float, temperature: float, token: TokenId) -> float:
        if not _is_plain(row):
            return super().share_before(row, peak, temperature, token)
        scale = 1 / (temperature * math.log(2))
        return float(self._share_before(row.ctypes.data, len(row), peak, scale, token))


def _is_plain(row: Logits) -> bool:
    return row.dtype == np.float32 and row.flags.c_contiguous


class _Passed(threading.local):
    """A thread's own memory for what passes: fresh memory for whole rows costs as much as to look for it."""

    def __init__(self) -> None:
        self._tokens, self._words = np.empty(0, np.int64), np.empty(0, np.uint64)

    def memory_for(self, count: int) -> tuple[Ids, Words]:
        if len(self._tokens) < count:
            self._tokens, self._words = np.empty(count, np.int64), np.empty(count, np.uint64)
        return self._tokens, self._words


def built() -> Path:
    """The library of `screens.c`. Raises NotBuilt."""
    return native.built(SOURCE, native.cache_folder())


@cache
def screens() -> Screens:
    """Ours where they can be built; else numpy's."""
    try:
        return NativeScreens(built())
    except native.NotBuilt as reason:
        return NumpyScreens(f"numpy, since ours was not built: {reason}")
