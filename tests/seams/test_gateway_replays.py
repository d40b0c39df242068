"""The online check over real engines: a target that lies is found, a right one never, and nobody pays for it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.seams.gateway_peers import Running, always, running_gateway, until

from tandem_runtime.domain.policy import ExactnessPolicy, SpeculationPolicy, VerificationChoice
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.gateway.replays import ReplayLimits, Replays
from tandem_runtime.gateway.server import Listening, serve_gateway
from tandem_runtime.ports import Logits, Row, StepModel

ALL = ExactnessPolicy(10_000)
RESULTS = ("equal", "different", "uncertain", "skipped", "dropped", "failed", "plainEqual", "plainUncertain")
NOTHING = dict.fromkeys(RESULTS, 0)


def near_flat(prefix: tuple[TokenId, ...]) -> list[float]:
    """Logits that hang on the whole prefix, near enough to each other that the noise decides."""
    preferred = int(np.argmax(chain_logits(prefix)))
    return [((preferred + 2 * token) % 7) / 4 for token in range(7)]


class Liar(ScriptedModel):
    """Wrong in every `every`-th pass over a proposal, and only there: a fault of the verify kernel."""

    def __init__(self, script: Script, *, every: int) -> None:
        super().__init__(script, max_length=256)
        self._every = every
        self._verifies = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        return [self._distort(row, logits) for row, logits in zip(rows, super().forward(rows), strict=True)]

    def _distort(self, row: Row, logits: Logits) -> Logits:
        self._verifies += row.outputs > 1
        lies = row.outputs > 1 and self._verifies % self._every == 0
        return np.roll(logits, 1, axis=1) if lies else logits


class Rounding(ScriptedModel):
    """Wrong in every `every`-th row, whatever it is for, as if two tokens that are all but equal changed places."""

    determinism = "NearTie"

    def __init__(self, script: Script, *, every: int) -> None:
        super().__init__(script, max_length=256)
        self._every = every
        self._rows = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        return [self._round(logits) for logits in super().forward(rows)]

    def _round(self, logits: Logits) -> Logits:
        self._rows += 1
        return np.roll(logits, 1, axis=1) if self._rows % self._every == 0 else logits


@asynccontextmanager
async def checking(
    target: StepModel | Script, draft: Script, speculation: SpeculationPolicy, *, working: bool = True
) -> AsyncIterator[Running]:
    async with running_gateway(target, draft, speculation=speculation) as running:
        running.put_policy(exactness=ALL)
        limits = ReplayLimits(look_seconds=0.005, queue_seconds=60)  # a test's machine may be slow without company
        running.gateway.replays = Replays(running.gateway.fleet.targets, clock=running.clock, limits=limits)
        replaying = asyncio.create_task(running.gateway.replays.run()) if working else None
        yield running
        if replaying is not None:
            replaying.cancel()
            await asyncio.wait((replaying,))


async def tally(running: Running, names: Iterable[str] | None = None) -> dict[str, int]:
    """What the evidence says once every replay is done, over all strata."""
    await until(lambda: running.gateway.replays.waiting == 0, seconds=100)
    strata = running.gateway.evidence()["strata"]
    names = NOTHING.keys() if names is None else names
    return {name: sum(stratum["exactness"][name] for stratum in strata) for name in names}  # type: ignore[literal-required]


def request(number: int, temperature: float) -> dict[str, Any]:
    return {"prompt": [number % 7, number // 7 % 7], "max_tokens": 30, "temperature": temperature, "seed": number}


@pytest.mark.parametrize("every", [1, 4, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_target_that_lies_in_one_of_n_verifies_is_found(every: int, temperature: float) -> None:
    count = 10
    async with checking(Liar(near_flat, every=every), near_flat, always(4)) as running:
        told = [(await running.plain(**request(number, temperature)))["choices"] for number in range(count)]
        found = await tally(running)
        true = [
            (await running.plain(**request(number, temperature), speculation={"off": True}))["choices"]
            for number in range(count)
        ]
        metrics = running.gateway.books.metrics.render().decode()
    false = sum(one != other for one, other in zip(told, true, strict=True))
    assert false > 0
    assert found == NOTHING | {"equal": count - false, "different": false}
    assert f'tandem_exactness_replays_total{{result="different",revision="local"}} {false}.0' in metrics


async def test_where_rounding_splits_answers_plain_ones_are_replayed_too_and_counted_apart() -> None:
    async with checking(Rounding(near_flat, every=50), near_flat, always(4)) as running:
        for number in range(8):
            await running.plain(**request(number, 0.0))
            await running.plain(**request(number, 0.0), speculation={"off": True})
        found = await tally(running, (*RESULTS, "tokens", "plainTokens"))
        metrics = running.gateway.books.metrics.render().decode()
    assert (found["equal"] + found["uncertain"], found["plainEqual"] + found["plainUncertain"]) == (8, 8)
    assert (found["different"], found["plainUncertain"] > 0) == (0, True)
    assert 30 * found["equal"] < found["tokens"] < 240
    assert 30 * found["plainEqual"] < found["plainTokens"] < 240
    told = sum(line.startswith("tandem_exactness_replays_total{") for line in metrics.splitlines())
    assert told == len([name for name in ("equal", "uncertain") if found[name]])


async def test_where_bits_are_equal_plain_answers_are_not_replayed() -> None:
    async with checking(near_flat, near_flat, always(4)) as running:
        await running.plain(**request(1, 0.0), speculation={"off": True})
        assert await tally(running) == NOTHING


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("draft", [near_flat, lame_chain_logits], ids=["perfect", "poor"])
async def test_a_right_target_is_never_said_to_differ(k: int, draft: Script) -> None:
    async with checking(near_flat, draft, always(k)) as running:
        await asyncio.gather(*(running.plain(**request(number, number % 4 / 2)) for number in range(12)))
        await running.plain(prompt="a", n=3, max_tokens=20, seed=5)
        assert await tally(running) == NOTHING | {"equal": 15}


@pytest.mark.parametrize(
    "verification", sorted(set(VerificationChoice) - {VerificationChoice.AUTO, VerificationChoice.COUPLED})
)
async def test_an_answer_that_only_keeps_its_law_is_skipped_and_said_to_be(verification: VerificationChoice) -> None:
    speculation = replace(always(3), verification=verification)
    async with checking(near_flat, lame_chain_logits, speculation) as running:
        for temperature in (0.0, 0.7, 1.0):
            await running.plain(**request(3, temperature))
        assert await tally(running) == NOTHING | {"equal": 1, "skipped": 2}


async def test_an_answer_without_a_proposal_or_outside_the_share_is_not_replayed() -> None:
    async with checking(near_flat, near_flat, always(4)) as running:
        await running.plain(**request(1, 1.0), speculation={"off": True})
        running.put_policy(exactness=ExactnessPolicy(0))
        await running.plain(**request(1, 1.0))
        assert await tally(running) == NOTHING


async def test_replays_are_in_no_usage_no_evidence_and_no_metric_but_their_own() -> None:
    async with checking(near_flat, near_flat, always(4), working=False) as running:
        replies = [await running.plain(**request(number, 1.0)) for number in range(6)]
        before, metrics_before = books(running)
        replaying = asyncio.create_task(running.gateway.replays.run())
        found = await tally(running)
        after, metrics_after = books(running)
        replaying.cancel()
        (target,) = running.gateway.fleet.targets
    assert found == NOTHING | {"equal": 6}
    assert (after, metrics_after) == (before, metrics_before)
    assert (target.sessions, target.served) == (0, 6)
    assert sum(reply["usage"]["completion_tokens"] for reply in replies) == after["strata"][0]["emitted"]


def books(running: Running) -> tuple[dict[str, Any], list[str]]:
    """All that is counted, without what is counted of replays themselves."""
    running.clock.shift += 3600  # every slot is closed
    document: dict[str, Any] = {**running.gateway.evidence()}
    running.clock.shift -= 3600
    document["strata"] = [{**stratum, "exactness": None} for stratum in document["strata"]]
    lines = running.gateway.books.metrics.render().decode().splitlines()
    return document, [line for line in lines if "tandem_exactness" not in line]


async def test_the_queue_stays_within_its_bound_while_the_target_is_busy_and_empties_afterwards() -> None:
    model = ScriptedModel(near_flat, max_length=256)
    async with checking(model, near_flat, always(4)) as running:
        (target,) = running.gateway.fleet.targets
        target.sessions += 1  # somebody is served all the time
        for _ in range(5):
            await asyncio.gather(*(running.plain(**request(number, 1.0)) for number in range(10)))
            assert running.gateway.replays.waiting <= 32
        assert running.gateway.replays.waiting == 32
        target.sessions -= 1
        assert await tally(running) == NOTHING | {"equal": 32, "dropped": 18}
    assert model.blocks.used == 0


async def test_a_drain_drops_the_queue_at_once() -> None:
    ending, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    listening = Listening(host="127.0.0.1", port=0, admin_port=0, notice_seconds=0, grace_seconds=30)
    async with running_gateway(near_flat, near_flat, speculation=always(4)) as running:
        running.put_policy(exactness=ALL)
        (target,) = running.gateway.fleet.targets
        target.sessions += 1
        serving = asyncio.create_task(
            serve_gateway(running.gateway, listening, keys=None, ending=ending, started=started)
        )
        await started
        for number in range(3):
            await running.plain(**request(number, 1.0))
        assert running.gateway.replays.waiting == 3
        ending.set()
        await until(lambda: running.gateway.replays.waiting == 0)
        found = await tally(running)
        await running.plain(**request(4, 1.0))
        later = await tally(running)
        await serving
    assert (found, later) == (NOTHING | {"dropped": 3}, NOTHING | {"dropped": 4})
