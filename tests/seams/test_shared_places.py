"""Places on targets and in the gateway, shared by tenants: who waits for one, in which order, and who is shut out."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import Running, running_gateway, until
from tests.seams.target_peers import another_target
from tests.seams.test_gateway_admission import HandClock, guest
from tests.seams.test_gateway_sessions import slowly
from tests.seams.wire_peers import opening

from tandem_runtime.domain.errors import BadRequest, Overloaded
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.domain.tokens import SessionId
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.gateway.admission import House, Limits
from tandem_runtime.gateway.keys import ApiKeys
from tandem_runtime.gateway.target_line import TargetLine, Ticket
from tandem_runtime.ports import TargetEngine

SHORT: dict[str, Any] = {"model": "chat", "prompt": "b", "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {**SHORT, "max_tokens": 100_000, "stream": True}
KEYS = "adversary:one weight=1\nheavy:two weight=100\nlight:three weight=1\n"


def few_places(count: int = 4) -> ScriptedModel:
    return ScriptedModel(slowly(chain_logits, seconds=0.0005), max_length=200_000, max_sessions=count)


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@asynccontextmanager
async def long_answers(running: Running, count: int, headers: dict[str, str]) -> AsyncIterator[list[int]]:
    """So many streams that do not end; the statuses of those that have begun or were refused."""
    told: list[int] = []

    async def one() -> None:
        async with running.http.stream("POST", "/v1/completions", json=LONG, headers=headers, timeout=60) as reply:
            told.append(reply.status_code)
            async for _ in reply.aiter_lines():
                pass

    asking = [asyncio.create_task(one()) for _ in range(count)]
    try:
        yield told
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def ask(running: Running, headers: dict[str, str]) -> httpx.Response:
    return await running.http.post("/v1/completions", json=SHORT, headers=headers, timeout=60)


@pytest.mark.parametrize("victim", ["two", "three"], ids=["heavier", "as heavy"])
async def test_an_adversary_of_long_answers_shuts_nobody_out_of_the_targets(victim: str) -> None:
    limits, keys = Limits(wait_seconds=1.0), ApiKeys(KEYS, source="k")
    async with (
        running_gateway(few_places(), keys=keys, limits=limits, max_length=200_000) as run,
        long_answers(run, 12, key("one")) as told,
    ):
        await until(lambda: told.count(200) == 3)
        for _ in range(10):
            began = time.monotonic()
            assert (await ask(run, key(victim))).status_code == 200
            assert time.monotonic() - began < limits.wait_seconds
        await until(lambda: told.count(429) == 9)  # who was above its share waited, and was told
        assert told.count(200) == 3


async def test_an_adversary_of_long_answers_shuts_nobody_out_of_the_gateway() -> None:
    limits = Limits(sessions=8, waiting=8, wait_seconds=1.0)
    model = few_places(64)
    async with (
        running_gateway(model, keys=ApiKeys(KEYS, source="k"), limits=limits, max_length=200_000) as running,
        long_answers(running, 30, key("one")) as told,
    ):
        await until(lambda: told.count(200) == 7)
        for _ in range(10):
            assert (await ask(running, key("three"))).status_code == 200
        many = await running.http.post("/v1/completions", json={**SHORT, "n": 8}, headers=key("one"))
    assert (many.status_code, many.json()["error"]["param"]) == (400, "n")
    assert "at most 7 fit here" in many.json()["error"]["message"]


async def test_a_full_target_is_waited_for_and_the_refusal_says_when_to_come_back() -> None:
    limits = Limits(wait_seconds=0.6)
    async with (
        running_gateway(few_places(2), limits=limits, max_length=200_000) as running,
        AsyncExitStack() as first,
    ):
        told = await first.enter_async_context(long_answers(running, 2, {}))
        await until(lambda: told.count(200) == 2)
        began = time.monotonic()
        refused = await ask(running, {})
        waited = time.monotonic() - began
        late = asyncio.create_task(ask(running, {}))
        await until(lambda: running.gateway.waiting == 1)
        await first.aclose()
        assert (await late).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    assert limits.wait_seconds <= waited < 10 * limits.wait_seconds


async def test_a_place_that_another_gateway_gives_back_is_found() -> None:
    async with running_gateway(few_places(1), max_length=200_000) as running:
        (replica,) = running.gateway.fleet.targets
        engine: TargetEngine = replica.engine
        await engine.open(opening("of another gateway"))
        late = asyncio.create_task(ask(running, {}))
        await until(lambda: running.gateway.waiting == 1)
        await engine.close(SessionId("of another gateway"))
        assert (await late).status_code == 200


async def test_a_caller_that_leaves_while_it_waits_for_a_target_leaves_the_line() -> None:
    async with running_gateway(few_places(1), max_length=200_000) as running, long_answers(running, 1, {}) as told:
        await until(lambda: told == [200])
        leaving = asyncio.create_task(ask(running, {}))
        await until(lambda: running.gateway.waiting == 1)
        leaving.cancel()
        await until(lambda: (running.gateway.waiting, running.gateway.sessions) == (0, 1))


async def test_a_full_target_beside_one_that_rests_is_waited_for() -> None:
    broken = threading.Event()

    def sick(prefix: tuple[int, ...]) -> Any:
        return [float("nan")] * 7 if broken.is_set() else chain_logits(prefix)

    async with running_gateway(few_places(1), limits=Limits(wait_seconds=0.5), max_length=200_000) as running:
        with another_target(running, sick, "a-sick") as replica:
            broken.set()
            now = running.clock.monotonic()
            replica.patience.failed(now, asked_at=now - 1, least_seconds=60.0)
            async with long_answers(running, 1, {}) as told:
                await until(lambda: told == [200])
                assert (await ask(running, {})).status_code == 429


def ticket(line: TargetLine, tenant: str, *, weight: float = 1.0, until: float = 200.0) -> Ticket:
    return line.ticket((RoleHash("t"), None), tenant=tenant, weight=weight, until=until)


async def test_next_is_whose_tenant_has_fewest_places_for_its_weight() -> None:
    line, order, weights = TargetLine(HandClock()), [], {"heavy": 4.0}
    for name in ("many", "many", "few", "heavy"):
        await line.turn(seated := ticket(line, name))

    async def wait(name: str) -> None:
        mine = ticket(line, name, weight=weights.get(name, 1.0))
        await line.turn(mine)
        await line.refused(mine, Overloaded("full"))
        order.append(name)

    waiting = []
    for count, name in enumerate(["many", "few", "heavy", "new"], start=1):
        waiting.append(asyncio.create_task(wait(name)))
        await until(lambda count=count: line.waiting == count)  # type: ignore[misc]
    for number in range(1, 5):
        line.served(seated)
        await until(lambda number=number: len(order) == number)  # type: ignore[misc]
    await asyncio.gather(*waiting)
    assert order == ["new", "heavy", "few", "many"]
    assert line.waiting == 0


async def test_who_comes_later_does_not_overtake_those_who_wait() -> None:
    clock = HandClock()
    line = TargetLine(clock)
    first = ticket(line, "a")
    await line.turn(first)
    waiting = asyncio.create_task(line.refused(first, Overloaded("full")))
    await until(lambda: line.waiting == 1)
    late = asyncio.create_task(line.turn(ticket(line, "a", until=clock.now)))
    with pytest.raises(Overloaded, match="wait for a place"):
        await late
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert line.waiting == 0
    await asyncio.wait_for(line.turn(ticket(line, "a")), 1)


async def test_a_request_for_all_of_the_house_keeps_nobody_out() -> None:
    house = House(Limits(sessions=16), HandClock())
    with pytest.raises(BadRequest, match="at most 14 fit"):
        await AsyncExitStack().enter_async_context(house.admitted(guest(sessions=15)))
    async with house.admitted(guest("b", sessions=4)):
        large = asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest(sessions=14))))
        await until(lambda: house.waiting == 1)
        for _ in range(3):
            async with house.admitted(guest("c", sessions=2)):
                assert house.waiting == 1
    await large


async def test_a_full_line_has_room_for_who_waits_least() -> None:
    house = House(Limits(sessions=1, waiting=4), HandClock())
    async with house.admitted(guest("a")):
        line = [asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest("a")))) for _ in range(5)]
        await until(lambda: sum(task.done() for task in line) == 2)
        line.append(asyncio.create_task(AsyncExitStack().enter_async_context(house.admitted(guest("b")))))
        await until(lambda: house.waiting == 4)
        for task in line:
            task.cancel()
        ends = await asyncio.gather(*line, return_exceptions=True)
    assert [type(end) for end in ends].count(Overloaded) == 2
