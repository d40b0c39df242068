"""Every fault of every drafter under the real driver: one wait, the round becomes K = 0, the text stays."""

from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.scenarios.driver_stage import ALWAYS_4, ChainTarget, Kept
from tests.scenarios.driver_stage import Stage as Alone
from tests.seams.combined_stage import Answer, HandClock, Scripted, hanging, raising, saying

from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.errors import BadRequest, DraftForgot, DraftLost, NotANumber, OutOfOrder, Overloaded
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Drafter, Proposal, ProposeRound
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import TargetEngine

MODEL, SUFFIX = Drafter.MODEL, Drafter.SUFFIX
GUESSES = {MODEL: 2, SUFFIX: 3}
VOCAB = 7
REQUEST = replace(Alone().request, draft_is_free=True, endings=Endings(48))


async def older(request: ProposeRound) -> Proposal:
    """What would have followed a text that is two tokens shorter."""
    return Proposal((5, 3)[: request.k])


FAULTS = [
    pytest.param(raising(DraftLost("gone")), 1, id="lost"),
    pytest.param(raising(Overloaded("full")), 1, id="overloaded"),
    pytest.param(raising(BadRequest("no")), 1, id="refuses"),
    pytest.param(raising(NotANumber()), 1, id="not a number"),
    pytest.param(raising(OutOfOrder("a bug")), 1, id="our bug"),
    pytest.param(raising(ZeroDivisionError("a fault of its own")), 1, id="a bug"),
    pytest.param(raising(DraftForgot("who?")), 2, id="forgets ever again"),
    pytest.param(hanging, 1, id="hangs"),
    pytest.param(saying(1, 1, 1, 1, 1), 1, id="too many ids"),
    pytest.param(saying(1, 1, confidences=(3,)), 1, id="confidences of other guesses"),
    pytest.param(older, None, id="late, for an older round"),
    pytest.param(saying(VOCAB, VOCAB), None, id="ids that the target does not know"),
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.domain.patience.LONGEST_WAIT_SECONDS", 0.05)


@pytest.mark.parametrize(("fault", "asked"), FAULTS)
@pytest.mark.parametrize("who", [(MODEL,), (SUFFIX,), (MODEL, SUFFIX)], ids=["model", "lookup", "both"])
@pytest.mark.parametrize("drafters", [(MODEL,), (SUFFIX,), (MODEL, SUFFIX)], ids=["model", "lookup", "turns"])
async def test_a_fault_costs_one_wait_and_no_text(
    fault: Answer, asked: int | None, who: tuple[Drafter, ...], drafters: tuple[Drafter, ...]
) -> None:
    """The answer takes .7 s at most, so nobody's rest ends; where `asked` is None it is a poor guess and no fault."""
    target, kept = ChainTarget(clock=HandClock()), Kept()
    engines = {
        drafter: Scripted(GUESSES[drafter], (0.5,) * 4, fault if drafter in who else None) for drafter in drafters
    }
    drafting = Drafting(drafters, Beliefs(Segments(), Segment("pair"), Looks()))
    members = [Member(drafter, engine, Patience(), 1000) for drafter, engine in engines.items()]
    text = ""
    items = generate(
        Session(REQUEST),
        engines=Engines(target, CombinedDraft(members, drafting, target.clock, VOCAB), nobody),
        lookahead=drafting,
        allowance=lambda: ALWAYS_4,
        observer=kept,
        clock=target.clock,
    )
    async with aclosing(items):
        async for item in items:
            text += item.text if isinstance(item, Emit) else ""
    assert " ".join(text) == await Alone(draft=None, request=REQUEST).answer()
    faulty = [engine for drafter, engine in engines.items() if drafter in who]
    healthy = [engine for drafter, engine in engines.items() if drafter not in who]
    assert all(asked is None or len(engine.asked) <= asked for engine in faulty)
    assert len(drafters) > 1 or all(engine.asked for engine in engines.values())
    assert all(engine.closed >= len(engine.opened) for engine in engines.values())
    assert asked is None or not healthy or sum(round.proposed for round in kept.rounds) > 0


async def nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")
