"""Knows a coupled choice's two passes over a whole row, in C: which token wins it, and what mass ranks before one.

Refuses to know requests, and what follows from either (see `coupling`).

They are most of what a choice costs, and numpy makes each of them many passes over memory. `screens.c` makes them one;
it is built (by `native`) when it is first asked for. A winner is told only where no other score comes near. Shares are
of float32 sums, good to DOUBT; where that does not decide, `coupling` computes them exactly. Where C cannot be had
numpy does all of it, and `about` says why.

**DOUBT.** A weight is 2^y, y = (logit - peak) log2(e) / T in float32, in three operations that each are off by at most
2^-24 of themselves. Weights below 2^-125 are left out; elsewhere y is then off by at most 125 x 3 x 2^-24, and a weight
by less than 2^-15 of itself. In C its series adds 2^-14 (see there), in numpy the exponential a unit or two in the
last place. Sums are of up to 128 numbers before they go to float64 in C, and by pairs in numpy: less than 2^-16. All is
below 2^-13 of each mass, and of their quotient, which is at most 1, below 2^-12. What was left out, of up to 2^40
tokens, is less than 2^-85 of the whole, which is at least the 1 of the likeliest. DOUBT is 2^-10.
"""

import ctypes
import math
from ctypes import c_double, c_float, c_long, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from tandem_runtime import native
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.noise_words import Ids, mixed_tokens
from tandem_runtime.ports import Logits

__all__ = ["DOUBT", "Bounds", "Contest", "NativeScreens", "NumpyScreens", "Screens", "built", "screens"]

DOUBT = 2.0**-10
"""More than any share here is off by."""

SOURCE = Path(__file__).with_name("screens.c")


class Bounds(ctypes.Structure):
    """Words below `lucky` have noise below `reach`, words below `luckier` below `further_reach`; the lower 33 bits of
    both are 0. Scores within `slack` of each other are not told apart."""

    _fields_ = (
        ("lucky", c_uint64),
        ("luckier", c_uint64),
        ("reach", c_double),
        ("further_reach", c_double),
        ("slack", c_double),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What a token has to beat: `beaten`, the score of the `likeliest`. One with a logit below `floor` cannot win."""

    position_key: int
    temperature: float
    likeliest: TokenId
    beaten: float
    floor: float


class Screens(Protocol):
    """`about` is a line on how they came."""

    @property
    def about(self) -> str: ...

    def winner(self, row: Logits, tokens: Ids | None, contest: Contest, bounds: Bounds, /) -> TokenId | None:
        """The token of the best score among `tokens`, ascending, all of `row` [vocab] where it is None. The likeliest
        is one of them. None: it cannot be told here."""

    def share_before(self, row: Logits, peak: float, temperature: float, token: TokenId) -> float:
        """The share of the mass of `row` [vocab] that ranks before `token`, ties by the lower id, off by up to DOUBT.

        `peak` is the row's maximum, finite; 2^-20 <= temperature <= 2^20; `token` has a finite logit.
        """


class NumpyScreens:
    """The mass by numpy."""

    def __init__(self, about: str) -> None:
        self.about = about

    def winner(self, _row: Logits, _tokens: Ids | None, _contest: Contest, _bounds: Bounds, /) -> TokenId | None:
        """Never told: numpy's way to it is `coupling`'s own."""
        return None

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
        self._winner, self._share_before = functions.winner, functions.share_before
        pointer, word, number, real, count = c_void_p, c_uint64, c_float, c_double, c_long
        self._winner.argtypes = [pointer] * 3 + [count, word, real, number, count, real, ctypes.POINTER(Bounds)]
        self._winner.restype = count
        self._share_before.argtypes = [pointer, count, number, number, count]
        self._share_before.restype = real

    def winner(self, row: Logits, tokens: Ids | None, contest: Contest, bounds: Bounds, /) -> TokenId | None:
        if not _is_plain(row):
            return None
        mixes, asked = mixed_tokens(len(row)), None if tokens is None else np.ascontiguousarray(tokens, np.int64)
        found = int(
            self._winner(
                row.ctypes.data,
                mixes.ctypes.data,
                None if asked is None else asked.ctypes.data,
                len(row) if asked is None else len(asked),
                contest.position_key,
                contest.temperature,
                contest.floor,
                contest.likeliest,
                contest.beaten,
                ctypes.byref(bounds),
            )
        )
        return None if found < 0 else found

    def share_before(self, row: Logits, peak: float, temperature: float, token: TokenId) -> float:
        if not _is_plain(row):
            return super().share_before(row, peak, temperature, token)
        scale = 1 / (temperature * math.log(2))
        return float(self._share_before(row.ctypes.data, len(row), peak, scale, token))


def _is_plain(row: Logits) -> bool:
    return row.dtype == np.float32 and row.flags.c_contiguous


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
