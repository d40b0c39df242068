"""Who is let in: quotas of tenants, waiting for room in fair order, and what those hear who are not."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.seams.gateway_peers import running_gateway, until

from tandem_runtime.domain.errors import BadRequest, Overloaded, SettingRefused
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.gateway.admission import Guest, House, Limits
from tandem_runtime.gateway.failures import QuotaUsedUp
from tandem_runtime.gateway.keys import ApiKeys, Quota, Tenant
from tandem_runtime.testing import constant


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def guest(tenant: str = "a", *, weight: float = 1.0, sessions: int = 1, prompt: int = 10, **quota: int) -> Guest:
    return Guest(tenant, weight, Quota(**quota), sessions, prompt)


async def test_tokens_come_back_evenly_over_a_minute() -> None:
    clock = HandClock()
    house = House(Limits(), clock)
    asking = guest(prompt=30, tokens_per_minute=60)
    async with house.admitted(asking):
        house.charge(asking, 50)
    with pytest.raises(QuotaUsedUp) as refused:
        async with house.admitted(asking):
            pass
    assert refused.value.retry_after_seconds == 50  # overdrawn by 20, and 30 are needed
    clock.now += 49
    with pytest.raises(QuotaUsedUp):
        await AsyncExitStack().enter_async_context(house.admitted(asking))
    clock.now += 1
    async with house.admitted(asking):
        assert house.sessions == 1
    clock.now += 1000
    async with house.admitted(replace(asking, prompt_tokens=5000)):
        pass  # more than a minute has, and the bucket was full
    async with house.admitted(guest("b", prompt=30, tokens_per_minute=60)):
        pass


async def test_choices_in_progress_are_counted_by_tenant() -> None:
    house = House(Limits(), HandClock())
    async with house.admitted(guest(sessions=2, concurrent=3)):
        with pytest.raises(QuotaUsedUp, match="2 of 3"):
            await AsyncExitStack().enter_async_context(house.admitted(guest(sessions=2, concurrent=3)))
        async with house.admitted(guest(concurrent=3)), house.admitted(guest("b", concurrent=1)):
            assert house.sessions == 4
    with pytest.raises(BadRequest, match="at most 3"):
        await AsyncExitStack().enter_async_context(house.admitted(guest(sessions=4, concurrent=3)))
    assert house.sessions == 0


async def test_who_waits_counts_among_its_tenants_choices() -> None:
    house = House(Limits(sessions=1), HandClock())
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(house.admitted(guest("other")))
        first = asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest(concurrent=1))))
        await until(lambda: house.waiting == 1)
        with pytest.raises(QuotaUsedUp):
            await AsyncExitStack().enter_async_context(house.admitted(guest(concurrent=1)))
    await first
    assert (house.sessions, house.waiting) == (1, 0)


async def test_prompts_that_wait_are_of_the_minutes_tokens_and_given_back_by_who_leaves() -> None:
    house, asking = House(Limits(sessions=1), HandClock()), guest(prompt=30, tokens_per_minute=60)
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(house.admitted(guest("other")))
        line = [asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(asking))) for _ in range(3)]
        await asyncio.wait(line[2:])
        assert house.waiting == 2
        with pytest.raises(QuotaUsedUp) as refused:
            await line[2]
        assert refused.value.retry_after_seconds == 30
        line[1].cancel()
        await asyncio.wait(line[1:2])
        await inside.aclose()  # the first is called
        line[0].cancel()
        await asyncio.wait(line)
    async with house.admitted(replace(asking, prompt_tokens=60)):
        assert (house.sessions, house.waiting) == (1, 0)


async def order_of(house: House, holding: Guest, waiting: list[Guest]) -> list[str]:
    """By which name those who wait are let in, one behind the other, once `holding` leaves."""
    entered: list[str] = []

    async def ask(asking: Guest) -> None:
        async with house.admitted(asking):
            entered.append(asking.tenant)
            await asyncio.sleep(0)

    async with AsyncExitStack() as inside, asyncio.TaskGroup() as group:
        await inside.enter_async_context(house.admitted(holding))
        for asking in waiting:
            group.create_task(ask(asking))
        await until(lambda: house.waiting == len(waiting))
        await inside.aclose()
    return entered


async def test_next_is_whose_tenant_has_least_for_its_weight() -> None:
    house = House(Limits(sessions=5), HandClock())  # of which one is kept
    async with house.admitted(guest("big", sessions=2)), house.admitted(guest("heavy", weight=4.0)):
        waiting = [guest("big"), guest("big"), guest("heavy", weight=4.0), guest("small")]
        holding = guest("small", weight=9.0, sessions=2)
        assert await order_of(house, holding, waiting) == ["small", "heavy", "big", "big"]


async def test_nobody_overtakes_a_request_of_many_choices() -> None:
    house = House(Limits(sessions=2), HandClock())
    assert await order_of(house, guest("a"), [guest("b", sessions=2), guest("c")]) == ["b", "c"]


async def test_who_waits_too_long_or_finds_too_many_waiting_is_sent_away() -> None:
    house = House(Limits(sessions=1, waiting=1, wait_seconds=0.02), HandClock())
    async with house.admitted(guest()):
        first = asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest("b"))))
        await until(lambda: house.waiting == 1)
        with pytest.raises(Overloaded, match="1 requests wait"):
            await AsyncExitStack().enter_async_context(house.admitted(guest("c")))
        with pytest.raises(Overloaded):
            await first
    assert (house.sessions, house.waiting) == (0, 0)


@pytest.mark.parametrize("called", [False, True], ids=["while it waits", "just when it is called"])
async def test_who_leaves_the_line_takes_no_room(called: bool) -> None:
    house = House(Limits(sessions=1), HandClock())
    async with AsyncExitStack() as inside:
        await inside.enter_async_context(house.admitted(guest()))
        leaving = asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest("b"))))
        await until(lambda: house.waiting == 1)
        if called:
            await inside.aclose()
            assert house.sessions == 1
        leaving.cancel()
        await asyncio.wait((leaving,))
        assert leaving.cancelled()
    assert (house.sessions, house.waiting) == (0, 0)


async def test_a_request_that_waits_is_served_when_room_comes_free() -> None:
    limits = Limits(sessions=1, wait_seconds=30.0)
    async with running_gateway(constant([0.0] * 7), limits=limits, max_length=100_000) as running:
        body = {"model": "chat", "prompt": "b", "max_tokens": 50_000, "stream": True}
        async with running.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()  # kept: once it is gone the stream is closed
            await anext(lines)
            late = asyncio.create_task(running.plain(prompt="b", max_tokens=3))
            await until(lambda: running.gateway.waiting == 1)
        assert (await late)["usage"]["completion_tokens"] == 3


async def test_the_official_client_hears_of_a_quota_and_when_to_come_back() -> None:
    keys = ApiKeys("acme:one tokens_per_minute=6\nbeta:two concurrent=1\n", source="keys")
    asked: Any = {"model": "chat", "prompt": "b", "max_tokens": 7}
    async with running_gateway(chain_logits, keys=keys) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="one", max_retries=0) as acme:
            await acme.completions.create(**asked)
            with pytest.raises(openai.RateLimitError) as refused:
                await acme.completions.create(**asked, stream=True)
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="two", max_retries=0) as beta:
            with pytest.raises(openai.BadRequestError) as never:
                await beta.completions.create(**asked, n=2)
            with pytest.raises(openai.BadRequestError) as best:
                await beta.completions.create(**asked, best_of=2)
            with pytest.raises(openai.BadRequestError) as prompts:
                await beta.completions.create(**asked | {"prompt": ["a", "b"]})
            assert (await beta.completions.create(**asked)).usage is not None
        metrics = running.gateway.books.metrics.render().decode()
        stratum = running.stratum()
    assert refused.value.code == "quota_used_up"
    assert 20 <= int(refused.value.response.headers["retry-after"]) <= 30
    assert [refusal.value.param for refusal in (never, best, prompts)] == ["n", "best_of", "prompt"]
    assert 'code="429"' in metrics
    assert stratum["errors"] == 0


@pytest.mark.parametrize(
    "told", ["concurrent=0", "concurrent=-1", "tokens_per_minute=many", "tokens_per_minute=", "concurrent=1e9"]
)
def test_a_quota_that_is_none_is_refused_by_line_and_without_the_key(told: str) -> None:
    with pytest.raises(SettingRefused, match=f"keys, line 1: {told}; write a whole number") as why:
        ApiKeys(f"a:secret {told}\n", source="keys")
    assert "secret" not in str(why.value)


def test_a_tenants_keys_have_the_same_quotas() -> None:
    keys = ApiKeys(
        "a:one tokens_per_minute=9 concurrent=2 weight=3\na:two concurrent=2 tokens_per_minute=9\n", source="k"
    )
    assert keys.tenant("Bearer one") == Tenant("a", 3.0, Quota(2, 9))
    assert keys.tenant("Bearer two") == Tenant("a", 1.0, Quota(2, 9))
    with pytest.raises(SettingRefused, match="tenant a has quotas that differ"):
        ApiKeys("a:one concurrent=1\na:two\n", source="k")
    with pytest.raises(SettingRefused, match="line 1 has concurrent twice"):
        ApiKeys("a:one concurrent=1 concurrent=2\n", source="k")
