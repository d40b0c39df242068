"""Knows which numbers of a row stand first: highest first, ties by the lower id.

Refuses to know what the numbers mean.
"""

import numpy as np

from tandem_runtime.engines.noise_words import Ids
from tandem_runtime.ports import Logits

__all__ = ["first_ranked"]

_COLUMN = 64


def first_ranked(row: Logits, count: int) -> Ids:
    """The ids of the `count` highest of `row` [n], all of them if it holds fewer."""
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    candidates = np.flatnonzero(row >= _floor(row, count))
    return candidates[np.argsort(-row[candidates], kind="stable")][:count]


def _floor(row: Logits, count: int) -> np.floating:
    """Something that at least `count` numbers of `row` reach, and few others: the count-th highest maximum of columns.

    Each of the `count` columns with the highest maxima holds one number that reaches it. With fewer columns than twice
    `count`, the count-th highest number itself.
    """
    columns = len(row) // _COLUMN
    highest = row[: columns * _COLUMN].reshape(_COLUMN, columns).max(axis=0) if columns >= 2 * count else row
    floor: np.floating = np.partition(highest, len(highest) - count)[len(highest) - count]
    return floor
