"""A paced engine gives the results of an unpaced one, at the table's times: the cost is that of a whole step."""

import pytest

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    SessionId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import TABLES, UNPACED, Pace, cost_named
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Row

LIFE = Incarnation("life-1")
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE)
SESSION = SessionId("a")
OPENING = OpenSession(
    SESSION, (1,), (), SamplingParameters(seed=1, temperature=0.0), Verification.COUPLED, max_tokens=64
)
CHAIN_AFTER_1 = (5, 3, 1, 2)


class StillClock:
    """Stands still but for sleep and for `compute_seconds` per row of logits that the model computes."""

    def __init__(self, compute_seconds: float) -> None:
        self.now = 100.0
        self._compute_seconds = compute_seconds

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def chain(self, prefix: tuple[int, ...]) -> list[float]:
        self.now += self._compute_seconds
        return chain_logits(prefix)

    def pace(self, table: str) -> Pace:
        return Pace(cost_named(table), clock=self, sleep=self.sleep)


async def test_a_paced_draft_takes_the_stated_time_for_each_guess_and_says_so() -> None:
    clock = StillClock(0.001)
    pace = clock.pace("l4-8b")
    with BatchedDraft(ScriptedModel(clock.chain), FACTS, clock=clock, pace=pace) as draft:
        await draft.open(OPENING)
        began = clock.now
        proposal = await draft.propose(ProposeRound(SESSION, LIFE, 0, (), 3))
        assert clock.now - began == pytest.approx(0.012)
    assert proposal.ids == CHAIN_AFTER_1[:3]
    assert proposal.draft_seconds == pytest.approx(0.012)
    assert pace.steps == 3
    assert (pace.paced_seconds, pace.unpaced_seconds) == pytest.approx((0.012, 0.003))


async def test_a_paced_verdict_is_sent_when_it_is_due_and_tells_the_paced_seconds() -> None:
    clock = StillClock(0.001)
    pace = clock.pace("h100-70b")
    with BatchedTarget(ScriptedModel(clock.chain), FACTS, clock=clock, pace=pace) as target:
        await target.open(OPENING)
        began = clock.now
        verdict = await target.verify(VerifyRound(SESSION, LIFE, 0, 0, Proposal(CHAIN_AFTER_1[:2])))
        assert clock.now - began == pytest.approx(0.0162)
    assert (verdict.accepted, verdict.token) == (2, CHAIN_AFTER_1[2])
    assert verdict.queue_seconds == 0
    assert verdict.forward_seconds == pytest.approx(0.0162)
    assert pace.steps == 1
    assert (pace.paced_seconds, pace.unpaced_seconds) == pytest.approx((0.0162, 0.003))


async def test_without_a_cost_no_step_is_stretched() -> None:
    clock = StillClock(0.001)
    pace = Pace(UNPACED, clock=clock, sleep=clock.sleep)
    with BatchedTarget(ScriptedModel(clock.chain), FACTS, clock=clock, pace=pace) as target:
        await target.open(OPENING)
        verdict = await target.verify(VerifyRound(SESSION, LIFE, 0, 0, Proposal()))
    assert verdict.forward_seconds == pytest.approx(0.001)
    assert pace.paced_seconds == pace.unpaced_seconds == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("table", "outputs", "milliseconds"),
    [
        ("h100-70b", (1,), 15.0),
        ("h100-70b", (1, 6, 0), 18.0),
        ("h100-70b", (0,), 15.0),
        ("l4-8b", (1, 1), 4.0),
        ("l4-8b", (9,), 4.0),
        ("l4-8b-eager", (1, 1), 8.0),
    ],
)
def test_a_step_costs_what_its_table_says(table: str, outputs: tuple[int, ...], milliseconds: float) -> None:
    rows = [Row((), 0, (1,) * 10, count) for count in outputs]
    assert TABLES[table].seconds(rows) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(("worked", "took"), [(0.001, 0.004), (0.004, 0.004), (0.020, 0.020)])
def test_a_step_is_stretched_by_what_remains_and_never_shortened(worked: float, took: float) -> None:
    clock = StillClock(0)
    pace, began = clock.pace("l4-8b"), clock.now
    due = pace.due([Row((), 0, (1,), 1)], began)
    clock.now += worked
    pace.stretch(began, due)
    assert clock.now - began == pytest.approx(took)
    assert pace.steps == 1
    assert (pace.unpaced_seconds, pace.paced_seconds) == pytest.approx((worked, took))


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelRefused, match=r"tpu-9.*h100-70b, l4-8b"):
        cost_named("tpu-9")
