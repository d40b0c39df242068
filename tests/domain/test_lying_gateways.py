"""Answers of a gateway that no traffic explains are no answers, and none of them keeps a decision from being made."""

import json
import warnings
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from tests.domain.simulated_world import START

from tandem_operator.domain import evidence, record
from tandem_operator.domain.record import RecordError
from tandem_operator.domain.samples import (
    BUCKETS,
    Arm,
    Buckets,
    Document,
    FirstTokens,
    Replayed,
    Scrape,
    Shadow,
    Slot,
    Stratum,
    has_grown,
)

ROW = (5, *(0,) * (BUCKETS - 1))
HONEST = Stratum(policy=3, revision="v2", requests=9, acceptance=Buckets(accepted=ROW, examined=ROW, requests=ROW))
SLOT = Slot(pod="p", target="t", slot=1, arm=Arm.ON, policy=3, revision="v2", tokens=1, milliseconds=1)


def answer(**changes: Any) -> str:
    """As JSON; the tests lie with values that no dataclass is made for, which dumping warns of."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        plain = record.dump(replace(Document(boot="b", policy=3, strata=(HONEST,), slots=(SLOT,)), **changes))
    return json.dumps(plain)


def test_an_honest_answer_is_read() -> None:
    assert record.read(Document, answer()).strata == (HONEST,)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": -1},
        {"policy": 10**400},
        {"policy": 1.5},
        {"policy": float("nan")},
        {"boot": None},
        {"boot": 7},
        {"strata": (replace(HONEST, requests=-9),)},
        {"strata": (replace(HONEST, rounds=2**53),)},
        {"strata": (HONEST, HONEST)},
        {"strata": (replace(HONEST, acceptance=Buckets(accepted=ROW, requests=ROW)),)},
        {"strata": (replace(HONEST, acceptance=Buckets(accepted=(-1, *ROW[1:]))),)},
        {"strata": (replace(HONEST, acceptance=Buckets(accepted=ROW[1:])),)},
        {"strata": (replace(HONEST, shadow=Shadow(matched=ROW)),)},
        {"strata": (replace(HONEST, exactness=Replayed(equal=-1)),)},
        {"strata": (replace(HONEST, first_token=FirstTokens((10, 20), {"3": ROW})),)},
        {"strata": (replace(HONEST, first_token=FirstTokens((10, 20), {"-1": ROW})),)},
        {"strata": (replace(HONEST, first_token=FirstTokens((10, 20), {"1": ROW[1:]})),)},
        {"strata": (replace(HONEST, first_token=FirstTokens((20, 10), {"1": ROW})),)},
        {"strata": (replace(HONEST, first_token=FirstTokens(())),)},
        {"strata": (replace(HONEST, first_token=FirstTokens(tuple(range(65)))),)},
        {"serving": 1},
        {"slots": (replace(SLOT, milliseconds=-1),)},
        {"slots": ({"arm": "both"},)},
        {"slots": (replace(SLOT, tokens=10**30),)},
    ],
    ids=str,
)
def test_what_no_traffic_can_have_counted_is_no_answer(changes: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=rf"^\$\.{next(iter(changes))}"):
        record.read(Document, answer(**changes))


NO_OBJECTS = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"boot": "\\ud800", "policy": 1}']


@pytest.mark.parametrize("text", NO_OBJECTS)
def test_what_is_no_object_of_json_is_no_answer(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"^\$: found"):
        record.read(Document, text)


def test_an_answer_of_nothing_but_faults_is_refused_at_the_first() -> None:
    faults = '"x",' * 100_000 + '"x"'
    pairs = ",".join(f'"{number}":"x"' for number in range(100_000))
    for text in (f'"strata": [{faults}]', f'"slots": [{faults}]', f'"admitted": {{"targets": {{{pairs}}}}}'):
        with pytest.raises(RecordError, match=r"^\$\.(strata|slots|admitted.targets).*found 'x'") as refused:
            record.read(Document, f'{{"boot": "b", "policy": 3, {text}}}')
        assert isinstance(refused.value.__cause__, ValidationError)
        assert refused.value.__cause__.error_count() == 1


def test_evidence_that_somebody_broke_is_gathered_anew() -> None:
    kept = record.dump(evidence.add(START_OF_CANARY, scrape(HONEST), gateways=["pod"], slot_seconds=20))
    assert evidence.read(json.dumps(kept)) is not None
    changes: list[dict[str, Any]] = [{"errors": [0.0]}, {"errors": [1e999] * 6}, {"at": "17"}, {"boots": []}]
    changes += [{"together": [{"policy": 3, "sums": {name: [1]}}]} for name in ("sums", "products")]
    for change in changes:
        assert evidence.read(json.dumps({**kept, **change})) is None


START_OF_CANARY = evidence.begin("v2", "v1", since=3, now=START)


def scrape(stratum: Stratum, seconds: int = 0) -> Scrape:
    return Scrape(START + timedelta(seconds=seconds), {"pod": Document(boot="b", policy=3, strata=(stratum,))})


SMALLER = replace(HONEST, requests=4, acceptance=Buckets())


@pytest.mark.parametrize("later", [SMALLER, replace(HONEST, acceptance=None), replace(HONEST, revision="v1")], ids=str)
def test_a_boot_that_counts_backwards_is_not_believed_and_what_it_said_before_stands(later: Stratum) -> None:
    kept = evidence.begin("v2", "v1", since=3, now=START)
    for found in (scrape(HONEST), scrape(later, 30)):
        kept = evidence.add(kept, found, gateways=["pod"], slot_seconds=20)
    assert kept.strata("v2") == {3: HONEST}


def test_in_the_breakers_window_a_boot_that_counts_backwards_is_taken_for_another() -> None:
    assert evidence.in_window(scrape(SMALLER, 30), scrape(HONEST), "v2") == SMALLER


def test_a_slot_beyond_every_calendar_is_never_due() -> None:
    far = Document(boot="b", policy=3, slots=(replace(SLOT, slot=2**53 - 1),))
    start = evidence.begin("v2", "v1", since=3, now=START)
    after = evidence.add(start, Scrape(START, {"pod": far}), gateways=["pod"], slot_seconds=600)
    assert after.slots == ()


MORE = replace(HONEST, errors=2, shadow=Shadow(ROW, ROW), exactness=Replayed(3, 1))
LESS = [
    {"requests": 8},
    {"errors": 1},
    {"acceptance": Buckets(accepted=ROW, examined=ROW)},
    {"acceptance": None},
    {"shadow": Shadow(examined=ROW)},
    {"shadow": None},
    {"exactness": Replayed(3, 0)},
    {"exactness": None},
]


@pytest.mark.parametrize("change", LESS, ids=str)
def test_a_later_answer_of_a_boot_has_every_sum_of_the_earlier_one_and_none_smaller(change: dict[str, Any]) -> None:
    less: Stratum = replace(MORE, **change)
    assert has_grown(less, MORE)
    assert not has_grown(MORE, less)


def test_a_boot_that_counted_nothing_more_says_nothing_of_the_window() -> None:
    assert evidence.in_window(scrape(HONEST, 30), scrape(HONEST), "v2") is None
