"""The confidence that an engine tells is the one that calibration describes: log-odds of the likeliest, in a byte."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.engines.confidence import confidence

rows = st.lists(st.floats(-20, 20), min_size=2, max_size=50)


def of_definition(row: list[float]) -> float:
    weights = [math.exp(logit - max(row)) for logit in row]
    largest = max(weights) / sum(weights)
    return 16 * (math.log(largest / max(1 - largest, 1e-300)) + 4)


@given(rows)
def test_it_is_the_rounded_log_odds_within_a_byte(row: list[float]) -> None:
    assert confidence(np.array(row)) == pytest.approx(min(max(of_definition(row), 0), 255), abs=0.51)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([0.0, 0.0], 64),
        ([0.0] * 1000, 0),
        ([5.0], 255),
        ([3.0, -math.inf, -math.inf], 255),
        ([40.0, 0.0], 255),
        ([math.inf, 0.0], 255),
        ([math.nan, 0.0], 255),
    ],
    ids=str,
)
def test_rows_at_the_ends_are_told_as_the_ends(row: list[float], told: int) -> None:
    assert confidence(np.array(row, np.float32)) == told
