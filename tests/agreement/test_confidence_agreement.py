"""The confidence that an engine tells is the one that calibration describes: a margin of scores, in a byte."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.noise import Salt, bits, gumbel, key
from tandem_runtime.domain.tokens import SamplingParameters, Verification
from tandem_runtime.engines.confidence import confidence

rows = st.lists(st.floats(-2, 2), min_size=2, max_size=50)
temperatures = st.sampled_from([0.0, 0.7, 1.0, 1.5])


def of_definition(row: list[float], asked: SamplingParameters, verification: Verification, position: int) -> float:
    scores = [logit / (asked.temperature or 1.0) for logit in row]
    if verification is Verification.COUPLED and asked.temperature:
        position_key = key(asked.seed, asked.choice, Salt.COUPLED, position)
        scores = [score + gumbel(bits(position_key, token)) for token, score in enumerate(scores)]
    second, best = sorted(scores)[-2:]
    return 64 * (best - second)


@given(rows, temperatures, st.sampled_from(Verification), st.integers(0, 2**64 - 1), st.integers(0, 99))
def test_it_is_the_margin_of_the_best_over_the_second(
    row: list[float], temperature: float, verification: Verification, seed: int, position: int
) -> None:
    asked = SamplingParameters(seed=seed, temperature=temperature)
    told = confidence(np.array(row), asked, verification=verification, position=position)
    assert told == pytest.approx(min(of_definition(row, asked, verification, position), 255), abs=0.51)


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "row", [[5.0], [3.0, -math.inf, -math.inf], [40.0, 0.0], [math.inf, 0.0], [math.inf] * 2, [math.nan, 0.0]], ids=str
)
def test_rows_without_a_second_token_or_without_numbers_are_told_as_sure(
    row: list[float], temperature: float, verification: Verification
) -> None:
    asked = SamplingParameters(seed=1, temperature=temperature)
    assert confidence(np.array(row, np.float32), asked, verification=verification, position=0) == 255


@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
def test_where_guesses_are_drawn_it_is_made_of_the_row_alone(verification: Verification) -> None:
    row = np.array([1.0, 0.5, 0.25])
    told = {
        confidence(row, SamplingParameters(seed=seed), verification=verification, position=position)
        for seed in range(8)
        for position in range(4)
    }
    assert told == {32}
