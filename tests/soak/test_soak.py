"""The soak for twenty seconds: every answer is right or says why not, whatever is killed meanwhile."""

from pathlib import Path

import pytest
from tests.soak.judging import Outcome
from tests.soak.soak import soak


@pytest.mark.timeout(300)
async def test_whatever_is_killed_every_answer_is_right_or_says_why_not(tmp_path: Path) -> None:
    report = await soak(tmp_path, seconds=20, seed=3)
    assert report.is_clean, str(report)
    assert report.outcomes[Outcome.RIGHT] >= 20, str(report)
    assert report.faults.total() >= 2, str(report)
