"""What `rollback_latency` tells of its trials, and that its specs are ones the operator reads."""

from benchmarks.rollback_latency import FIRST, SECOND, figures

from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse


def test_of_thirty_trials_the_longest_is_told() -> None:
    trials = [{"posted_s": 0.1, "out_s": 0.01 * number} for number in range(1, 31)]
    assert figures({"trials": trials}) == {"trials": 30, "p99_s": 0.3, "p50_s": 0.155, "posted_s": 0.1}


def test_the_second_revision_is_another_target_that_waits_for_no_slot() -> None:
    first, second = (revision_of(parse(spec)) for spec in (FIRST, SECOND))
    assert first.target != second.target
    assert first.draft is second.draft is None
