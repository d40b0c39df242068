"""Objects at rest: what ends a rest, how long one lasts, and that memory gives back what the API server said."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tandem_operator.domain.observed import Node
from tandem_operator.ports import Change, Key, Kind
from tandem_operator.steady import POLLS_PER_SECOND, READS_PER_SECOND, Found, Steady, without_managed_fields

KEY = Key("llm", "chat")
START = datetime(2026, 1, 1, tzinfo=UTC)
RESOURCE, POD = Kind.SPECULATIVE_DEPLOYMENT, Kind.POD


def body(kind: Kind, name: str, version: str) -> dict[str, Any]:
    return {"kind": kind.value, "metadata": {"name": name, "resourceVersion": version, "labels": {"ä": "1"}}}


FOUND = Found(
    resource=body(RESOURCE, "chat", "5"),
    children=(body(Kind.DEPLOYMENT, "chat-gateway", "6"), body(Kind.SERVICE, "chat", "7")),
    pods=(body(POD, "p", "8"),),
    nodes=(Node("n", {"gpu": "L4"}),),
)


def resting(count: int = 1) -> Steady:
    steady = Steady()
    for key in [KEY, *(Key("llm", f"other-{number}") for number in range(count - 1))]:
        steady.begin(key)
        steady.keep(key, FOUND, b"same", START)
        steady.end(key)
    return steady


def change(kind: Kind, name: str, version: str) -> Change:
    return Change(KEY, kind, name, version)


def test_an_object_at_rest_is_remembered_as_the_api_server_had_it() -> None:
    assert resting().recall(KEY, START) == FOUND


def test_fields_managers_are_not_remembered() -> None:
    assert without_managed_fields({"metadata": {"name": "a", "managedFields": [1]}, "x": 2}) == {
        "metadata": {"name": "a"},
        "x": 2,
    }


@pytest.mark.parametrize(
    "known", [(RESOURCE, "chat", "5"), (Kind.DEPLOYMENT, "chat-gateway", "6"), (POD, "p", "8"), (POD, "gone", "")]
)
def test_what_the_last_look_has_seen_is_no_news(known: tuple[Kind, str, str]) -> None:
    steady = resting()
    assert not steady.is_news(change(*known))
    assert steady.recall(KEY, START) is not None


@pytest.mark.parametrize(
    "news", [(RESOURCE, "chat", "9"), (RESOURCE, "chat", ""), (POD, "p", ""), (POD, "new", "9"), (POD, "p", "7")]
)
def test_whatever_else_a_watch_tells_of_ends_the_rest(news: tuple[Kind, str, str]) -> None:
    steady = resting()
    assert steady.is_news(change(*news))
    assert steady.recall(KEY, START) is None
    assert not steady.is_same(KEY, b"same")


def test_a_change_of_an_object_that_is_not_at_rest_is_always_news() -> None:
    assert Steady().is_news(change(RESOURCE, "chat", "5"))


@pytest.mark.parametrize(("version", "rests"), [("5", True), ("9", False), ("", False)])
def test_a_look_that_missed_a_change_of_its_time_is_not_rested_on(version: str, rests: bool) -> None:
    steady = Steady()
    steady.begin(KEY)
    assert steady.is_news(change(RESOURCE, "chat", version))
    steady.keep(KEY, FOUND, b"same", START)
    steady.end(KEY)
    assert (steady.recall(KEY, START) is not None) is rests


def test_a_look_that_begins_ends_the_rest_whatever_becomes_of_it() -> None:
    steady = resting()
    steady.begin(KEY)
    steady.end(KEY)
    assert (steady.recall(KEY, START), len(steady)) == (None, 0)


def test_of_few_objects_each_is_read_at_every_poll() -> None:
    steady = resting(int(READS_PER_SECOND * 10))
    assert steady.paced(10) == 10
    assert steady.recall(KEY, START + timedelta(seconds=9.9)) is not None
    assert steady.recall(KEY, START + timedelta(seconds=10)) is None


def test_of_a_thousand_each_is_polled_and_read_so_seldom_that_all_of_them_keep_the_pace() -> None:
    steady = resting(1000)
    assert steady.paced(10) == 1000 / POLLS_PER_SECOND
    assert steady.paced(3) == 3  # who has something ahead does not wait
    longest, shortest = 1000 / READS_PER_SECOND, 1000 / READS_PER_SECOND / 3
    assert steady.recall(KEY, START + timedelta(seconds=shortest - 1)) is not None
    assert steady.recall(KEY, START + timedelta(seconds=longest)) is None
    late = [steady.recall(Key("llm", f"other-{n}"), START + timedelta(seconds=longest / 2)) for n in range(99)]
    assert 10 < late.count(None) < 60  # read together, they are not so for ever
