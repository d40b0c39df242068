"""Sampled output has the target's law, by every rule; a draft that lies about its law is found out.

The full sizes run by `make exactness`; here a law that is wrong by .1 in total variation would be seen.
"""

import pickle

import pytest
from tests.exactness.sampled_laws import Setup, controls, findings, looped_findings, setups
from tests.exactness.statistics_of_counts import (
    FALSE_ALARM,
    Finding,
    chi_square_tail,
    contradicted,
    judged,
    samples_for,
)

from tandem_runtime.domain.tokens import Stop, Verification

SAMPLES = samples_for(16, distance=0.1)
QUICK_SHAPES = {
    Verification.COUPLED: {"top-p"},
    Verification.REJECTION: {"cold with bias", "min-p"},
    Verification.BLOCK: {"cold with bias", "min-p"},
}
QUICK = [setup for setup in setups() if setup.name in QUICK_SHAPES[setup.verification]]
TOLD_Q = [verification for verification in Verification if verification is not Verification.COUPLED]


@pytest.mark.parametrize("setup", QUICK, ids=str)
def test_one_and_two_tokens_have_the_targets_law(setup: Setup) -> None:
    assert contradicted(findings(setup, samples=SAMPLES), false_alarm=FALSE_ALARM / len(QUICK)) == []


@pytest.mark.parametrize("verification", TOLD_Q)
async def test_the_law_holds_through_driver_session_and_loops(verification: Verification) -> None:
    found = await looped_findings(verification, samples=SAMPLES)
    assert contradicted(found, false_alarm=FALSE_ALARM / len(QUICK)) == []


async def test_the_law_holds_where_drafting_ends_early() -> None:
    """Two tokens are asked for; each proposal ends behind its first, whatever that is."""
    found = await looped_findings(Verification.REJECTION, samples=SAMPLES, stop=Stop(0.5, (0.45,) * 16))
    assert contradicted(found, false_alarm=FALSE_ALARM / len(QUICK)) == []


@pytest.mark.parametrize("setup", controls(), ids=str)
def test_a_proposal_from_an_undeclared_law_is_found_out(setup: Setup) -> None:
    found = findings(setup, samples=SAMPLES)
    assert contradicted(found, false_alarm=FALSE_ALARM / len(QUICK))


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"), [(30.66, 3, 1e-6), (40.52, 7, 1e-6), (3.841, 1, 0.05), (5.991, 2, 0.05)]
)
def test_the_tail_of_chi_square_is_the_tables(statistic: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=0.01)


def test_holm_stops_at_the_first_p_value_that_is_large_enough() -> None:
    found = [Finding(name, p, 0.0, 2) for name, p in [("a", 0.04), ("b", 0.001), ("c", 0.02), ("d", 0.9)]]
    assert [finding.name for finding in contradicted(found, false_alarm=0.05)] == ["b"]


def test_a_count_where_the_law_has_no_mass_is_a_contradiction() -> None:
    assert judged("law", {0: 99, 1: 1}, {0: 1.0, 1: 0.0}).p_value == 0


def test_setups_can_go_to_other_processes() -> None:
    """As the command for the full size sends them."""
    assert [str(pickle.loads(pickle.dumps(setup))) for setup in (*setups(), *controls())]  # our own
