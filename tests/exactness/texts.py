"""Knows the models behind the proofs: logits over 512 tokens that depend on the whole prefix.

Refuses to know engines and sampling.

A row is a sum of two rows of fixed tables, picked by a checksum of the prefix, so that one changed, missing or doubled
token anywhere before it gives unrelated logits: 65,536 different rows, at two microseconds each. The coarse
world is rounded to whole numbers, so that the highest logits tie often.
"""

from array import array
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tandem_runtime.domain.tokens import TokenId

VOCAB = 512
TABLE_ROWS = 256

Rows = npt.NDArray[np.float64]
Script = Callable[[tuple[TokenId, ...]], Rows]


def _tables(seed: int, *, coarse: bool) -> tuple[Rows, Rows]:
    chance = np.random.default_rng(seed)
    first, second = (chance.normal(0, 2.2, (TABLE_ROWS, VOCAB)) for _ in range(2))
    return (np.round(first), np.round(second)) if coarse else (first, second)


def checksum(prefix: Sequence[TokenId]) -> int:
    return crc32(array("i", prefix).tobytes())


def text_model(seed: int, *, coarse: bool = False) -> Script:
    """A model over `VOCAB` tokens; another seed is an unrelated model."""
    first, second = _tables(seed, coarse=coarse)

    def script(prefix: tuple[TokenId, ...]) -> Rows:
        word = checksum(prefix)
        row: Rows = first[word % TABLE_ROWS] + second[(word >> 16) % TABLE_ROWS]
        return row

    return script


def kin(script: Script, *, acceptance: float) -> Script:
    """A draft that has the target's own logits after a share of all prefixes, and shifted ones after the others."""

    def draft(prefix: tuple[TokenId, ...]) -> Rows:
        logits = script(prefix)
        return logits if checksum(prefix) % 997 < acceptance * 997 else np.roll(logits, 1)

    return draft


WORLDS: tuple[Script, ...] = (text_model(1), text_model(2, coarse=True))
STRANGER: Script = text_model(3)
"""A draft that knows nothing of any target."""
