"""A step that waits for sessions that are about to come back, in virtual time; and that nothing waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from benchmarks.gathering import HastyTarget
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.stepped import SteppedClock, SteppedTarget
from tests.seams.stepped_targets import FACTS, LIFE, known_costs

from tandem_runtime.domain.errors import TargetLost
from tandem_runtime.domain.tokens import (
    OpenSession,
    Priority,
    Proposal,
    RunRounds,
    SamplingParameters,
    SessionId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.pace import Cost
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget

STEP, ROUNDS, LEARNT = 0.015, 40, 20
GREEDY = SamplingParameters(seed=1, temperature=0.0)
SIZE = StepSize(costs=known_costs(STEP, 0.0))


def opening(name: str, priority: Priority = Priority.INTERACTIVE) -> OpenSession:
    return OpenSession(
        SessionId(name), (1,), (), GREEDY, Verification.COUPLED, max_tokens=400, tenant=name, priority=priority
    )


def model() -> ScriptedModel:
    return ScriptedModel(chain_logits, max_length=512, max_sessions=8)


def target_of(kind: type[SteppedTarget]) -> SteppedTarget:
    clock = SteppedClock()
    return kind(model(), FACTS, clock=clock, size=SIZE, pace=clock.pace(Cost(1000 * STEP, 0)))


class Asking:
    """One session's rounds, each of which begins at an offset that the verdicts before it say."""

    def __init__(self, target: BatchedTarget, name: str) -> None:
        self.target, self.session, self.verdicts = target, SessionId(name), list[Verdict]()
        self.offset = 0

    async def round(self) -> Verdict:
        asked = VerifyRound(self.session, LIFE, len(self.verdicts), self.offset, Proposal((5,)))
        verdict = await self.target.verify(asked)
        self.verdicts.append(verdict)
        self.offset += verdict.accepted + 1
        return verdict

    async def rounds(self, count: int, apart: float) -> None:
        for _ in range(count):
            await self.round()
            await asyncio.sleep(apart)


Priorities = tuple[Priority, Priority]
ALIKE: Priorities = (Priority.INTERACTIVE, Priority.INTERACTIVE)


async def two(target: SteppedTarget, priorities: Priorities) -> tuple[Asking, Asking]:
    """Sessions that come back a millisecond and two after each verdict, as the target has learnt by now."""
    asking = Asking(target, "soon"), Asking(target, "later")
    for each, priority in zip(asking, priorities, strict=True):
        await target.open(opening(each.session, priority))
    await asyncio.gather(asking[0].rounds(LEARNT, 0.001), asking[1].rounds(LEARNT, 0.002))
    return asking


def both(
    then: Callable[[SteppedTarget, Asking, Asking], Awaitable[None]],
    kind: type[SteppedTarget] = SteppedTarget,
    priorities: Priorities = ALIKE,
) -> tuple[list[Verdict], list[Verdict]]:
    """What two such sessions are told where `then` happens behind their first rounds."""

    async def main() -> tuple[list[Verdict], list[Verdict]]:
        with target_of(kind) as target:
            soon, later = await two(target, priorities)
            await then(target, soon, later)
        return soon.verdicts[LEARNT:], later.verdicts[LEARNT:]

    return run_virtually(main)


async def more(_: SteppedTarget, soon: Asking, later: Asking) -> None:
    await asyncio.gather(soon.rounds(ROUNDS, 0.001), later.rounds(ROUNDS, 0.002))


def rows(verdicts: Sequence[Verdict]) -> list[int]:
    return [verdict.rows for verdict in verdicts]


def test_two_sessions_that_come_back_a_millisecond_apart_share_their_steps() -> None:
    soon, later = both(more)
    assert rows(soon[2:]) == rows(later[2:]) == [2] * (ROUNDS - 2)
    waits, steps = zip(*((each.queue_seconds, each.forward_seconds) for each in soon[2:]), strict=True)
    assert waits == pytest.approx([0.001] * (ROUNDS - 2))
    assert steps == pytest.approx([STEP] * (ROUNDS - 2)), "a wait is no part of what a step costs"
    assert [each.queue_seconds for each in later[2:]] == pytest.approx([0.0] * (ROUNDS - 2))


def test_without_it_they_take_turns() -> None:
    soon, later = both(more, HastyTarget)
    assert set(rows(soon[2:] + later[2:])) == {1}


def test_what_is_said_does_not_depend_on_it() -> None:
    def said(verdicts: Sequence[Verdict]) -> list[tuple[int, int]]:
        return [(verdict.accepted, verdict.token) for verdict in verdicts]

    for gathered, hasty in zip(both(more), both(more, HastyTarget), strict=True):
        assert said(gathered) == said(hasty)


def test_work_that_nobody_waits_for_is_not_waited_for() -> None:
    soon, later = both(more, priorities=(Priority.BACKGROUND, Priority.BACKGROUND))
    assert set(rows(soon[2:] + later[2:])) == {1}


def test_a_session_that_decodes_plainly_is_not_kept() -> None:
    """Its tokens come a step apart, whoever else is about to come."""
    moments: list[float] = []

    async def beside_a_run(target: SteppedTarget, soon: Asking, later: Asking) -> None:
        plain = opening("plain")
        await target.open(plain)

        async def decode() -> None:
            async for _ in target.run(RunRounds(plain.session, LIFE, 0, 0, 60)):
                moments.append(asyncio.get_running_loop().time())

        await asyncio.gather(decode(), more(target, soon, later))

    both(beside_a_run)
    gaps = [now - before for before, now in pairwise(moments)]
    assert gaps[1:] == pytest.approx([STEP] * len(gaps[1:]))


async def _waiting(soon: Asking, later: Asking) -> "asyncio.Task[Verdict]":
    """The sooner one's round, which is kept for the later one's: both have just been answered by one step."""
    await asyncio.gather(soon.round(), later.round())
    await asyncio.sleep(0.001)
    asked = asyncio.ensure_future(soon.round())
    await asyncio.sleep(0.0002)
    return asked


def test_a_step_begins_at_once_when_the_one_it_waits_for_is_closed() -> None:
    async def closed(target: SteppedTarget, soon: Asking, later: Asking) -> None:
        asked = await _waiting(soon, later)
        await target.close(later.session)
        await asked

    soon, _ = both(closed)
    assert soon[-1].rows == 1
    assert soon[-1].queue_seconds == pytest.approx(0.0002)


def test_a_step_begins_when_the_one_it_waits_for_does_not_come() -> None:
    async def alone(target: SteppedTarget, soon: Asking, later: Asking) -> None:
        await (await _waiting(soon, later))

    soon, _ = both(alone)
    assert soon[-1].rows == 1
    assert 0.001 <= soon[-1].queue_seconds <= 0.8 * STEP


@pytest.mark.parametrize(
    ("priorities", "waits"),
    [
        ((Priority.INTERACTIVE, Priority.BATCH), False),
        ((Priority.BATCH, Priority.INTERACTIVE), True),
        ((Priority.BATCH, Priority.BATCH), True),
        ((Priority.INTERACTIVE, Priority.BACKGROUND), False),
    ],
)
def test_nobody_is_kept_for_who_is_less_urgent(priorities: Priorities, waits: bool) -> None:
    async def alone(target: SteppedTarget, soon: Asking, later: Asking) -> None:
        await (await _waiting(soon, later))

    soon, _ = both(alone, priorities=priorities)
    assert (soon[-1].queue_seconds > 0) is waits


def test_who_gives_up_while_a_step_waits_is_gone_at_once() -> None:
    async def cancelled(target: SteppedTarget, soon: Asking, later: Asking) -> None:
        asked, loop = await _waiting(soon, later), asyncio.get_running_loop()
        assert target.waiting == 1
        asked.cancel()
        began = loop.time()
        with suppress(asyncio.CancelledError):
            await asked
        await asyncio.sleep(0)
        assert (target.waiting, loop.time()) == (0, began)
        verdict = await later.round()
        assert verdict.queue_seconds == 0

    both(cancelled)


# By a clock that a test moves -----------------------------------------------------------------------------------------


class Moved:
    """`ports.Clock`."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.seconds


async def kept(size: StepSize, proposal: Proposal, survivals: tuple[float, ...]) -> bool:
    """Whether a step with that proposal waits for a session that comes back 5.5 ms after each verdict. No thread."""
    clock = Moved()
    target, asking = BatchedTarget(model(), FACTS, clock=clock, size=size), list["asyncio.Future[object]"]()

    async def turned(asked: Awaitable[object]) -> None:
        asking.append(asyncio.ensure_future(asked))
        await asyncio.sleep(0)
        target.loop.turn()
        target.loop.send()
        await asyncio.sleep(0)

    later = Asking(target, "later")
    await turned(target.open(opening("soon")))
    await turned(target.open(opening("later")))
    for _ in range(LEARNT):
        await turned(later.round())
        clock.seconds += 0.0055
    await turned(later.round())
    await turned(target.verify(VerifyRound(SessionId("soon"), LIFE, 0, 0, proposal, survivals)))
    waits, last = target.loop.waits_until is not None, asking[-1]
    last.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return waits


@pytest.mark.parametrize("came", [1, 8])
@pytest.mark.parametrize(("asked", "waits"), [(8, False), (1, True)])
async def test_how_many_guesses_came_of_those_asked_for_has_no_part_in_it(asked: int, came: int, waits: bool) -> None:
    """With nine rows a step is too long to be worth that wait, with two it is not. Drafting stops behind an end, so how
    many came was drawn; and whom it is judged beside may say how many of them are judged."""
    size = StepSize(costs=known_costs(0.010, 0.0005))
    assert await kept(size, Proposal((5,) * min(came, asked)), (0.9,) * asked) is waits


@pytest.mark.parametrize(("rows", "waits"), [(32, False), (64, True)])
async def test_a_step_that_has_room_for_nobody_else_does_not_wait(rows: int, waits: bool) -> None:
    size = StepSize(rows=rows, costs=known_costs(0.010, 0.0))
    assert await kept(size, Proposal((5,) * 31), ()) is waits


async def test_stopping_does_not_wait_for_a_step_that_waits() -> None:
    """Steps take ten hours, and the other one comes back after one."""
    clock = Moved()
    target = BatchedTarget(model(), FACTS, clock=clock, size=StepSize(costs=known_costs(36_000.0, 0.0)))
    with target:
        soon, later = Asking(target, "soon"), Asking(target, "later")
        for each in (soon, later):
            await target.open(opening(each.session))
        for _ in range(LEARNT):
            await later.round()
            clock.seconds += 3600.0
        await later.round()
        asked = asyncio.ensure_future(soon.round())
        while target.loop.waits_until is None:
            assert not asked.done(), "the step did not wait"
            await asyncio.sleep(0)
    with pytest.raises(TargetLost):
        await asked
