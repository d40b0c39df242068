"""Checks as a table: evidence in, verdict and numbers out. C33 (Flagger #1035) brings its own figures."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import ArmSums, Boot, Evidence, SharedSums, begin
from tandem_operator.domain.health import CHECKS, NEAR_TIES_PART, Question, assess, worst
from tandem_operator.domain.intervals import ERROR_RATIOS, PairSums, SlotSums
from tandem_operator.domain.samples import BUCKETS, Arm, Buckets, Replayed, Shadow, Stratum, Waits
from tandem_operator.domain.spec import AcceptanceGate, Analysis, ErrorsGate, Exactness, FirstTokenGate, SpeedupGate

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RULES = Analysis(min_requests=1000, acceptance=AcceptanceGate(min_basis_points=8000))
NOTHING = begin("canary", "stable", since=1, now=NOW)


def mixed(requests: int, seed: int) -> Buckets:
    """Of 24 proposed tokens each: by turns 21 accepted with 1 rejection, and 15 accepted with 3."""
    chance = random.Random(seed)
    rows = [[0] * BUCKETS for _ in range(3)]
    for turn in range(requests):
        bucket = chance.randrange(BUCKETS)
        accepted, rejected = (21, 1) if turn % 2 == 0 else (15, 3)
        for row, more in zip(rows, (accepted, accepted + rejected, 1), strict=True):
            row[bucket] += more
    return Buckets(*(tuple(row) for row in rows))


def short_and_long(times: int, seed: int) -> Buckets:
    """C30 (slime PR 2240): seven requests with 1 accepted and 2 rejected, one with 900 and 50; so many times."""
    chance = random.Random(seed)
    rows = [[0] * BUCKETS for _ in range(3)]
    for accepted, rejected in ([(1, 2)] * 7 + [(900, 50)]) * times:
        bucket = chance.randrange(BUCKETS)
        for row, more in zip(rows, (accepted, accepted + rejected, 1), strict=True):
            row[bucket] += more
    return Buckets(*(tuple(row) for row in rows))


def plain(requests: int, rate: float, seed: int) -> Buckets:
    """Requests of 20 examined tokens with one acceptance."""
    chance = random.Random(seed)
    rows = [[0] * BUCKETS for _ in range(3)]
    for _ in range(requests):
        bucket = chance.randrange(BUCKETS)
        for row, more in zip(rows, (sum(chance.random() < rate for _ in range(20)), 20, 1), strict=True):
            row[bucket] += more
    return Buckets(*(tuple(row) for row in rows))


def with_acceptance(canary: Buckets | None, stable: Buckets | None, *, errors: tuple[int, int] = (0, 0)) -> Evidence:
    strata = []
    for name, held, failed in (("canary", canary, errors[0]), ("stable", stable, errors[1])):
        requests = 0 if held is None else sum(held.requests)
        strata.append(Stratum(policy=1, revision=name, requests=requests, errors=failed, acceptance=held))
    return replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))})


def with_slots(**slots: tuple[int, float]) -> Evidence:
    """Arms by name (`on`, `off`): count of slots and milliseconds per token."""
    named = {"on": ("canary", Arm.ON), "off": ("t", Arm.OFF)}
    held = []
    for name, (count, pace) in slots.items():
        sums = SlotSums()
        for number in range(count):
            sums = sums.plus(1000, round(1000 * pace * (0.97 if number % 2 else 1.03)))
        held.append(ArmSums(policy=1, of=named[name][0], arm=named[name][1], sums=sums))
    return replace(NOTHING, slots=tuple(held))


def with_shared_slots(count: int, *, canary: float, stable: float) -> Evidence:
    """Milliseconds per token of each in slots that both decoded in; they waver on their own."""
    sums = PairSums()
    for number in range(count):
        wavers = (0.97 if number % 2 else 1.03, 0.97 if number % 3 else 1.03)
        sums = sums.plus(*((1000, round(1000 * pace * by)) for pace, by in zip((stable, canary), wavers, strict=True)))
    return replace(NOTHING, together=(SharedSums(policy=1, sums=sums),))


def spread(count: int, share: float, seed: int) -> Waits:
    """So many requests over the buckets, of which this share is slow."""
    chance = random.Random(seed)
    rows = [[0] * BUCKETS for _ in range(2)]
    for turn in range(count):
        bucket = chance.randrange(BUCKETS)
        rows[1][bucket] += 1
        rows[0][bucket] += turn < count * share
    return Waits(*(tuple(row) for row in rows))


def with_waits(canary: Waits | None, stable: Waits | None) -> Evidence:
    strata = [Stratum(policy=1, revision=name, waits=held) for name, held in (("canary", canary), ("stable", stable))]
    return replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))})


def result(name: str, evidence: Evidence | None, rules: Analysis = RULES, **more: bool) -> CheckResult:
    asked = replace(Question(analysis=rules, evidence=evidence, target="t"), **more)  # type: ignore[arg-type] # flags
    return next(found for found in assess(asked) if found.name == name)


@pytest.mark.parametrize("seed", range(5))
def test_c33_acceptance_decides_at_the_thousandth_request_of_the_canary_and_not_before(seed: int) -> None:
    before = result("acceptance", with_acceptance(mixed(999, seed), mixed(8991, seed + 100)))
    assert (before.verdict, before.value, before.samples) == (CheckVerdict.INCONCLUSIVE, "0.900", "999 requests")
    assert before.message == "revision canary has 999 of the 1000 requests it needs"
    after = result("acceptance", with_acceptance(mixed(1000, seed), mixed(9000, seed + 100)))
    assert (after.verdict, after.value, after.samples) == (CheckVerdict.PASS, "0.900", "1000 requests")
    assert float(after.low) > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_c30_acceptance_is_pooled_over_tokens_and_not_averaged_over_requests(seed: int) -> None:
    """The average of ratios would be .410, below the floor."""
    rules = Analysis(min_requests=200, acceptance=AcceptanceGate(min_basis_points=9000))
    few = short_and_long(1, seed)
    assert (sum(few.accepted), sum(few.examined)) == (907, 971)
    held = result("acceptance", with_acceptance(few, few), rules)
    assert (held.verdict, held.value) == (CheckVerdict.INCONCLUSIVE, "0.934")
    many = with_acceptance(short_and_long(100, seed), short_and_long(100, seed + 100))
    floor, drop = (result(name, many, rules) for name in ("acceptance", "acceptanceDrop"))
    assert (floor.verdict, floor.value, drop.verdict) == (CheckVerdict.PASS, "0.934", CheckVerdict.PASS)
    assert float(floor.value) - float(floor.low) < 0.01


def test_c33_the_case_counts_as_it_says() -> None:
    held = mixed(999, 1)
    assert (sum(held.accepted), sum(held.examined)) == (17985, 19982)


CASES = [
    ("acceptance", with_acceptance(None, None), CheckVerdict.NO_DATA, "no acceptance sums of revision canary"),
    ("acceptance", with_acceptance(plain(1200, 0.9, 1), None), CheckVerdict.PASS, "above the floor"),
    ("acceptance", with_acceptance(plain(1200, 0.8, 1), None), CheckVerdict.INCONCLUSIVE, "contains the floor"),
    ("acceptance", with_acceptance(plain(1200, 0.7, 1), None), CheckVerdict.FAIL, "below the floor"),
    ("acceptanceDrop", with_acceptance(plain(1200, 0.9, 1), None), CheckVerdict.NO_DATA, "of revision stable"),
    (
        "acceptanceDrop",
        with_acceptance(plain(1200, 0.9, 1), plain(500, 0.9, 2)),
        CheckVerdict.INCONCLUSIVE,
        "500 of the 1000",
    ),
    ("acceptanceDrop", with_acceptance(plain(2000, 0.9, 1), plain(4000, 0.9, 2)), CheckVerdict.PASS, "not worse"),
    (
        "acceptanceDrop",
        with_acceptance(plain(2000, 0.8, 1), plain(4000, 0.9, 2)),
        CheckVerdict.FAIL,
        "worse than stable",
    ),
    ("acceptanceDrop", with_acceptance(plain(2000, 0.85, 1), plain(2000, 0.9, 2)), CheckVerdict.FAIL, "by the margin"),
    ("speedup", NOTHING, CheckVerdict.NO_DATA, "no closed slots"),
    ("speedup", with_slots(on=(7, 10), off=(20, 20)), CheckVerdict.INCONCLUSIVE, "needs 8 slots"),
    ("speedup", with_slots(on=(20, 10), off=(20, 20)), CheckVerdict.PASS, "above the floor"),
    ("speedup", with_slots(on=(20, 20), off=(20, 20)), CheckVerdict.INCONCLUSIVE, "contains the floor"),
    ("speedup", with_slots(on=(20, 22), off=(20, 20)), CheckVerdict.FAIL, "below the floor"),
    ("speedupDrop", NOTHING, CheckVerdict.NO_DATA, "in which both revisions decoded"),
    (
        "speedupDrop",
        with_shared_slots(7, canary=12, stable=10),
        CheckVerdict.INCONCLUSIVE,
        "needs 8 slots in which both",
    ),
    ("speedupDrop", with_shared_slots(30, canary=10, stable=10), CheckVerdict.PASS, "not worse"),
    ("speedupDrop", with_shared_slots(30, canary=12, stable=10), CheckVerdict.FAIL, "worse than stable"),
    ("timeToFirstToken", with_waits(Waits(), Waits()), CheckVerdict.NO_DATA, "needs 50 timed requests of stable"),
    (
        "timeToFirstToken",
        with_waits(spread(999, 0.05, 1), spread(5000, 0.05, 2)),
        CheckVerdict.INCONCLUSIVE,
        "each revision needs 1000 timed requests",
    ),
    ("timeToFirstToken", with_waits(spread(1000, 0.05, 1), spread(5000, 0.05, 2)), CheckVerdict.PASS, "not worse"),
    ("timeToFirstToken", with_waits(spread(1000, 0.0, 1), spread(5000, 0.1, 2)), CheckVerdict.PASS, "not worse"),
    ("timeToFirstToken", with_waits(spread(1000, 0.15, 1), spread(5000, 0.05, 2)), CheckVerdict.FAIL, "worse than"),
    ("timeToFirstToken", with_waits(spread(1000, 0.07, 1), spread(5000, 0.05, 2)), CheckVerdict.INCONCLUSIVE, "wide"),
    ("errors", NOTHING, CheckVerdict.NO_DATA, "no requests of both"),
    ("errors", with_acceptance(plain(500, 0.9, 1), plain(2000, 0.9, 1)), CheckVerdict.INCONCLUSIVE, "each needs 1000"),
    ("errors", with_acceptance(plain(1500, 0.9, 1), plain(2000, 0.9, 1)), CheckVerdict.PASS, "within"),
    (
        "errors",
        with_acceptance(plain(1500, 0.9, 1), plain(2000, 0.9, 1), errors=(30, 1)),
        CheckVerdict.INCONCLUSIVE,
        "chance may do it",
    ),
]


@pytest.mark.parametrize(
    ("name", "evidence", "verdict", "message"), CASES, ids=[f"{c[0]}-{c[2]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_check_says_what_its_evidence_shows(
    name: str, evidence: Evidence, verdict: CheckVerdict, message: str
) -> None:
    found = result(name, evidence)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_errors_fail_before_the_least_number_of_requests() -> None:
    few = with_acceptance(plain(200, 0.9, 1), plain(900, 0.9, 1), errors=(20, 0))
    found = result("errors", replace(few, errors=(9.0,) * len(ERROR_RATIOS)))
    assert (found.verdict, found.value, found.samples) == (
        CheckVerdict.FAIL,
        "0.1000",
        "20/200 against 0/900 requests",
    )


def test_more_errors_within_what_is_allowed_do_not_fail() -> None:
    held = replace(with_acceptance(plain(1500, 0.9, 1), plain(2000, 0.9, 1), errors=(30, 1)), errors=(9.0,) * 6)
    assert result("errors", held, replace(RULES, errors=ErrorsGate(max_increase_basis_points=300))).verdict == "Pass"


def test_a_speed_up_shows_its_interval_as_ratios() -> None:
    found = result(
        "speedup", with_slots(on=(20, 10), off=(20, 20)), replace(RULES, speedup=SpeedupGate(min_basis_points=10300))
    )
    assert found.value == "2.000"
    assert float(found.low) < 2 < float(found.high)
    assert (found.threshold, found.samples) == (">= 1.030", "20 on + 20 off slots")


def test_more_slow_requests_are_shown_as_a_rise_with_its_interval() -> None:
    found = result("timeToFirstToken", with_waits(spread(2000, 0.2, 1), spread(4000, 0.05, 2)))
    assert (found.value, found.threshold, found.samples) == (
        "0.150",
        "< 0.050 more than stable",
        "2000 requests, stable 4000 requests",
    )
    assert 0.05 < float(found.low) < 0.15 < float(found.high) < 0.25


def test_first_tokens_are_compared_where_gateways_time_them_and_a_bound_is_set() -> None:
    held = with_waits(spread(1000, 0.9, 1), spread(5000, 0.05, 2))
    boundless = replace(RULES, time_to_first_token=FirstTokenGate(max_slow_share_increase_basis_points=10_000))
    names = {
        name: [
            found.name for found in assess(replace(Question(analysis=rules, evidence=each, target="t"), shadow=shadow))
        ]
        for name, rules, each, shadow in (
            ("timed", RULES, held, False),
            ("shadow", RULES, held, True),
            ("without bound", boundless, held, False),
            ("not timed", RULES, with_waits(None, None), False),
        )
    }
    assert [name for name, found in names.items() if "timeToFirstToken" in found] == ["timed"]


def test_slots_in_which_stable_proposed_nothing_say_nothing_of_a_drop_in_speed() -> None:
    """Beside plain rows the canary looks faster than it is beside stable's own proposals."""
    flattering, sober = (with_shared_slots(30, canary=10, stable=pace).together[0] for pace in (20, 9))
    strata = (
        Stratum(policy=1, revision="stable", rounds=9000, speculating=800),
        Stratum(policy=2, revision="stable", rounds=9000, speculating=8000),
    )
    evidence = replace(
        NOTHING, boots={"x": Boot(pod="a", strata=strata)}, together=(flattering, replace(sober, policy=2))
    )
    found = result("speedupDrop", evidence)
    assert (found.verdict, found.samples) == (CheckVerdict.FAIL, "30 slots of both")


def test_strata_are_compared_with_themselves_only() -> None:
    """Load drifts and so do shares: pooled, the canary would look worse by nine points; within strata it is equal."""
    strata = []
    for policy, rate, sizes in ((1, 0.9, (300, 5000)), (2, 0.8, (3000, 3000))):
        for name, size in zip(("canary", "stable"), sizes, strict=True):
            held = plain(size, rate, policy * 10 + size)
            strata.append(Stratum(policy=policy, revision=name, requests=size, acceptance=held))
    evidence = replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))})
    found = result("acceptanceDrop", evidence)
    assert (found.verdict, abs(float(found.value)) < 0.01) == (CheckVerdict.PASS, True)


def test_a_shadow_step_judges_scored_tokens_only() -> None:
    held = plain(400, 0.2, 3)
    shadow = Stratum(policy=1, revision="canary", shadow=Shadow(held.accepted, held.examined))
    stable = Stratum(policy=1, revision="stable", requests=2000, acceptance=plain(2000, 0.9, 4))
    evidence = replace(NOTHING, boots={"x": Boot(pod="a", strata=(shadow, stable))})
    found = assess(Question(analysis=RULES, evidence=evidence, target="t", shadow=True))
    assert [(check.name, check.verdict) for check in found] == [
        ("acceptance", CheckVerdict.FAIL),
        ("acceptanceDrop", CheckVerdict.FAIL),
    ]
    assert found[0].samples == "8000 scored tokens"


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ({}, ["acceptance", "acceptanceDrop", "speedup", "speedupDrop", "errors"]),
        ({"shares_target": False}, ["acceptance", "acceptanceDrop", "speedup", "errors"]),
        ({"floor_decides": False}, ["acceptance", "acceptanceDrop", "speedupDrop", "errors"]),
        ({"speculates": False}, ["errors"]),
    ],
)
def test_a_check_is_asked_where_it_means_something(question: dict[str, bool], names: list[str]) -> None:
    asked = replace(Question(analysis=RULES, evidence=NOTHING, target="t"), **question)  # type: ignore[arg-type] # flags
    assert [found.name for found in assess(asked)] == names


def test_a_drop_against_a_stable_that_is_silent_is_not_compared_and_says_what_decides() -> None:
    held = with_acceptance(plain(2000, 0.9, 1), plain(4000, 0.5, 2))
    asked = Question(analysis=RULES, evidence=held, target="t", silence="RuntimeAtZero: K = 0 in 98% of 900 rounds")
    found = {check.name: check for check in assess(asked)}
    told = (
        "stable does not speculate (RuntimeAtZero: K = 0 in 98% of 900 rounds), so there is nothing to lose against "
        "it; the floors and plain decoding in off slots decide"
    )
    assert found["acceptanceDrop"] == CheckResult(
        name="acceptanceDrop", verdict=CheckVerdict.NOT_COMPARED, message=told
    )
    early = {check.name: check for check in assess(replace(asked, floor_decides=False))}
    assert early["speedupDrop"] == replace(found["acceptanceDrop"], name="speedupDrop")
    assert (found["acceptance"].verdict, found["speedup"].verdict) == ("Pass", "NoData")
    shadow = assess(replace(asked, shadow=True))
    assert [(check.name, check.verdict) for check in shadow] == [
        ("acceptance", "NoData"),
        ("acceptanceDrop", "NotCompared"),
    ]
    deaf = {check.name: check.verdict for check in assess(replace(asked, reachable=False))}
    assert (deaf["acceptance"], deaf["acceptanceDrop"]) == ("ProviderError", "NotCompared")


def beside_plain_rows(
    count: int, *, canary: float, everybody: float, speculating: int = 0, policy: int = 1, plain_rows: int = 1000
) -> Evidence:
    """Milliseconds per token in on slots, against 20 in off slots, while stable proposes in so many of 9000 rounds."""
    stratum = Stratum(policy=policy, revision="stable", rounds=9000, speculating=speculating)
    alone, together = with_slots(on=(count, canary), off=(count, 20)), SlotSums()
    for number in range(count):
        tokens = 1000 + plain_rows
        together = together.plus(tokens, round(tokens * everybody * (0.97 if number % 2 else 1.03)))
    all_of_them = ArmSums(policy=1, of="t", arm=Arm.BESIDE, sums=together)
    slots = tuple(replace(held, policy=policy) for held in (*alone.slots, all_of_them))
    return replace(alone, slots=slots, boots={"x": Boot(pod="a", strata=(stratum,))})


@pytest.mark.parametrize(
    ("evidence", "verdict", "words"),
    [
        (beside_plain_rows(60, canary=16, everybody=18), CheckVerdict.PASS, "not worse than stable by the margin"),
        (beside_plain_rows(60, canary=17.5, everybody=23), CheckVerdict.FAIL, "worse than stable"),
        (beside_plain_rows(9, canary=17.5, everybody=20.5), CheckVerdict.INCONCLUSIVE, "too wide for the margin"),
        (beside_plain_rows(7, canary=16, everybody=18), CheckVerdict.INCONCLUSIVE, "and has 7 on + 7 off slots"),
        (
            beside_plain_rows(60, canary=16, everybody=18, speculating=9000),
            CheckVerdict.INCONCLUSIVE,
            "and has 0 on + 0 off slots",
        ),
        # A gateway that does not list plain rows
        (
            beside_plain_rows(60, canary=16, everybody=16, plain_rows=0),
            CheckVerdict.INCONCLUSIVE,
            "and has 0 on + 0 off slots",
        ),
        # Stable has no share, and the canary's rows are all
        (
            replace(beside_plain_rows(60, canary=16, everybody=16, plain_rows=0), boots={}),
            CheckVerdict.PASS,
            "not worse than stable by the margin",
        ),
    ],
)
def test_beside_a_silent_stable_all_decoding_together_must_not_become_slower_than_plain(
    evidence: Evidence, verdict: CheckVerdict, words: str
) -> None:
    """The second canary reads 1.14 for itself, and makes everybody slower by 13 %."""
    asked = Question(analysis=RULES, evidence=evidence, target="t", silence="RuntimeAtZero: in numbers")
    found = next(check for check in assess(asked) if check.name == "speedupDrop")
    assert (found.verdict, found.threshold) == (verdict, "> 0.950 of plain decoding")
    assert words in found.message
    assert "stable decodes plainly (RuntimeAtZero: in numbers)" in found.message or found.samples in found.message


def test_slots_from_before_the_canary_had_its_part_do_not_hide_that_it_slows_plain_rows() -> None:
    """With a tenth of the traffic it costs the others little, and such a step may last for long."""
    few, half = (
        beside_plain_rows(600, canary=11, everybody=20.4),
        beside_plain_rows(40, canary=17, everybody=23, policy=2),
    )
    boots = {"x": Boot(pod="a", strata=(*few.boots["x"].strata, *half.boots["x"].strata))}
    evidence = replace(few, slots=(*few.slots, *half.slots), boots=boots)
    asked = Question(analysis=RULES, evidence=evidence, target="t", silence="RuntimeAtZero: in numbers")
    verdicts = []
    for deciding in (None, frozenset({2})):
        found = {check.name: check for check in assess(replace(asked, deciding=deciding))}
        verdicts.append((found["speedupDrop"].verdict, found["speedupDrop"].samples))
    assert verdicts == [("Pass", "640 on + 640 off slots"), ("Fail", "40 on + 40 off slots")]


@pytest.mark.parametrize(
    ("proposing", "acceptance", "words"),
    [
        (0, None, "no acceptance sums of revision canary yet; nothing was proposed in 100% of its 4000 rounds"),
        (40, plain(20, 0.9, 1), "20 of the 1000 requests it needs; nothing was proposed in 99% of its 4000 rounds"),
        (400, plain(20, 0.9, 1), "revision canary has 20 of the 1000 requests it needs"),
    ],
)
def test_a_canary_whose_runtime_proposes_nothing_is_waited_for_and_that_is_said(
    proposing: int, acceptance: Buckets | None, words: str
) -> None:
    stratum = Stratum(policy=1, revision="canary", rounds=4000, speculating=proposing, acceptance=acceptance)
    found = result("acceptance", replace(NOTHING, boots={"x": Boot(pod="a", strata=(stratum,))}))
    assert found.verdict in (CheckVerdict.NO_DATA, CheckVerdict.INCONCLUSIVE)
    assert found.message.endswith(words)


def test_every_check_that_chance_could_fail_has_its_part_of_the_confidence() -> None:
    proof_or_unasked = {"exactness", "interTokenLatency", "segments", "nearTies"}
    asked = {check.name for check in CHECKS} - proof_or_unasked
    alpha = Question(analysis=RULES, evidence=NOTHING, target="t").alpha
    assert alpha == pytest.approx(0.05 / (len(asked) + NEAR_TIES_PART))
    unreplayed = replace(RULES, exactness=Exactness(sample_basis_points=0))
    assert Question(analysis=unreplayed, evidence=NOTHING, target="t").alpha == pytest.approx(0.05 / len(asked))


@pytest.mark.parametrize(
    ("canary", "stable", "verdict"),
    [
        ((Replayed(900, 0), Replayed(80, 0)), Replayed(5, 5), CheckVerdict.PASS),
        ((Replayed(3, 0), Replayed(0, 1)), Replayed(90, 0), CheckVerdict.FAIL),
        ((Replayed(), None), Replayed(90, 3), None),
    ],
)
def test_one_answer_that_differs_from_plain_decoding_fails_and_none_replayed_claims_nothing(
    canary: tuple[Replayed | None, ...], stable: Replayed, verdict: CheckVerdict | None
) -> None:
    strata = [Stratum(policy=1 + index, revision="canary", exactness=held) for index, held in enumerate(canary)]
    strata.append(Stratum(policy=1, revision="stable", exactness=stable))
    evidence = replace(NOTHING, boots={"x": Boot(pod="a", strata=tuple(strata))})
    found = {check.name: check for check in assess(Question(analysis=RULES, evidence=evidence, target="t"))}
    assert (found["exactness"].verdict if "exactness" in found else None) == verdict
    if verdict is CheckVerdict.FAIL:
        assert (found["exactness"].value, found["exactness"].samples) == ("1", "4 replayed")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "Pass"),
        (["Pass", "Inconclusive"], "Inconclusive"),
        (["Inconclusive", "NoData"], "NoData"),
        (["NoData", "ProviderError"], "ProviderError"),
        (["ProviderError", "Fail", "Pass"], "Fail"),
        (["NotCompared", "Pass"], "Pass"),
        (["NotCompared"], "NotCompared"),
    ],
)
def test_the_worst_verdict_counts(verdicts: list[str], expected: str) -> None:
    results = [CheckResult(name="x", verdict=CheckVerdict(verdict)) for verdict in verdicts]
    assert worst(results) == expected


def test_gateways_that_do_not_answer_are_a_provider_error_but_a_failure_stays_one() -> None:
    bad, good = plain(1200, 0.5, 1), plain(1200, 0.9, 1)
    assert result("acceptance", with_acceptance(good, None), reachable=False).verdict is CheckVerdict.PROVIDER_ERROR
    assert result("acceptance", with_acceptance(bad, None), reachable=False).verdict is CheckVerdict.FAIL
    assert result("acceptance", None).verdict is CheckVerdict.NO_DATA


def test_too_little_evidence_says_so_where_a_gateway_forgot_some() -> None:
    few = replace(with_acceptance(mixed(999, 1), mixed(8991, 101)), forgotten=5)
    told = "; what a gateway counted under policies up to 5 it had forgotten before it was read"
    assert result("acceptance", few).message == f"revision canary has 999 of the 1000 requests it needs{told}"
    enough = replace(with_acceptance(mixed(1000, 1), mixed(9000, 101)), forgotten=5)
    assert told not in result("acceptance", enough).message
