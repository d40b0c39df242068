"""Knows what gateway and RPC added to each round of a stream: the gap between two pieces of text at the caller, less
what the engines took in between.

Refuses to know why. Times are kept as counts by hundredths of a millisecond, from which every percentile follows.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

MILLISECONDS = 1000
DIGITS = 2

Moments: TypeAlias = tuple[float, float, float, float]
"""When a guess was asked for and ready, and when its verdict was."""
Rounds: TypeAlias = Mapping[int, Sequence[Moments]]
Counts: TypeAlias = Mapping[str, int]
"""How often, by milliseconds."""


def read_rounds(path: Path) -> Rounds:
    """What the timed engines wrote down, by stream."""
    return {int(stream): rounds for stream, rounds in json.loads(path.read_text()).items()}


def added_ms(pieces: Sequence[float], rounds: Sequence[Moments], *, skipped: int) -> list[float]:
    """For each round behind the first `skipped`, of which there is one at least, milliseconds.

    Pieces at 10.000 and 10.040 s, a guess that took 20 ms and a verdict that took 18 in between: 2 ms."""
    gaps = [later - earlier for earlier, later in pairwise(pieces)]
    taken = [guessed - asked + judged - sent for asked, guessed, sent, judged in rounds[1:]]
    return [(gap - took) * MILLISECONDS for gap, took in zip(gaps, taken, strict=True)][skipped - 1 :]


def first_added_ms(asked: float, pieces: Sequence[float], rounds: Sequence[Moments]) -> float:
    """Of the first piece: from the request, the openings at both engines with it."""
    began, guessed, sent, judged = rounds[0]
    return (pieces[0] - asked - (guessed - began) - (judged - sent)) * MILLISECONDS


def counted(values: Iterable[float]) -> dict[str, int]:
    """In order of the milliseconds."""
    counts = Counter(round(value, DIGITS) for value in values)
    return {f"{value:.{DIGITS}f}": counts[value] for value in sorted(counts)}


def percentile(counts: Counts, share: float) -> float:
    """The least value that so large a share does not exceed: of 1, 2, 3 and 4 ms, .5 gives 2; of nothing, no end."""
    needed = math.ceil(share * sum(counts.values()))
    for value, count in counts.items():
        needed -= count
        if needed <= 0:
            return float(value)
    return math.inf
