"""A draft that was always wrong and becomes good: how long it takes until somebody notices."""

from benchmarks.disable_latency import HOPELESS, trial

from tandem_runtime.domain.cells import LISTEN_TOKENS, LONGEST_REST


def test_a_draft_without_hope_that_becomes_good_proposes_again_within_the_longest_rest() -> None:
    back = [trial(number, HOPELESS).back_tokens for number in range(3)]
    assert max(back) <= LONGEST_REST + 8 * LISTEN_TOKENS, "one look, and what it takes to believe it"
    assert max(back) > LONGEST_REST // 4, "it was left alone for long"
