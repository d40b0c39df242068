"""A draft that fails while it is asked what it would have said: that score is dropped, and nothing else."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.seams.combined_stage import Scripted

from tandem_runtime.domain.errors import DraftLost, Overloaded
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.tokens import OpenSession, SamplingParameters, ScoreTokens, SessionId, Verification
from tandem_runtime.gateway.shadow import Shadow, ShadowJob
from tandem_runtime.ports import DraftEngine
from tandem_runtime.replicas import Pool, Replica

ROLE = RoleHash("draft")
ANSWER = (7, 8, 7)


def failing(error: Exception) -> Scripted:
    async def score(request: ScoreTokens) -> tuple[bool, ...] | None:
        raise error

    return Scripted(7, score_instead=score)


def scoring(bits: tuple[bool, ...] | None) -> Scripted:
    async def score(request: ScoreTokens) -> tuple[bool, ...] | None:
        return bits

    return Scripted(7, score_instead=score)


def closing_badly() -> Scripted:
    async def close() -> None:
        raise ZeroDivisionError

    return Scripted(7, close_instead=close)


def opening_badly() -> Scripted:
    def open_session() -> Awaitable[None]:
        raise KeyError("a secret prompt")

    return Scripted(7, open_instead=open_session)


@pytest.mark.parametrize(
    ("draft", "scored"),
    [
        pytest.param(Scripted(7), [(2, 3)], id="none"),
        pytest.param(failing(DraftLost("gone")), [], id="lost"),
        pytest.param(failing(Overloaded("full")), [], id="overloaded"),
        pytest.param(failing(ZeroDivisionError("a fault of its own")), [], id="a bug"),
        pytest.param(opening_badly(), [], id="a bug while it opens"),
        pytest.param(closing_badly(), [(2, 3)], id="a bug while it closes"),
        pytest.param(scoring((True,)), [], id="too few bits"),
        pytest.param(scoring((True,) * 4), [], id="too many bits"),
        pytest.param(scoring(None), [], id="left alone"),
    ],
)
async def test_a_fault_drops_one_score_and_the_next_is_asked_for(
    draft: Scripted, scored: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    pool, told = Pool[DraftEngine](), list[tuple[int, int]]()
    replica = Replica[DraftEngine]("pod", ROLE, draft, await draft.capabilities())
    opening = OpenSession(SessionId("s"), (1,), (), SamplingParameters(1), Verification.COUPLED, 8)
    job = ShadowJob(ROLE, opening, ANSWER, lambda matched, examined: told.append((matched, examined)))
    with pool.holding(replica):
        shadow = Shadow(pool)
        working = asyncio.create_task(shadow.run())
        for _ in range(2):
            shadow.offer(job)
        await shadow.settle()
        assert not working.done()
        working.cancel()
    assert told == scored * 2
    assert shadow.dropped >= 2 - len(told)
    assert replica.sessions == 0
    assert "secret" not in caplog.text


async def test_what_waits_of_a_forgotten_tenant_is_dropped_and_the_others_are_scored_in_their_order() -> None:
    draft = Scripted(7)
    pool, told = Pool[DraftEngine](), list[str]()
    replica = Replica[DraftEngine]("pod", ROLE, draft, await draft.capabilities())
    with pool.holding(replica):
        shadow = Shadow(pool)
        for name, tenant in (("a", "gone"), ("b", "stays"), ("c", None), ("d", "gone"), ("e", "stays")):
            opening = OpenSession(SessionId(name), (1,), (), SamplingParameters(1), Verification.COUPLED, 8)
            shadow.offer(ShadowJob(ROLE, opening, ANSWER, lambda *_, name=name: told.append(name), tenant))
        shadow.forget({"gone"})
        working = asyncio.create_task(shadow.run())
        await shadow.settle()
        working.cancel()
    assert (told, shadow.dropped) == (["b", "c", "e"], 2)
