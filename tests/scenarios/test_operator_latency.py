"""How soon the operator switches speculation off, as `disable_latency` measures it."""

import pytest
from benchmarks.operator_latency import SLACK_SECONDS, WINDOW_SECONDS, off_after


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_collapse_of_acceptance_is_switched_off_within_the_window_and_five_seconds(seed: int) -> None:
    assert WINDOW_SECONDS / 2 < off_after(seed) <= WINDOW_SECONDS + SLACK_SECONDS
