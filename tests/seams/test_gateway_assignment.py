"""Which revision and pods a request gets, whom sessions stick to, and when a pod's first requests count."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.seams.gateway_peers import Running, always, running_gateway
from tests.seams.target_peers import another_target

from tandem_runtime.domain.policy import Assignment, PairRevision, RevisionName, RoleHash
from tandem_runtime.domain.routing import choose_revision
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.local import LOCAL_DRAFT, LOCAL_TARGET
from tandem_runtime.replicas import WARM_AFTER_REQUESTS, WARM_AFTER_SECONDS, Replica

STABLE = PairRevision(RevisionName("stable"), LOCAL_TARGET, LOCAL_DRAFT, 60)
CANARY = PairRevision(RevisionName("canary"), LOCAL_TARGET, None, 40)
ASK: dict[str, Any] = {"prompt": "b", "max_tokens": 2, "temperature": 0}


async def revisions_of(running: Running, count: int, **headers: str) -> list[str]:
    replies = [
        await running.http.post("/v1/completions", json={"model": "chat", **ASK}, headers=headers) for _ in range(count)
    ]
    return [reply.json()["speculation"]["revision"] for reply in replies]


async def test_requests_are_split_by_the_hash_of_their_own_ids() -> None:
    async with running_gateway(chain_logits, chain_logits) as running:
        policy = running.put_policy(revisions=(STABLE, CANARY))
        replies = [await running.plain(**ASK) for _ in range(60)]
        strata = {one["revision"]: one["requests"] for one in running.gateway.evidence()["strata"]}
    chosen = [reply["speculation"]["revision"] for reply in replies]
    assert chosen == [choose_revision(policy, reply["id"]).name for reply in replies]
    assert strata == dict(Counter(chosen))
    assert len(strata) == 2


async def test_sessions_stick_to_a_revision_by_header_or_user() -> None:
    async with running_gateway(chain_logits, chain_logits) as running:
        policy = running.put_policy(revisions=(STABLE, CANARY), assignment=Assignment.SESSION)
        for session in ("ann", "bob", "cyd", "dan"):
            expected = choose_revision(policy, session).name
            assert await revisions_of(running, 4, **{"x-tandem-session": session}) == [expected] * 4
            replies = [await running.plain(**ASK, user=session) for _ in range(3)]
            assert {reply["speculation"]["revision"] for reply in replies} == {expected}
        assert len(set(await revisions_of(running, 30))) == 2


async def test_a_revision_without_a_target_pod_is_503_and_never_another_target() -> None:
    elsewhere = PairRevision(RevisionName("elsewhere"), RoleHash("other-target"), LOCAL_DRAFT, 100)
    async with running_gateway(chain_logits, chain_logits) as running:
        running.put_policy(revisions=(replace(STABLE, weight=0), elsewhere))
        reply = await running.http.post("/v1/completions", json={"model": "chat", **ASK})
        stratum = running.stratum()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "target_unavailable")
    assert "elsewhere" in reply.json()["error"]["message"]
    assert (stratum["revision"], stratum["requests"], stratum["errors"]) == ("elsewhere", 1, 1)


async def test_speculation_taken_from_one_revision_leaves_the_other_speculating() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(2)) as running:
        canary = replace(CANARY, draft=LOCAL_DRAFT, speculate=False)
        running.put_policy(revisions=(STABLE, canary))
        replies = [(await running.plain(**ASK))["speculation"] for _ in range(30)]
    proposed = {
        name: sum(one["proposed"] for one in replies if one["revision"] == name) for name in ("stable", "canary")
    }
    assert proposed["canary"] == 0
    assert proposed["stable"] > 0


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_the_first_requests_of_a_new_pod_do_not_count_but_their_errors_do(role: str) -> None:
    async with running_gateway(chain_logits, lame_chain_logits, speculation=always(2)) as running:
        fleet = running.gateway.fleet
        (replica,) = fleet.targets if role == "target" else fleet.drafts
        replica.ready_since = running.clock.wall()
        for _ in range(WARM_AFTER_REQUESTS + 3):
            await running.plain(**ASK)
        stratum = running.stratum()
        assert stratum["requests"] == WARM_AFTER_REQUESTS + 3
        assert sum(stratum["acceptance"]["requests"]) == sum(map(sum, stratum["firstToken"]["bins"].values())) == 3
        assert stratum["emitted"] == 6


def test_a_pod_is_warm_a_minute_after_its_first_request_or_after_twenty_however_long_it_was_ready() -> None:
    replica: Replica[object] = Replica("uid", RoleHash("t"), object(), None, ready_since=100.0)  # type: ignore[type-var,arg-type]
    assert not replica.take_up(wall=5000.0)
    assert not replica.take_up(wall=5000.0 + WARM_AFTER_SECONDS - 1)
    assert replica.take_up(wall=5000.0 + WARM_AFTER_SECONDS)
    replica.served = WARM_AFTER_REQUESTS
    assert replica.take_up(wall=5000.0)


async def test_what_a_draft_scored_in_a_shadow_step_does_not_warm_it_up() -> None:
    """It was never asked to propose, so nobody knows what that costs: the slot in which a canary learnt it counted."""
    canary = PairRevision(RevisionName("canary"), LOCAL_TARGET, LOCAL_DRAFT, 100)
    async with running_gateway(chain_logits, chain_logits, speculation=always(2)) as running:
        gateway, (draft,) = running.gateway, running.gateway.fleet.drafts
        draft.ready_since = running.clock.wall()
        stable = replace(STABLE, draft=None, weight=100)
        running.put_policy(revisions=(stable, replace(canary, weight=0, shadow=True)))
        for _ in range(WARM_AFTER_REQUESTS + 3):
            await running.plain(**ASK)
        scoring = asyncio.create_task(gateway.shadow.run())
        await gateway.shadow.settle()
        scoring.cancel()
        running.clock.shift += WARM_AFTER_SECONDS
        running.put_policy(revisions=(canary,))
        for _ in range(WARM_AFTER_REQUESTS + 3):
            await running.plain(**ASK)
        strata = [one for one in gateway.evidence()["strata"] if one["revision"] == "canary"]
    assert sum(sum(one["shadow"]["examined"]) for one in strata) > 0
    assert [sum(one["acceptance"]["requests"]) for one in strata] == [0, 3]


def known_tokens(running: Running) -> int:
    """Tokens that targets did not read anew, since their memory held them."""
    engines = [target.engine for target in running.gateway.fleet.targets]
    return sum(engine.memory.cached_tokens for engine in engines if isinstance(engine, BatchedTarget))


async def test_the_next_turn_of_a_chat_meets_what_its_target_knows() -> None:
    """Each turn goes where the last one went, and the chats go to both targets."""
    models = [ScriptedModel(chain_logits, max_length=2000) for _ in range(2)]
    async with running_gateway(models[0]) as running:
        with another_target(running, models[1], "uid-another"):
            for chat in range(7):
                prompt = [chat, *[1, 2, 3, 4, 5] * 60]
                for turn in range(3):
                    before = known_tokens(running)
                    await running.plain(prompt=prompt, max_tokens=8)
                    assert (known_tokens(running) - before >= 288) == (turn > 0)
                    prompt += [6, 0, turn]
            served = [target.served for target in running.gateway.fleet.targets]
    assert sum(served) == 21
    assert all(count and count % 3 == 0 for count in served)
