"""One sick target among sound ones: it gets few sessions, and none fails for it."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import Running, ShiftedClock, always, local, running_gateway, until
from tests.seams.target_peers import another_target
from tests.seams.test_roles import free_ports
from tests.seams.wire_peers import QUICK, opening, verify

from tandem_runtime.domain.routing import choose_pod, pin_of
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines import batched
from tandem_runtime.engines.pace import UNPACED, Pace
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway import seats
from tandem_runtime.role_server import Engine, RoleName, ServeOptions, serve_role
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.roles import TargetRole

SHORT: dict[str, Any] = {"model": "chat", "prompt": "b", "max_tokens": 8, "temperature": 0}
RIGHT = "fdbcdace"
SICK = next(
    uid
    for uid in map("sick-{}".format, range(100))
    if choose_pod(pin_of("", None, (1,)), {uid: 0, "uid-target": 0}) == uid
)
"""To whom requests go first."""
WIDTH = (0,)
"""What a script is asked once for the width of its rows."""


def without_a_law(prefix: tuple[TokenId, ...]) -> list[float]:
    return [float("nan")] * 7


def raising(prefix: tuple[TokenId, ...]) -> list[float]:
    if prefix == WIDTH:
        return [0.0] * 7
    raise RuntimeError("bad memory")


class Counting:
    """The same model; counts the prompts that it was asked to go on from."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.begun = 0

    def __call__(self, prefix: tuple[TokenId, ...]) -> Any:
        self.begun += len(prefix) == 1 and prefix != WIDTH
        return self._script(prefix)


async def ask(running: Running, count: int, *, at_once: int = 1) -> list[tuple[int, str]]:
    """Status and text of so many requests."""

    async def one() -> tuple[int, str]:
        reply = await running.http.post("/v1/completions", json=SHORT)
        return reply.status_code, reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text

    told: list[tuple[int, str]] = []
    for _ in range(count // at_once):
        told += await asyncio.gather(*(one() for _ in range(at_once)))
    return told


@pytest.mark.parametrize("sick", [without_a_law, raising], ids=["no law", "raises"])
@pytest.mark.parametrize(("requests", "at_once"), [(20, 1), (160, 8)])
async def test_a_target_that_fails_at_once_fails_nobody_and_is_left_alone(
    sick: Script, requests: int, at_once: int
) -> None:
    counting = Counting(sick)
    async with running_gateway(chain_logits) as running:
        with another_target(running, counting, SICK) as replica:
            assert set(await ask(running, requests, at_once=at_once)) == {(200, RIGHT)}
            assert counting.begun <= at_once + 4  # its first company, and those who tried it again alone
            assert replica.patience.record.failures > 0
            stratum = running.stratum()
    assert (stratum["requests"], stratum["errors"]) == (requests, 0)


ENDS = (6,)
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1, "seed": 7},
    "plain decoding": {"speculation": {"off": True}},
    "logprobs": {"logprobs": 2},
    "grammar": {"structured_outputs": {"regex": "[a-f]{8}"}},
}


def sick_from(length: int, script: Script) -> Script:
    """The same model up to a prefix of `length`; from there on its logits have no law."""
    return lambda prefix: script(prefix) if len(prefix) < length else without_a_law(prefix)


async def choice_of(running: Running, stream: bool, asked: dict[str, Any]) -> tuple[str, list[Any]]:
    """Text and logprobs of the one choice."""
    if stream:
        pieces = [piece["choices"][0] async for piece in running.stream(**asked)]
    else:
        pieces = (await running.plain(**asked))["choices"]
    told = [piece["logprobs"]["token_logprobs"] for piece in pieces if piece.get("logprobs")]
    return "".join(piece["text"] for piece in pieces), [one for part in told for one in part]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_target_sick_from_the_fifth_token_on_hands_its_session_on_and_the_text_is_the_same(
    kind: str, stream: bool
) -> None:
    asked = {**SHORT, **KINDS[kind]}
    models = chain_logits, lame_chain_logits
    async with running_gateway(*models, speculation=always(4), end_tokens=ENDS) as running:
        text, logprobs = await choice_of(running, stream, asked)
        with another_target(running, sick_from(5, chain_logits), SICK, end_tokens=ENDS) as replica:
            again = await choice_of(running, stream, asked)
            assert again[0] == text
            assert again[1] == pytest.approx(logprobs)
            assert replica.patience.rests(running.clock.monotonic())
            assert replica.sessions == 0
        told = running.gateway.books.metrics.render().decode()
        stratum = running.stratum()
    assert 'tandem_target_failures_total{kind="not_a_number",revision="local"} 1.0' in told
    assert stratum["errors"] == 0


async def test_a_token_without_a_law_on_two_targets_ends_the_request() -> None:
    async with running_gateway(sick_from(5, chain_logits)) as running:
        with another_target(running, sick_from(5, chain_logits), SICK) as replica:
            ((status, told),) = await ask(running, 1)
            assert (status, "not_a_number" in told) == (500, True)
            await until(lambda: running.gateway.sessions == replica.sessions == 0)


async def test_who_failed_rests_and_is_tried_by_one_session_after_that() -> None:
    well = threading.Event()

    def sick(prefix: tuple[TokenId, ...]) -> Any:
        return chain_logits(prefix) if well.is_set() else without_a_law(prefix)

    counting = Counting(sick)
    async with running_gateway(chain_logits) as running:
        with another_target(running, counting, SICK) as replica:
            patience = replica.patience
            await ask(running, 4)
            begun = counting.begun
            assert patience.rests(running.clock.monotonic())
            well.set()
            patience.record = replace(patience.record, rests_until=0.0)
            assert set(await ask(running, 8, at_once=8)) == {(200, RIGHT)}
            assert begun < counting.begun
            assert not patience.rests(running.clock.monotonic())


async def test_where_all_rest_sessions_begin_all_the_same() -> None:
    async with running_gateway(raising) as running:
        (replica,) = running.gateway.fleet.targets
        assert {status for status, _ in await ask(running, 2)} == {503}
        assert replica.patience.rests(running.clock.monotonic())
        assert {status for status, _ in await ask(running, 2)} == {503}
        assert running.gateway.ready


async def test_a_target_whose_step_never_ends_keeps_the_sessions_of_one_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon = replace(seats.DEADLINES, open_seconds=0.2, verify_seconds=0.2, close_seconds=0.1)
    monkeypatch.setattr(seats, "DEADLINES", soon)
    hangs = threading.Event()

    def hung(prefix: tuple[TokenId, ...]) -> Any:
        if prefix != WIDTH:
            hangs.wait()
        return chain_logits(prefix)

    counting = Counting(hung)
    async with running_gateway(chain_logits) as running:
        with another_target(running, counting, SICK) as replica:
            try:
                assert set(await ask(running, 20, at_once=2)) == {(200, RIGHT)}
                assert replica.sessions == 0
                told = running.gateway.books.metrics.render().decode()
                assert 'tandem_target_failures_total{kind="lost",revision="local"} 2.0' in told
            finally:
                hangs.set()


async def test_a_prompt_is_scored_by_a_target_that_has_a_law() -> None:
    async with running_gateway(chain_logits) as running:
        with another_target(running, without_a_law, SICK):
            for _ in range(4):
                body = {**SHORT, "prompt": "bcd", "echo": True, "logprobs": 1, "max_tokens": 1}
                reply = await running.http.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text


async def test_no_law_anywhere_is_told_after_one_more_try() -> None:
    first, second = Counting(without_a_law), Counting(without_a_law)
    async with running_gateway(first) as running:
        with another_target(running, second, "b"), another_target(running, without_a_law, "c"):
            reply = await running.http.post("/v1/completions", json=SHORT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "not_a_number")
    assert first.begun + second.begun <= 2


async def test_who_rests_shows_where_one_looks() -> None:
    async with running_gateway(chain_logits) as running:
        with another_target(running, without_a_law, SICK):
            await ask(running, 4)
            told = (await running.http.get("/v1/speculation")).json()["revisions"][0]["targets"]
            metrics = running.gateway.books.metrics.render().decode()
    shown = {target["pod"]: (target["resting"], target["failures"] > 0) for target in told}
    assert shown == {SICK: (True, True), "uid-target": (False, False)}
    assert "tandem_resting_targets 1.0" in metrics
    assert 'tandem_target_failures_total{kind="not_a_number",revision="local"}' in metrics


async def test_a_caller_that_leaves_a_target_on_trial_lets_the_next_one_try() -> None:
    goes_on = threading.Event()

    def slow(prefix: tuple[TokenId, ...]) -> Any:
        if prefix != WIDTH:
            goes_on.wait(5)
        return chain_logits(prefix)

    async with running_gateway(ScriptedModel(slow, max_length=256)) as running:
        (replica,) = running.gateway.fleet.targets
        now = running.clock.monotonic()
        replica.patience.failed(now - 10, asked_at=now - 11)
        leaving = asyncio.create_task(running.http.post("/v1/completions", json=SHORT))
        await until(lambda: replica.patience.record.alone_since is not None)
        assert replica.patience.rests(running.clock.monotonic())
        leaving.cancel()
        goes_on.set()
        await until(lambda: not replica.patience.rests(running.clock.monotonic()))


async def test_an_engine_whose_step_does_not_end_says_so_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "LONGEST_STEP_SECONDS", 0.2)
    goes_on, ending = threading.Event(), asyncio.Event()

    def hung(prefix: tuple[TokenId, ...]) -> Any:
        if prefix != WIDTH:
            goes_on.wait()
        return chain_logits(prefix)

    one, (port, admin_port) = local(hung, "hung"), free_ports()

    def load() -> Engine:
        target = BatchedTarget(one.model, one.facts, clock=ShiftedClock())
        return Engine(TargetRole(target), target, one.model, Pace(UNPACED, clock=ShiftedClock()))

    options = ServeOptions(host="127.0.0.1", port=port, admin_port=admin_port, grace_seconds=1)
    serving = asyncio.create_task(serve_role(load, options, ending=ending, name=RoleName.TARGET, clock=ShiftedClock()))
    async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote, httpx.AsyncClient() as client:
        await remote.wait_connected()
        opened = await remote.open(opening("s"))
        judging = asyncio.create_task(remote.verify(verify(opened, "s")))

        async def readiness() -> str:
            return (await client.get(f"http://127.0.0.1:{admin_port}/readyz")).text

        assert await readiness() == "ok\n"
        async with asyncio.timeout(10):
            while (told := await readiness()) == "ok\n":
                await asyncio.sleep(0.02)
        assert "the step under way has taken" in told
        goes_on.set()
        await judging
        assert await readiness() == "ok\n"
        ending.set()
        await serving


async def test_a_server_of_one_machine_is_not_ready_while_its_target_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def hung(prefix: tuple[TokenId, ...]) -> Any:
        if prefix != WIDTH:
            goes_on.wait()
        return chain_logits(prefix)

    async with running_gateway(hung) as running:
        monkeypatch.setattr(batched, "LONGEST_STEP_SECONDS", 0.2)
        asking = asyncio.create_task(running.http.post("/v1/completions", json=SHORT))
        await until(lambda: not running.gateway.ready)
        refused = await running.http.post("/v1/completions", json=SHORT)
        goes_on.set()
        assert (refused.status_code, (await asking).status_code) == (503, 200)
        assert running.gateway.ready
