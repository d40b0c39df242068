"""A draft that ends proposals early, through driver, session, wire and loops: what is told, learnt and said."""

from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from tests.exactness.loops import LONGEST, PATIENT, CountedClock, nobody, spelled, stage_of
from tests.exactness.sampled_laws import DRAFT, PROMPT, TARGET
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Round, SamplingParameters, SessionId, TokenId, Verification
from tandem_runtime.driver import Engines, generate
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole


@dataclass
class Rounds:
    """An observer that keeps them."""

    seen: list[Round] = field(default_factory=list)

    def round(self, round: Round) -> None:
        self.seen.append(round)


async def asked(bounds: Bounds, verification: Verification) -> tuple[list[TokenId], list[Round], Lookahead]:
    """Sixty tokens, each round within the bounds."""
    rounds, lookahead, tokens = Rounds(), Lookahead(), list[TokenId]()
    request = Request(
        session=SessionId("a"),
        prompt=PROMPT,
        parameters=SamplingParameters(seed=5),
        verification=verification,
        endings=Endings(60),
        decode=spelled,
        target_length=LONGEST,
        draft_length=LONGEST,
    )
    async with (
        stage_of(TARGET, DRAFT) as stage,
        served(TargetRole(stage.targets[0])) as target_server,
        served(DraftRole(stage.drafts[0])) as draft_server,
        connected(RemoteTarget, target_server.port) as target,
        connected(RemoteDraft, draft_server.port) as draft,
    ):
        items = generate(
            Session(request),
            engines=Engines(target, draft, nobody, PATIENT),
            lookahead=lookahead,
            allowance=lambda: bounds,
            observer=rounds,
            clock=CountedClock(),
        )
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Emit):
                    tokens += item.tokens
    return tokens, rounds.seen, lookahead


EARLY = Bounds(1, 4, Mode.ALWAYS, early_stop=True)


async def test_coupled_text_is_what_it_was_and_confidence_is_learnt() -> None:
    tokens, rounds, lookahead = await asked(EARLY, Verification.COUPLED)
    plain, without, _ = await asked(Bounds(1, 4, Mode.ALWAYS), Verification.COUPLED)
    assert tokens == plain
    assert [len(round.confidences) for round in rounds] == [round.examined for round in rounds]
    assert {round.confidences for round in without} == {()}
    assert lookahead.shared.calibration.is_known
    assert {round.credits for round in rounds} == {()}


@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
async def test_every_examined_position_has_its_credit(verification: Verification) -> None:
    _, rounds, lookahead = await asked(EARLY, verification)
    assert [len(round.credits) for round in rounds] == [round.examined for round in rounds]
    assert any(0 < credit < 1 for round in rounds for credit in round.credits)
    assert lookahead.shared.calibration.is_known
