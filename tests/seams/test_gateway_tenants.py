"""On whose account a request is computed, and how urgent it is, as the engines hear it."""

import asyncio

import pytest
from tests.seams.gateway_peers import always, running_gateway, until

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.policy import ExactnessPolicy
from tandem_runtime.domain.tokens import Opened, OpenSession, Priority
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.engines.sessions import Sessions
from tandem_runtime.gateway.keys import ApiKeys, Tenant

TEXT = {"model": "chat", "prompt": "b", "max_tokens": 3}


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[OpenSession]:
    """What engines of both roles were asked to open."""
    heard: list[OpenSession] = []
    admit = Sessions.admit

    async def listening(sessions: Sessions, request: OpenSession) -> Opened:
        heard.append(request)
        return await admit(sessions, request)

    monkeypatch.setattr(Sessions, "admit", listening)
    return heard


async def test_both_engines_hear_tenant_weight_and_priority(openings: list[OpenSession]) -> None:
    keys = ApiKeys("acme:one weight=2.5\nbeta:two\n", source="keys")
    async with running_gateway(chain_logits, chain_logits, keys=keys, speculation=always(2)) as running:
        for key, tier in (("one", {}), ("two", {"service_tier": "flex"})):
            reply = await running.http.post(
                "/v1/completions", json={**TEXT, **tier}, headers={"authorization": f"Bearer {key}"}
            )
            assert reply.status_code == 200, reply.text
    heard = [(opening.tenant, opening.weight, opening.priority) for opening in openings]
    assert heard == [("acme", 2.5, Priority.INTERACTIVE)] * 2 + [("beta", 1.0, Priority.BATCH)] * 2


async def test_a_replay_is_background_work_of_nobody(openings: list[OpenSession]) -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(2)) as running:
        running.put_policy(exactness=ExactnessPolicy(10_000))
        replaying = asyncio.create_task(running.gateway.replays.run())
        await running.plain(prompt="b", max_tokens=5)
        await until(lambda: running.stratum()["exactness"]["equal"] == 1)
        replaying.cancel()
        await asyncio.wait((replaying,))
    assert [(opening.tenant, opening.priority) for opening in openings] == [
        ("", Priority.INTERACTIVE),
        ("", Priority.INTERACTIVE),
        (None, Priority.BACKGROUND),
    ]


@pytest.mark.parametrize("tier", ["priority", "scale", "", 1])
async def test_a_tier_that_is_not_served_is_refused_by_name(tier: object) -> None:
    async with running_gateway(chain_logits) as running:
        reply = await running.http.post("/v1/completions", json={**TEXT, "service_tier": tier})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "service_tier")


@pytest.mark.parametrize("weight", ["", "0", "-1", "nan", "inf", "1e9", "much"])
def test_a_weight_that_is_none_is_refused_by_line_and_without_the_key(weight: str) -> None:
    with pytest.raises(
        SettingRefused, match=f"keys, line 2: weight={weight}; write a number from 0.001 to 1000"
    ) as why:
        ApiKeys(f"a:one\nb:secret weight={weight}\n", source="keys")
    assert "secret" not in str(why.value)


def test_a_weight_stands_behind_the_key() -> None:
    keys = ApiKeys("a:one:two   weight=0.5  \nb:weight=3\n", source="keys")
    assert keys.tenant("Bearer one:two") == Tenant("a", 0.5)
    assert keys.tenant("Bearer weight=3") == Tenant("b", 1.0)
