"""The certificate of a near tie: what it explains, what it refuses, and how many it allows."""

import math

import pytest

from tandem_runtime.domain.certificate import (
    Calibration,
    Certificate,
    Doubt,
    Lead,
    Split,
    calibrate,
    certify,
    doubt,
    first_split,
    lead,
)
from tandem_runtime.domain.sampling import coupled_choice, greedy_choice
from tandem_runtime.domain.tokens import SamplingParameters

GREEDY = SamplingParameters(seed=1, temperature=0.0)

ROW, OTHER = [0.0, 1.0, 0.99], [0.0, 1.0, 1.01]

SPLITS: dict[str, tuple[Split, Doubt | None]] = {
    "a near tie": (Split(4, 1, 2, ROW, OTHER, ROW), None),
    "a token that the plain row does not give": (Split(4, 0, 2, ROW, OTHER, ROW), Doubt.PLAIN_ROW),
    "a token that the verified row does not give": (Split(4, 1, 2, ROW, [0.0, 1.0, 0.98], ROW), Doubt.VERIFIED_ROW),
    "a verified row of another context, near tie or not": (
        Split(4, 1, 2, ROW, [0.5, 1.0, 1.01], ROW),
        Doubt.DIFFERENCE,
    ),
    "a plain row of another context": (Split(4, 1, 2, [0.5, 1.0, 0.99], OTHER, ROW), Doubt.DIFFERENCE),
    "two rows with one fault": (Split(4, 1, 2, ROW, OTHER, [0.5, 1.0, 1.0]), Doubt.DIFFERENCE),
    "a row that is no number": (Split(4, 1, 2, [math.nan, 1.0, 0.99], OTHER, ROW), Doubt.DIFFERENCE),
    "forbidden tokens do not differ": (
        Split(4, 1, 2, [-math.inf, 1.0, 0.99], [-math.inf, 1.0, 1.01], [-math.inf, 1.0, 1.0]),
        None,
    ),
    "a token forbidden on one side does": (Split(4, 1, 2, [-math.inf, 1.0, 0.99], OTHER, ROW), Doubt.DIFFERENCE),
}


def greedy(row: object) -> int:
    assert isinstance(row, list)
    return greedy_choice([-math.inf if math.isnan(logit) else logit for logit in row])


@pytest.mark.parametrize(("split", "expected"), SPLITS.values(), ids=SPLITS.keys())
def test_a_split_is_explained_or_doubted_for_a_reason(split: Split, expected: Doubt | None) -> None:
    assert doubt(split, choose=greedy, bound=0.1) is expected


@pytest.mark.parametrize(
    ("plain", "verified", "expected"),
    [((5, 3, 1), (5, 3, 2), 2), ((5,), (5,), None), ((), (), None), ((1, 2), (1,), None), ((0, 2), (1, 2), 0)],
)
def test_the_first_split_is_where_two_texts_part(
    plain: tuple[int, ...], verified: tuple[int, ...], expected: int | None
) -> None:
    assert first_split(plain, verified) == expected


@pytest.mark.parametrize(
    ("rate", "positions", "allowed"),
    [(0.0, 10**6, 0), (1e-9, 1000, 0), (0.001, 1000, 9), (0.01, 1000, 28), (1.0, 10_000, 10_500)],
)
def test_no_more_near_ties_are_allowed_than_their_rate_predicts(rate: float, positions: int, allowed: int) -> None:
    judged = certify([(3, None)] * allowed, positions=positions, calibration=Calibration(bound=1.0, rate=rate))
    assert judged == Certificate(positions=positions, near_ties=allowed, allowed=allowed, unexplained=())
    assert judged.holds
    more = certify([(3, None)] * (allowed + 1), positions=positions, calibration=Calibration(bound=1.0, rate=rate))
    assert not more.holds


def test_one_doubt_is_enough() -> None:
    judged = certify([(3, None), (7, Doubt.DIFFERENCE)], positions=100, calibration=Calibration(bound=1.0, rate=0.1))
    assert judged.unexplained == ((7, Doubt.DIFFERENCE),)
    assert not judged.holds


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_the_lead_is_by_how_much_a_logit_must_fall_for_the_choice_to_change(temperature: float) -> None:
    row = [0.0, 1.5, 1.25, -3.0]
    asked = SamplingParameters(seed=5, temperature=temperature)
    for position in range(20):
        found = lead(row, asked, position)
        assert coupled_choice(row, asked, position) == found.first
        for by, expected in ((found.gap - 1e-9, found.first), (found.gap + 1e-9, found.second)):
            lowered = [logit - by * (token == found.first) for token, logit in enumerate(row)]
            assert coupled_choice(lowered, asked, position) == expected


def test_an_exact_tie_leads_by_nothing() -> None:
    assert lead([1.0, 3.0, 3.0], GREEDY, 0) == Lead(1, 2, 0.0)


def test_calibration_of_equal_rows_allows_nothing() -> None:
    assert calibrate([([0.0, 1.0], [0.0, 1.0])] * 5, GREEDY) == Calibration(bound=0.0, rate=0.0)


def test_calibration_takes_the_rate_from_the_density_of_small_gaps() -> None:
    """Gaps .1, .2, ..., 10: ten of 100 lie within 1, so f = .1; rounding changes each by .05, so E|e| = .05."""
    pairs = [([gap / 10, 0.0], [gap / 10 + (-1) ** gap * 0.05, 0.0]) for gap in range(1, 101)]
    found = calibrate(pairs, GREEDY)
    assert found.bound == pytest.approx(0.1)
    assert found.rate == pytest.approx(0.1 * 0.05)
