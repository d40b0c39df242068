"""Sessions in a memory too small for all of them: who shares, who waits, who is pushed out, and what is said."""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.seams.port_models import LENGTH, VOCAB, hashed_logits

from tandem_runtime.domain.errors import Overloaded
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Proposal,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits, Row, StepModel

LIFE = Incarnation("life-1")
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=LIFE)
BLOCK = 16


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class CountingModel(ScriptedModel):
    """Counts the tokens that it computes, waits at a gate, has no memory for steps of more than `most_rows` rows."""

    def __init__(self, *, kv_blocks: int, most_rows: int = 99) -> None:
        super().__init__(hashed_logits, max_length=LENGTH, max_sessions=16, kv_blocks=kv_blocks)
        self.computed = 0
        self.most_rows = most_rows
        self.gate = threading.Event()
        self.gate.set()

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        assert self.gate.wait(30)
        if len(rows) > self.most_rows:
            raise Overloaded("the device is out of memory; try again later")
        self.computed += sum(len(row.tokens) for row in rows)
        return super().forward(rows)


def target_of(model: StepModel, *, chunk: int = 64, patience: float = 0.0) -> BatchedTarget:
    return BatchedTarget(model, FACTS, clock=SystemClock(), size=StepSize(chunk), patience_seconds=patience)


def opening(name: str, prompt: tuple[TokenId, ...], tenant: str | None = "a") -> OpenSession:
    sampled = SamplingParameters(seed=7, temperature=0.7)
    return OpenSession(SessionId(name), prompt, (), sampled, Verification.COUPLED, max_tokens=20, tenant=tenant)


def prompt_of(seed: int, length: int) -> tuple[TokenId, ...]:
    return tuple(np.random.default_rng(seed).integers(0, VOCAB, length).tolist())


def round_of(name: str, number: int, offset: int, ids: tuple[TokenId, ...] = ()) -> VerifyRound:
    return VerifyRound(SessionId(name), LIFE, number, offset, Proposal(ids))


async def answer(target: BatchedTarget, request: OpenSession, count: int) -> list[TokenId]:
    """The first `count` tokens of a run; the session is closed."""
    await target.open(request)
    run = target.run(RunRounds(request.session, LIFE, 0, 0, count))
    tokens = [verdict.token async for verdict in run]
    await target.close(request.session)
    return tokens


async def test_a_prompt_that_is_known_is_read_from_where_it_is_new() -> None:
    model, prompt = CountingModel(kv_blocks=32), prompt_of(1, 40)
    with target_of(model) as target:
        first = await answer(target, opening("a", prompt), 1)
        assert model.computed == 40
        opened = await target.open(opening("b", prompt))
        verdict = await target.verify(round_of("b", 0, 0))
    assert (opened.cached_tokens, model.computed) == (32, 48)
    assert [verdict.token] == first


async def test_a_known_prompt_that_ends_with_a_block_costs_one_token_and_a_copy() -> None:
    model, prompt = CountingModel(kv_blocks=32), prompt_of(1, 32)
    with target_of(model) as target:
        await target.open(opening("first", prompt))
        verdicts = [await target.verify(round_of("first", 0, 0))]
        await target.open(opening("second", prompt))
        verdicts.append(await target.verify(round_of("second", 0, 0)))
        used = model.blocks.used
        verdicts.append(await target.verify(round_of("first", 1, 1)))
    assert model.computed == 32 + 1 + 1
    assert used == 2  # the copy is given up as soon as it is known to hold the same
    assert verdicts[0].token == verdicts[1].token


@pytest.mark.parametrize("tenants", [("a", "b"), (None, None), ("a", None)])
async def test_nothing_is_shared_between_tenants_or_without_one(tenants: tuple[str | None, str | None]) -> None:
    model, prompt = CountingModel(kv_blocks=32), prompt_of(1, 40)
    with target_of(model) as target:
        for tenant in tenants:
            await target.open(opening(f"of {tenant}", prompt, tenant))
            await target.verify(round_of(f"of {tenant}", 0, 0))
            await target.close(SessionId(f"of {tenant}"))
    assert model.computed == 80


async def test_another_tenant_that_takes_over_a_name_finds_nothing_of_the_former_session() -> None:
    model, prompt = CountingModel(kv_blocks=32), prompt_of(1, 40)
    with target_of(model) as target:
        await target.open(opening("s", prompt, "a"))
        await target.verify(round_of("s", 0, 0))
        opened = await target.open(opening("s", prompt, "b"))
    assert opened.cached_tokens == 0


async def test_rejected_guesses_are_never_known_to_others() -> None:
    model, prompt = CountingModel(kv_blocks=32), prompt_of(1, 31)
    with target_of(model) as target:
        await target.open(opening("first", prompt))
        verdict = await target.verify(round_of("first", 0, 0, (1, 2, 3)))
        opened = await target.open(opening("second", (*prompt, 1, 2, 3)))
        await target.verify(round_of("second", 0, 0))
    assert verdict.accepted == 0
    assert opened.cached_tokens == 16


async def test_choices_of_one_prompt_read_it_once() -> None:
    model, prompt = CountingModel(kv_blocks=64), prompt_of(1, 100)
    with target_of(model, chunk=24) as target:
        await asyncio.gather(*(target.open(opening(str(i), prompt)) for i in range(5)))
        verdicts = await asyncio.gather(*(target.verify(round_of(str(i), 0, 0)) for i in range(5)))
    assert len({verdict.token for verdict in verdicts}) == 1
    assert model.computed == 96 + 5 * 4


async def test_who_was_pushed_out_goes_on_as_if_nothing_had_happened() -> None:
    """Room for one session at full length: two of 100 tokens cannot both stand in it."""
    prompts = {"a": prompt_of(1, 100), "b": prompt_of(2, 100)}
    alone = CountingModel(kv_blocks=64)
    with target_of(alone) as target:
        expected = {name: await answer(target, opening(name, prompt), 6) for name, prompt in prompts.items()}
    model = CountingModel(kv_blocks=8)
    with target_of(model) as target:
        for name, prompt in prompts.items():
            await target.open(opening(name, prompt))
        seen: dict[str, list[TokenId]] = {"a": [], "b": []}
        for number in range(6):
            for name, tokens in seen.items():
                tokens.append((await target.verify(round_of(name, number, number))).token)
        assert target.memory.preemptions == 11
        for name in prompts:
            await target.close(SessionId(name))
    assert seen == expected
    assert model.blocks.used == 0


async def test_a_run_that_is_pushed_out_in_the_middle_of_a_want_gives_each_row_once() -> None:
    """The later session's long verify loses its memory between two chunks of wanted rows."""
    early, late = prompt_of(1, 90), prompt_of(2, 10)
    guesses = prompt_of(3, 100)
    roomy = CountingModel(kv_blocks=64)
    with target_of(roomy) as target:
        await target.open(opening("late", late))
        expected = await target.verify(round_of("late", 0, 0, guesses))
        tokens = await answer(target, opening("early", early), 12)
    model = CountingModel(kv_blocks=8)
    with target_of(model, chunk=8) as target:
        await target.open(opening("early", early))
        await target.open(opening("late", late))
        model.gate.clear()
        asked = asyncio.create_task(target.verify(round_of("late", 0, 0, guesses)))
        await asyncio.sleep(0)
        run = target.run(RunRounds(SessionId("early"), LIFE, 0, 0, 12))
        first = asyncio.ensure_future(anext(run))
        await asyncio.sleep(0)
        model.gate.set()
        assert [(await first).token, *[verdict.token async for verdict in run]] == tokens
        await target.close(SessionId("early"))
        verdict = await asked
        assert target.memory.preemptions > 0
    assert (verdict.accepted, verdict.token) == (expected.accepted, expected.token)


async def test_the_later_session_waits_while_the_earlier_one_rests_for_a_moment() -> None:
    model = CountingModel(kv_blocks=8)
    with target_of(model, patience=3600.0) as target:
        for name, seed in (("early", 1), ("late", 2)):
            await target.open(opening(name, prompt_of(seed, 100)))
        await target.verify(round_of("early", 0, 0))
        waiting = asyncio.create_task(target.verify(round_of("late", 0, 0)))
        for number in (1, 2):
            await target.verify(round_of("early", number, number))
        assert (waiting.done(), target.memory.preemptions) == (False, 0)
        await target.close(SessionId("early"))
        await waiting


async def test_who_has_waited_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem_runtime.engines.step_loop.LONGEST_WAIT_SECONDS", 0.0)
    model = CountingModel(kv_blocks=8)
    with target_of(model, patience=3600.0) as target:
        for name, seed in (("early", 1), ("late", 2)):
            await target.open(opening(name, prompt_of(seed, 100)))
        await target.verify(round_of("early", 0, 0))
        with pytest.raises(Overloaded, match="KV memory"):
            await target.verify(round_of("late", 0, 0))
        await target.verify(round_of("early", 1, 1))


async def test_a_step_too_large_for_the_device_is_taken_in_parts() -> None:
    model = CountingModel(kv_blocks=64)
    with target_of(model) as target:
        expected = [await answer(target, opening(str(i), prompt_of(i, 9)), 5) for i in range(5)]
        model.most_rows = 2
        found = await asyncio.gather(*(answer(target, opening(str(i), prompt_of(i, 9)), 5) for i in range(5)))
    assert found == expected


async def test_a_row_too_large_for_the_device_is_overloaded_alone() -> None:
    model = CountingModel(kv_blocks=64, most_rows=0)
    with target_of(model) as target:
        await target.open(opening("s", prompt_of(1, 9)))
        with pytest.raises(Overloaded):
            await target.verify(round_of("s", 0, 0))
        model.most_rows = 1
        await target.verify(round_of("s", 0, 0))


async def test_a_session_with_too_many_requests_at_once_is_told_to_wait() -> None:
    model = CountingModel(kv_blocks=64)
    with target_of(model) as target:
        await target.open(opening("s", prompt_of(1, 9)))
        asked = [target.verify(round_of("s", 0, 0)) for _ in range(20)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert all("of this session" in str(outcome) for outcome in refused)
    assert 1 <= len(outcomes) - len(refused) <= 20


REQUESTS = 40


def mixed_requests(seed: int) -> list[OpenSession]:
    """Prompts of all lengths, half of which begin as another does; two tenants and none."""
    chance = random.Random(seed)
    stems = [prompt_of(stem, 60) for stem in range(3)]
    requests = []
    for number in range(REQUESTS):
        own = prompt_of(100 + number, chance.randint(1, 40))
        prompt = (*chance.choice(stems)[: chance.choice([16, 32, 50, 60])], *own) if chance.random() < 0.5 else own
        plain = opening(str(number), prompt, chance.choice(["a", "b", None]))
        sampled = SamplingParameters(seed=number, temperature=chance.choice([0.0, 0.8]))
        requests.append(replace(plain, parameters=sampled))
    return requests


async def speculated(
    target: BatchedTarget, request: OpenSession, expected: list[TokenId], chance: random.Random
) -> None:
    """Verify rounds of any K, some guesses right and some wrong, runs between; cancelled or begun anew at times."""
    await target.open(request)
    tokens: list[TokenId] = []
    rounds = 0
    while len(tokens) < len(expected):
        here = expected[len(tokens) :]
        wrong = [chance.randrange(VOCAB) for _ in range(chance.randint(0, 3))]
        ids = tuple([*here[: chance.randint(0, 6)], *wrong][: len(here) - 1])
        asked = VerifyRound(request.session, LIFE, rounds, len(tokens), Proposal(ids))
        if chance.random() < 0.2:
            await cancelled(target, asked, ticks=chance.randint(0, 3))
            if chance.random() < 0.3:
                await target.open(request)
                tokens, rounds = [], rounds + 1
                continue
        verdict = await target.verify(asked)
        tokens += [*ids[: verdict.accepted], verdict.token]
        rounds += 1
        if chance.random() < 0.2 and len(tokens) < len(expected):
            run = target.run(RunRounds(request.session, LIFE, rounds, len(tokens), 1))
            tokens += [verdict.token async for verdict in run]
            rounds += 1
    assert tokens == expected
    await target.close(request.session)


async def cancelled(target: BatchedTarget, request: VerifyRound, *, ticks: int) -> None:
    asked = asyncio.create_task(target.verify(request))
    for _ in range(ticks):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


def scripted(kv_blocks: int) -> StepModel:
    return ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=16, kv_blocks=kv_blocks)


@pytest.mark.parametrize("chunk", [1, 7, 64])
async def test_mixed_requests_in_a_short_memory_say_what_each_says_alone(chunk: int) -> None:
    requests, chance = mixed_requests(chunk), random.Random(chunk)
    model, roomy = scripted(8), scripted(96)
    with target_of(roomy) as target:
        expected = [await answer(target, replace(request, tenant=None), 12) for request in requests]
    places = asyncio.Semaphore(12)

    async def one(target: BatchedTarget, at: int) -> None:
        async with places:
            await speculated(target, requests[at], expected[at], random.Random(chance.random()))

    with target_of(model, chunk=chunk) as target:
        await asyncio.gather(*(one(target, at) for at in range(REQUESTS)))
        assert target.memory.preemptions > 0
        assert target.memory.cached_tokens > 0
    assert (model.blocks.used, model.blocks.available) == (0, 8)
