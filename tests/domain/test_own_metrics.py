"""The user's own metrics: what Prometheus may answer, and what each answer means for a canary."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tandem_operator.domain import evidence, record
from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.evidence import Boot, Evidence
from tandem_operator.domain.health import Question, assess
from tandem_operator.domain.queries import filled
from tandem_operator.domain.readings import Reading, Trouble, read
from tandem_operator.domain.samples import Scrape, Stratum
from tandem_operator.domain.spec import Analysis, Comparison, MetricCheck

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
REFUSALS = MetricCheck(name="refusals", query="x", threshold_basis_points=100)


def success(kind: str, result: Any, **more: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **more}).encode()


def vector(*values: str) -> bytes:
    series = [{"metric": {"pod": str(number)}, "value": [1.5, value]} for number, value in enumerate(values)]
    return success("vector", series)


ANSWERS: list[tuple[bytes, float | str]] = [
    (vector("0.012"), 0.012),
    (vector("1e-3"), 0.001),
    (vector("-4"), -4.0),
    (success("scalar", [1.5, "7"]), 7.0),
    (vector(), "NoData: the query gives no series"),
    (vector("NaN"), "NoData: the query gives NaN"),
    (vector("+Inf"), "NoData: the query gives +Inf"),
    (vector("1", "2"), "ProviderError: the query gives 2 series; aggregate them, as sum(...) does"),
    (success("matrix", []), "ProviderError: the query gives a matrix; write one that gives a number"),
    (success("string", [1.5, "a"]), "ProviderError: the query gives a string; write one that gives a number"),
    (success("vector", [{"metric": {}, "histogram": [1.5, {}]}]), "ProviderError: its answer holds no number"),
    (success("scalar", [1.5, 7]), "ProviderError: its answer holds no number"),
    (success("scalar", [1.5]), "ProviderError: its answer holds no number"),
    (
        success("vector", [], warnings=["store b did not answer"]),
        "ProviderError: it warns: store b did not answer",
    ),
    (success("scalar", [1.5, "7"], warnings=["PromQL info: metric might not be a counter"]), 7.0),
    (
        success("scalar", [1.5, "7"], warnings=["PromQL info: a hint", "PromQL warning: a bucket"]),
        "ProviderError: it warns: PromQL warning: a bucket",
    ),
    (b'{"status": "error", "errorType": "bad_data", "error": "\\ud800"}', "ProviderError: bad_data: ?"),
    (
        b'{"status": "error", "errorType": "bad_data", "error": "1:7: parse error: unexpected end"}',
        "ProviderError: bad_data: 1:7: parse error: unexpected end",
    ),
    (b'{"status": "success"}', "ProviderError: the query gives a nothing; write one that gives a number"),
    (b"[]", "ProviderError: its answer has no status"),
    (b"<html>", "ProviderError: its answer is no JSON"),
    (b"[" * 100_000, "ProviderError: its answer is no JSON"),
    (b"\xff", "ProviderError: its answer is no JSON"),
]


@pytest.mark.parametrize(("answer", "meant"), ANSWERS)
def test_an_answer_is_one_number_or_says_why_not(answer: bytes, meant: float | str) -> None:
    found = read("m", answer)
    assert (found.value if found.trouble is None else f"{found.trouble}: {found.note}") == meant
    assert found.name == "m"
    assert record.load(Reading, record.dump(found)) == found


def test_a_long_complaint_is_cut() -> None:
    answer = json.dumps({"status": "error", "errorType": "bad_data", "error": "x" * 5000}).encode()
    assert len(read("m", answer).note) == 300
    assert len(read("m", vector(" " * 5000 + "inf")).note) == 300


def test_placeholders_are_filled_wherever_they_stand() -> None:
    query = 'a{revision="{{revision}}"} / ignoring(revision) a{revision="{{stable}}"} + b{n="{{revision}}"}'
    words = {"revision": "b07d51ee", "stable": "6f2c9a41"}
    assert filled(query, words) == (
        'a{revision="b07d51ee"} / ignoring(revision) a{revision="6f2c9a41"} + b{n="b07d51ee"}'
    )


def judged(reading: Reading | None, *, requests: int = 500, metric: MetricCheck = REFUSALS, **more: bool) -> Any:
    """(verdict, value, threshold, samples, message) of the one metric."""
    held = evidence.begin("canary", "stable", since=1, now=NOW)
    strata = (Stratum(policy=1, revision="canary", requests=requests),)
    held = replace(held, boots={"x": Boot(pod="a", strata=strata)}, readings=() if reading is None else (reading,))
    asked = Question(analysis=Analysis(min_requests=100, metrics=(metric,)), evidence=held, target="t")
    results = assess(replace(asked, **more))  # type: ignore[arg-type] # flags
    found = [each for each in results if each.name == f"metrics.{metric.name}"]
    return [(each.verdict, each.value, each.threshold, each.samples, each.message) for each in found]


def test_the_number_is_held_against_the_threshold() -> None:
    good, poor = Reading(name="refusals", query="x", value=0.0042), Reading(name="refusals", query="x", value=0.01)
    assert judged(good) == [(CheckVerdict.PASS, "0.0042", "< 0.01", "500 requests", "as wanted")]
    assert judged(poor) == [
        (CheckVerdict.FAIL, "0.01", "< 0.01", "500 requests", "the query's number is not as wanted")
    ]
    above = MetricCheck(name="refusals", query="x", operator=Comparison.GREATER_THAN, threshold_basis_points=25_000)
    assert [each[:3] for each in judged(Reading(name="refusals", query="x", value=2.6), metric=above)] == [
        (CheckVerdict.PASS, "2.6", "> 2.5")
    ]
    assert [each[0] for each in judged(good, metric=above)] == [CheckVerdict.FAIL]


def test_a_number_of_few_requests_decides_nothing() -> None:
    (found,) = judged(Reading(name="refusals", query="x", value=1.0), requests=99)
    assert found[0] is CheckVerdict.INCONCLUSIVE
    assert found[3:] == ("99 requests", "too few requests of the revision; see analysis.minRequests")


@pytest.mark.parametrize(
    ("reading", "verdict", "message"),
    [
        (None, CheckVerdict.NO_DATA, "Prometheus was not asked yet"),
        (Reading(name="another", value=1.0), CheckVerdict.NO_DATA, "Prometheus was not asked yet"),
        (Reading(name="refusals", query="earlier", value=1.0), CheckVerdict.NO_DATA, "Prometheus was not asked yet"),
        (
            Reading(name="refusals", query="x", trouble=Trouble.NO_DATA, note="no series"),
            CheckVerdict.NO_DATA,
            "no series",
        ),
        (
            Reading(name="refusals", query="x", trouble=Trouble.PROVIDER_ERROR, note="bad_data: x"),
            CheckVerdict.PROVIDER_ERROR,
            "bad_data: x",
        ),
    ],
)
def test_without_a_number_there_is_the_trouble(reading: Reading | None, verdict: CheckVerdict, message: str) -> None:
    ((found, value, _, _, said),) = judged(reading)
    assert (found, value, said) == (verdict, "", message)


def test_nothing_is_said_of_a_canary_in_shadow() -> None:
    assert judged(Reading(name="refusals", query="x", value=1.0), shadow=True) == []


def test_own_metrics_take_no_certainty_from_the_other_checks() -> None:
    plain = Question(analysis=Analysis(), evidence=None, target="t")
    own = Question(analysis=Analysis(metrics=(REFUSALS,)), evidence=None, target="t")
    assert own.alpha == plain.alpha


def test_the_newest_readings_are_part_of_the_evidence_and_come_back_from_its_document() -> None:
    before = evidence.begin("canary", "stable", since=1, now=NOW)
    reading = (Reading(name="refusals", query="x", value=0.5),)
    after = evidence.add(
        before, Scrape(NOW + timedelta(seconds=30), {}), gateways=(), slot_seconds=20, readings=reading
    )
    assert after.readings == reading
    assert record.load(Evidence, record.dump(after)) == after
    assert not evidence.same_sums(before, after)
    later = evidence.add(after, Scrape(NOW + timedelta(seconds=60), {}), gateways=(), slot_seconds=20)
    assert later.readings == ()
