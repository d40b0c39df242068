"""The sums of the K rule in C are those in Python: the same K for the same reason, and the same beliefs to 1e-9, after
anything that rounds may bring."""

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from benchmarks.controller import Run, over_course, over_trace
from benchmarks.simulator.acceptance import Recorded, recorded_traces
from benchmarks.simulator.regimes import COURSES
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.domain.known_pair import rounds

from tandem_runtime import native_lessons
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.costs import AGE_LIMIT_SECONDS, Costs, Plane
from tandem_runtime.domain.lessons import IN_PYTHON, UNTAUGHT, Beginning, Lessons
from tandem_runtime.domain.lookahead import OFF, Belief, Bounds, Choice, Mode
from tandem_runtime.domain.policy import LONGEST_PROPOSAL
from tandem_runtime.domain.segments import Heat, Segment, Segments
from tandem_runtime.domain.tokens import Ahead, Round
from tandem_runtime.gateway import schema
from tandem_runtime.native import NotBuilt
from tandem_runtime.native_lessons import Answer, NativeLessons

CLOSE = 1e-9
ALLOWED = (
    Bounds(1, 8),
    Bounds(1, 8, overlap=Overlap.AUTO),
    Bounds(1, 8, early_stop=True),
    Bounds(2, 16, Mode.ALWAYS),
    Bounds(1, LONGEST_PROPOSAL, min_gain=0.2),
    Bounds(3, 3),
    OFF,
)


@pytest.fixture(scope="module")
def in_c() -> Lessons:
    try:
        return native_lessons.taught_nothing(native_lessons.built())
    except NotBuilt as reason:
        pytest.skip(f"this machine cannot build C: {reason}")


class Turn(NamedTuple):
    """One choice of a session, and what became of it. Shares are of what there is."""

    session: int = 0
    bounds: Bounds = ALLOWED[0]
    stands: float = 1.0
    unjudged: float = 0.0
    is_cut: bool = False
    credits: Sequence[float] = ()
    odd: float = 1.0
    """The round's seconds over what they would be."""
    step: float = 0.03
    rows: int = 1
    beside: int = 0
    warm: bool = True
    prefill: bool = False
    hit: bool | None = None
    heard: tuple[int, int] | None = None


def the_round(turn: Turn, k: int) -> Round:
    judged = k - int(turn.unjudged * k)
    accepted = int(turn.stands * judged)
    examined = accepted + (accepted < judged and not turn.is_cut)
    drafting, forward = 0.004 * k, 0.015 + 0.001 * (k + turn.beside) / turn.rows
    return Round(
        k, accepted, accepted + 1, drafting, forward, forward * turn.odd, 0.0 if turn.hit else drafting,
        cut=judged - examined, seconds=(drafting + forward + 0.001) * turn.odd, prefill=turn.prefill,
        credits=tuple(turn.credits[:examined]) if len(turn.credits) >= examined else (),
        confidences=(40,) * examined if turn.bounds.early_stop else (),
        rows=turn.rows, draft_rows=turn.rows, beside=turn.beside, unjudged=k - judged,
        ahead=Ahead(turn.hit, 3) if k and turn.hit is not None else None, prepares=turn.hit is not None,
    )  # fmt: skip


class Told(NamedTuple):
    """What one turn showed: what must be the same, and what may differ by a rounding."""

    decided: list[object]
    believed: list[float]


def played(lessons: Lessons, turns: Sequence[Turn]) -> Iterator[Told]:
    cell, now = Shared(Belief(lessons)), 0.0
    sessions = [cell.begin(), cell.begin()]
    for turn in turns:
        lookahead = sessions[turn.session]
        choice = lookahead.choose(turn.bounds, turn.bounds.maximum, now, warm=turn.warm)
        now += turn.step
        lookahead.learn(the_round(turn, choice.k), now, warm=turn.warm)
        if turn.heard is not None:
            lookahead.hear(matched=min(turn.heard), examined=max(turn.heard))
        asked = cell.foretold(turn.bounds, now)
        after = [lookahead.wakes(now), lookahead.listens, cell.belief.lessons.told, *cell.belief[1:]]
        acceptance, costs = cell.belief.acceptance, cell.belief.costs
        flags = [acceptance.shape, costs.doubted, costs.plain_doubted, costs.company_since]
        yield Told(
            [*decided(choice), *decided(asked), *after, *flags, [plane is None for plane in planes(costs)]],
            [
                *reasons(choice), *reasons(asked), *lookahead._own, *acceptance.kin,
                *acceptance.chances, *acceptance.haunts, *acceptance.tilts,
                *chain.from_iterable(plane or () for plane in planes(costs)),
            ],
        )  # fmt: skip


def decided(choice: Choice) -> list[object]:
    return [choice.k, choice.why.rule, choice.plain_tokens, len(choice.survivals), choice.outlook is None]


def reasons(choice: Choice) -> list[float]:
    """All that is told to who asks why."""
    costs = choice.why.costs or ()
    return [
        *choice.survivals, *choice.why.survivals, *(each.speed_up for each in choice.why.predictions),
        *(cost for cost in costs if isinstance(cost, float)), *(choice.stop.acceptance if choice.stop else ()),
    ]  # fmt: skip


def planes(costs: Costs) -> tuple[Plane | None, ...]:
    return costs.draft_token, costs.forward, costs.overhead, costs.plain


def assert_alike(one: Lessons, other: Lessons, turns: Sequence[Turn]) -> None:
    for number, (ours, theirs) in enumerate(zip(played(one, turns), played(other, turns), strict=True)):
        assert ours.decided == theirs.decided, number
        np.testing.assert_allclose(ours.believed, theirs.believed, rtol=CLOSE, atol=CLOSE**2, err_msg=str(number))


credits = st.one_of(st.just(()), st.lists(st.sampled_from([0.0, 1.0, 0.3, 0.999]), min_size=64, max_size=64))
turns = st.builds(
    Turn,
    session=st.integers(0, 1),
    bounds=st.sampled_from(ALLOWED),
    stands=st.sampled_from([0.0, 1.0, 0.5, 0.8]),
    unjudged=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    is_cut=st.booleans(),
    credits=credits,
    odd=st.sampled_from([1.0, 1.0, 1.0, 1.03, 0.0, 0.01, 100.0, -1.0, inf, nan]),
    step=st.sampled_from([0.03, 0.0, 3.0, -5.0, AGE_LIMIT_SECONDS + 1]),
    rows=st.sampled_from([1, 1, 2, 64]),
    beside=st.sampled_from([0, 0, 40]),
    warm=st.booleans(),
    prefill=st.sampled_from([False, False, True]),
    hit=st.sampled_from([None, None, True, False]),
    heard=st.sampled_from([None, None, (0, 8), (8, 8), (3, 300), (0, 0)]),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(turns, max_size=40))
def test_whatever_rounds_bring_both_decide_and_believe_the_same(in_c: Lessons, after: list[Turn]) -> None:
    usual = [Turn(stands=0.6, session=number % 2) for number in range(8)]
    assert_alike(in_c, UNTAUGHT, after)
    assert_alike(in_c, UNTAUGHT, usual + after)


@pytest.mark.parametrize("stands", [0.0, 1.0])
def test_they_stay_together_where_all_or_nothing_stands_for_long(in_c: Lessons, stands: float) -> None:
    assert_alike(in_c, UNTAUGHT, [Turn(stands=stands, step=0.02)] * 600)


def test_they_stay_together_where_sessions_differ(in_c: Lessons) -> None:
    """So much that each is judged by its own record."""
    each = [Turn(session=number % 2, stands=float(number % 2)) for number in range(600)]
    assert_alike(in_c, UNTAUGHT, each)
    assert list(played(in_c, each))[-1].decided[0] == 8


def test_a_segment_that_begins_with_what_another_learnt_begins_alike(in_c: Lessons) -> None:
    begun = []
    for beginning in (Beginning(in_c, "C"), IN_PYTHON):
        segments = Segments(beginning=beginning)
        list(zip(range(30), rounds(segments.begin(Segment("r1")), 0.8, 30, 7), strict=False))
        segments.cell(Segment("r1")).hear(matched=3, examined=9)
        choice = segments.cell(Segment("r1", heat=Heat.HOT)).foretold(ALLOWED[0], 1.0)
        begun.append((decided(choice), reasons(choice)))
    assert begun[0][0] == begun[1][0]
    assert begun[0][1] == pytest.approx(begun[1][1], rel=CLOSE)


def same_run(run: Callable[[Shared], Run], in_c: Lessons) -> None:
    ours, theirs = run(Shared(Belief(in_c))), run(Shared())
    assert (list(ours.ks), ours.tokens, ours.seconds) == (list(theirs.ks), theirs.tokens, theirs.seconds)


@pytest.mark.parametrize("name", COURSES)
def test_on_each_course_k_tokens_and_seconds_are_the_same(in_c: Lessons, name: str) -> None:
    same_run(lambda rule: over_course(COURSES[name], 21, 700, lambda _: rule), in_c)


@pytest.mark.parametrize("trace", recorded_traces(), ids=lambda trace: trace.name)
def test_on_each_recorded_trace_k_tokens_and_seconds_are_the_same(in_c: Lessons, trace: Recorded) -> None:
    same_run(lambda rule: over_trace(replace(trace, texts=trace.texts[:2]), 21, rule), in_c)


def test_what_was_taught_is_not_changed_by_what_is_taught_next(in_c: Lessons) -> None:
    cell = Shared(Belief(in_c))
    before = cell.belief.lessons
    cell.begin().learn(the_round(Turn(), 0), 0.0, warm=True)
    cell.hear(matched=1, examined=8)
    assert cell.belief.lessons is not before
    assert before.survivals(3) == in_c.survivals(3)
    assert before.costs.plain is None


def test_both_sides_lay_out_what_is_taught_and_told_alike(in_c: NativeLessons) -> None:
    assert in_c.calls.size_of_lessons() == ctypes.sizeof(NativeLessons)
    assert in_c.calls.size_of_answer() == ctypes.sizeof(Answer)


def test_no_caller_may_ask_for_a_longer_proposal_than_there_is_room_for(in_c: Lessons) -> None:
    assert schema.LONGEST_PROPOSAL == LONGEST_PROPOSAL
    assert len(in_c.survivals(LONGEST_PROPOSAL)) == LONGEST_PROPOSAL
    with pytest.raises(IndexError):
        in_c.survivals(LONGEST_PROPOSAL + 1)


def test_a_gateway_without_a_compiler_begins_in_python_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> Path:
        raise NotBuilt("there is no C compiler (cc) on the path")

    monkeypatch.setattr(native_lessons, "built", refused)
    with caplog.at_level(logging.INFO):
        beginning = native_lessons.beginning.__wrapped__()
    assert beginning.untaught is UNTAUGHT
    assert beginning.about == "Python, since C was not built: there is no C compiler (cc) on the path"
    assert beginning.about in caplog.text
