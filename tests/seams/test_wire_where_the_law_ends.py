"""Through real sockets an answer ends where its rules leave no token, as it does in one process."""

import pytest
from tests.exactness.loops import PATIENT, Answer, answer_of, exactly, nobody, off, stage_of
from tests.exactness.test_where_the_law_ends import SAID, WIDTH, ending_after, question
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import Verification
from tandem_runtime.driver import Engines
from tandem_runtime.testing import reciting
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("place", [0, 1, 4, 8])
async def test_the_tokens_before_that_place_come_through_the_wire(place: int, verification: Verification) -> None:
    asked = question(ending_after(place), verification)
    script = reciting(SAID, width=WIDTH)
    found: list[Answer] = []
    async with (
        stage_of(script, script) as stage,
        served(TargetRole(stage.targets[0])) as target_server,
        served(DraftRole(stage.drafts[0])) as draft_server,
        connected(RemoteTarget, target_server.port) as target,
        connected(RemoteDraft, draft_server.port) as draft,
    ):
        plain, _ = await answer_of(asked, "plain", stage.engines, off())
        for k in (0, 1, 3, 8):
            engines = Engines(target, draft, nobody, PATIENT)
            answer, _ = await answer_of(asked, f"{k}", engines, exactly(k), refusal=BadRequest)
            found.append(answer)
    assert plain.tokens == SAID[:place]
    assert [(answer.tokens, answer.text, answer.reason) for answer in found] == [
        (plain.tokens, plain.text, plain.reason)
    ] * 4
