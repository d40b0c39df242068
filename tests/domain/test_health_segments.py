"""Checks of segments and of stretches as tables: evidence in, verdict and numbers out."""

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import Boot, Evidence, begin
from tandem_operator.domain.health import Question, assess, record_lacks
from tandem_operator.domain.samples import BUCKETS, SEGMENT_BUCKETS, Buckets, Segment, Stratum, Waits
from tandem_operator.domain.segment_checks import REQUEST, judge
from tandem_operator.domain.spec import Analysis, InterTokenGate, SegmentGate, Temperature

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
GREEDY = SegmentGate(name="greedy", temperature=Temperature.GREEDY)
HOT = SegmentGate(name="hot", temperature=Temperature.HOT)
RULES = Analysis(segments=(GREEDY, HOT))
STUTTERS = Analysis(inter_token_latency=InterTokenGate(max_p99_increase_basis_points=2500))

Rate = tuple[int, float]
"""So many requests, and the share of 20 examined tokens each that were accepted."""


def rows(requests: int, rate: float, buckets: int, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chance = random.Random(seed)
    accepted, examined = [0] * buckets, [0] * buckets
    for _ in range(requests):
        bucket = chance.randrange(buckets)
        accepted[bucket] += sum(chance.random() < rate for _ in range(20))
        examined[bucket] += 20
    return tuple(accepted), tuple(examined)


def with_segments(canary: Mapping[str, Rate], stable: Mapping[str, Rate], *, apart: bool = False) -> Evidence:
    """The segments of both revisions, under one policy, or each under its own; 2,000 requests of stable in all."""
    strata = []
    for policy, (name, held) in enumerate((("canary", canary), ("stable", stable))):
        accepted, examined = rows(2000, 0.8, BUCKETS, 7)
        whole = Buckets(accepted, examined, tuple(tokens // 20 for tokens in examined))
        segments = {each: Segment(*rows(*known, SEGMENT_BUCKETS, policy)) for each, known in held.items()}
        number = 2 - policy if apart else 1
        strata.append(Stratum(policy=number, revision=name, acceptance=whole, segments=segments))
    return replace(begin("canary", "stable", since=1, now=NOW), boots={"x": Boot(pod="a", strata=tuple(strata))})


def result(name: str, evidence: Evidence, rules: Analysis, **more: object) -> CheckResult:
    asked = replace(Question(analysis=rules, evidence=evidence, target="t"), **more)  # type: ignore[arg-type] # by name
    return next(found for found in assess(asked) if found.name == name)


GOOD, POOR, FEW, NONE = (800, 0.8), (800, 0.5), (10, 0.8), (0, 0.0)
CASES = [
    ({}, {}, "greedy", CheckVerdict.NO_DATA, "have not counted"),
    ({"greedy": GOOD}, {"greedy": GOOD}, "hot", CheckVerdict.NO_DATA, "segment hot of the canary yet"),
    ({"greedy": GOOD, "hot": GOOD}, {"greedy": GOOD, "hot": GOOD}, None, CheckVerdict.PASS, "not worse"),
    ({"greedy": GOOD, "hot": POOR}, {"greedy": GOOD, "hot": GOOD}, "hot", CheckVerdict.FAIL, "worse than stable"),
    ({"greedy": POOR, "hot": GOOD}, {"greedy": GOOD, "hot": GOOD}, "greedy", CheckVerdict.FAIL, "worse than stable"),
    ({"greedy": GOOD, "hot": FEW}, {"greedy": GOOD, "hot": GOOD}, "hot", CheckVerdict.INCONCLUSIVE, "too few"),
    ({"greedy": GOOD, "hot": FEW}, {"greedy": GOOD, "hot": FEW}, "greedy", CheckVerdict.PASS, "too thin to count: hot"),
    ({"greedy": GOOD, "hot": NONE}, {"greedy": GOOD, "hot": NONE}, "greedy", CheckVerdict.PASS, "to count: hot"),
    ({"greedy": GOOD, "hot": NONE}, {"greedy": GOOD}, "hot", CheckVerdict.NO_DATA, "segment hot of stable yet"),
    ({"greedy": FEW, "hot": FEW}, {"greedy": FEW, "hot": FEW}, None, CheckVerdict.NOT_COMPARED, "less than one in a"),
]


@pytest.mark.parametrize(("canary", "stable", "segment", "verdict", "message"), CASES)
def test_the_worst_segment_is_told_by_its_name(
    canary: Mapping[str, Rate], stable: Mapping[str, Rate], segment: str | None, verdict: CheckVerdict, message: str
) -> None:
    found = result("segments", with_segments(canary, stable), RULES)
    assert (found.verdict, message in found.message) == (verdict, True), found
    assert segment in (None, found.segment)


def test_a_segment_shows_its_loss_with_its_interval_and_how_much_it_rests_on() -> None:
    evidence = with_segments({"greedy": GOOD, "hot": POOR}, {"greedy": GOOD, "hot": GOOD})
    found = result("segments", evidence, RULES)
    assert (found.title, found.threshold) == ("segments (hot)", "> -0.100")
    assert found.samples == "16000 examined tokens, stable 16000"
    assert float(found.low) < float(found.value) < float(found.high) < -0.2


def test_what_stable_did_before_a_policy_named_a_segment_makes_that_no_thinner() -> None:
    evidence = with_segments({"greedy": FEW, "hot": FEW}, {"greedy": (60, 0.8), "hot": FEW})
    stable = evidence.strata("stable")[1]
    crowd = Buckets(*((1000,) * BUCKETS for _ in range(3)))
    before = Stratum(policy=0, revision="stable", acceptance=crowd)
    known = replace(evidence, since=0, ended=(before,))
    assert sum(stable.segments["greedy"].examined) < 0.01 * sum(crowd.examined)
    assert result("segments", known, RULES).title == "segments (greedy)"
    assert result("segments", known, RULES).verdict is CheckVerdict.INCONCLUSIVE


def test_more_segments_are_each_judged_more_carefully() -> None:
    evidence = with_segments({"greedy": GOOD}, {"greedy": GOOD})
    alone = result("segments", evidence, Analysis(segments=(GREEDY,)))
    others = tuple(replace(GREEDY, name=f"other{index}") for index in range(15))
    among = with_segments(
        {"greedy": GOOD, **{each.name: FEW for each in others}}, {"greedy": GOOD, **{each.name: FEW for each in others}}
    )
    found = result("segments", among, Analysis(segments=(GREEDY, *others)))
    assert (alone.segment, found.segment, alone.value) == ("greedy", "greedy", found.value)
    assert float(found.low) < float(alone.low) < float(alone.high) < float(found.high)


def test_a_canary_in_place_is_held_against_what_stable_did_in_the_segment_before() -> None:
    evidence = with_segments({"greedy": GOOD, "hot": POOR}, {"greedy": GOOD, "hot": GOOD}, apart=True)
    assert result("segments", evidence, RULES).verdict is CheckVerdict.INCONCLUSIVE
    assert result("segments", evidence, RULES, in_turn=True).title == "segments (hot)"
    assert result("segments", evidence, RULES, in_turn=True).verdict is CheckVerdict.FAIL


@pytest.mark.parametrize(
    ("stable", "lacks"), [({"greedy": GOOD, "hot": FEW}, False), ({"greedy": GOOD, "hot": (35, 0.8)}, True)]
)
def test_a_segment_of_stable_that_is_not_thin_is_part_of_its_record(stable: Mapping[str, Rate], lacks: bool) -> None:
    known = with_segments({}, stable)
    strata = tuple(replace(held, requests=500) for held in known.strata("stable").values())
    served = replace(known, boots={"x": Boot(pod="a", strata=strata)})
    question = Question(analysis=RULES, evidence=served, target="t", in_turn=True, shares_target=False)
    assert ("segment hot" in record_lacks(question)) is lacks


@pytest.mark.parametrize("counted", [{}, {"greedy": FEW}])
def test_a_segment_that_was_hardly_looked_for_yet_is_not_taken_for_a_thin_one(counted: Mapping[str, Rate]) -> None:
    """A policy names it for some seconds only: stable's draft went, and the canary was never judged in it."""
    known = with_segments({}, counted)
    (stable,) = known.strata("stable").values()
    assert stable.acceptance is not None
    young = replace(stable, policy=2, acceptance=Buckets(stable.acceptance.accepted, stable.acceptance.examined))
    served = replace(known, boots={"x": Boot(pod="a", strata=(replace(stable, requests=500, segments={}), young))})
    question = Question(
        analysis=Analysis(segments=(GREEDY,)), evidence=served, target="t", in_turn=True, shares_target=False
    )
    words = "segment greedy of revision stable was looked for in 0 of the 100 requests that tell how thin it is"
    assert record_lacks(question) == words


SIDE_BY_SIDE = {"shares_target": False}


@pytest.mark.parametrize(
    ("more", "requests", "told"),
    [(SIDE_BY_SIDE, 2000, True), (SIDE_BY_SIDE, 60, False), ({}, 2000, False)],
    ids=["sessions", "too soon to say", "requests"],
)
def test_a_segment_of_a_few_sessions_says_that_it_may_never_have_enough(
    more: Mapping[str, bool], requests: int, told: bool
) -> None:
    evidence = with_segments({"greedy": FEW, "hot": GOOD}, {"greedy": GOOD, "hot": GOOD})
    canary = evidence.strata("canary")[1]
    assert canary.acceptance is not None
    asked = replace(canary, acceptance=replace(canary.acceptance, requests=(requests, *(0,) * (BUCKETS - 1))))
    strata = (asked, evidence.strata("stable")[1])
    found = result("segments", replace(evidence, boots={"x": Boot(pod="a", strata=strata)}), RULES, **more)
    assert (found.verdict, found.segment) == (CheckVerdict.INCONCLUSIVE, "greedy")
    assert "they fill 10 buckets, and 32 must be filled" in found.message
    assert ("leave it out of canary.analysis.segments" in found.message) is told, found.message


def test_checks_that_nobody_asks_for_take_no_certainty_from_the_others() -> None:
    plain = Question(analysis=Analysis(), evidence=None, target="t").alpha
    assert Question(analysis=RULES, evidence=None, target="t").alpha == pytest.approx(plain * 6.25 / 7.25)
    both = replace(RULES, inter_token_latency=STUTTERS.inter_token_latency)
    assert Question(analysis=both, evidence=None, target="t").alpha == pytest.approx(plain * 6.25 / 8.25)


def spread(count: int, slow: int, seed: int) -> Waits:
    """So many stretches over the buckets, of which some are slow."""
    chance = random.Random(seed)
    late, all_of = [0] * BUCKETS, [0] * BUCKETS
    for turn in range(count):
        bucket = chance.randrange(BUCKETS)
        all_of[bucket] += 1
        late[bucket] += turn < slow
    return Waits(tuple(late), tuple(all_of))


def with_stretches(canary: Waits | None, stable: Waits | None) -> Evidence:
    strata = [
        Stratum(policy=1, revision=name, stretches=held) for name, held in (("canary", canary), ("stable", stable))
    ]
    return replace(begin("canary", "stable", since=1, now=NOW), boots={"x": Boot(pod="a", strata=tuple(strata))})


@pytest.mark.parametrize(
    ("canary", "stable", "verdict", "message"),
    [
        (None, None, CheckVerdict.NO_DATA, "needs 500 stretches of 32 tokens"),
        (spread(400, 0, 1), spread(9000, 9, 2), CheckVerdict.INCONCLUSIVE, "needs 500 timed stretches"),
        (spread(6000, 6, 1), spread(9000, 9, 2), CheckVerdict.PASS, "not worse"),
        (spread(6000, 300, 1), spread(9000, 9, 2), CheckVerdict.FAIL, "worse than"),
        (spread(60_000, 3000, 1), spread(90_000, 4500, 2), CheckVerdict.PASS, "not worse"),
        (spread(1000, 9, 1), spread(9000, 9, 2), CheckVerdict.INCONCLUSIVE, "wide"),
    ],
)
def test_stretches_beyond_stables_slowest_are_judged_by_their_share(
    canary: Waits | None, stable: Waits | None, verdict: CheckVerdict, message: str
) -> None:
    found = result("interTokenLatency", with_stretches(canary, stable), STUTTERS)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(("tokens", "requests", "told"), [(2400, 200, True), (2400, 60, False), (20_000, 200, False)])
def test_a_bound_on_stutter_beside_short_answers_says_that_they_hold_no_stretch(
    tokens: int, requests: int, told: bool
) -> None:
    strata = [Stratum(policy=1, revision=name, requests=requests, emitted=tokens) for name in ("canary", "stable")]
    evidence = replace(begin("canary", "stable", since=1, now=NOW), boots={"x": Boot(pod="a", strata=tuple(strata))})
    found = result("interTokenLatency", evidence, STUTTERS)
    assert (found.verdict, "leave canary.analysis.interTokenLatency out" in found.message) == (
        CheckVerdict.NO_DATA,
        told,
    )
    assert ("stable's answers have 12 tokens on the average" in found.message) is told


@pytest.mark.parametrize("rules", [RULES, STUTTERS])
def test_neither_is_asked_while_nobody_is_served_nor_compared_where_stable_decodes_plainly(rules: Analysis) -> None:
    evidence = with_segments({"greedy": GOOD, "hot": POOR}, {"greedy": GOOD, "hot": GOOD})
    new = {"segments", "interTokenLatency"}
    question = Question(analysis=rules, evidence=evidence, target="t")
    assert not new & {found.name for found in assess(replace(question, shadow=True))}
    silent = [found for found in assess(replace(question, silence="it has no draft")) if found.name in new]
    assert [found.verdict for found in silent] == [CheckVerdict.NOT_COMPARED]


def grown(held: Segment, chance: random.Random, rate: float, requests: int) -> Segment:
    """A few requests more, which differ by more than their tokens do."""
    accepted, examined = list(held.accepted), list(held.examined)
    for _ in range(requests):
        bucket, own = chance.randrange(SEGMENT_BUCKETS), min(max(chance.gauss(rate, 0.1), 0.0), 1.0)
        accepted[bucket] += sum(chance.random() < own for _ in range(20))
        examined[bucket] += 20
    return Segment(tuple(accepted), tuple(examined))


def refusal(seed: int, rates: Mapping[str, float], *, looks: int = 15) -> str | None:
    """The segment by which a canary is refused that has these rates, beside a stable with .7 in each; None: none."""
    chance, gates = random.Random(seed), tuple(SegmentGate(name=name) for name in rates)
    known = {name: (Segment(), Segment()) for name in rates}
    for _ in range(looks):
        known = {
            name: (grown(canary, chance, rates[name], 15), grown(stable, chance, 0.7, 30))
            for name, (canary, stable) in known.items()
        }
        strata = [
            Stratum(policy=1, revision=revision, segments={name: both[index] for name, both in known.items()})
            for index, revision in enumerate(("canary", "stable"))
        ]
        found = judge(
            replace(begin("canary", "stable", since=1, now=NOW), boots={"x": Boot(pod="a", strata=tuple(strata))}),
            Analysis(segments=gates),
            0.05 / 7,
            unit=REQUEST,
            in_turn=False,
        )
        if found.verdict is CheckVerdict.FAIL:
            return found.segment
    return None


def test_equal_canaries_are_hardly_ever_refused_for_one_of_eight_segments_looked_at_often() -> None:
    rates = {f"segment{index}": 0.7 for index in range(8)}
    assert sum(refusal(seed, rates) is not None for seed in range(40)) <= 1


def test_a_canary_that_is_bad_in_one_of_eight_segments_is_refused_by_that_one() -> None:
    rates = {f"segment{index}": 0.75 for index in range(8)} | {"segment5": 0.5}
    assert [refusal(seed, rates) for seed in range(20)] == ["segment5"] * 20
