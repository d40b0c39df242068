"""Two hundred requests of all kinds at once say, to the last bit, what each of them says alone.

Prompts that share prefixes, temperatures, all verifications, K from 0 to 8 anew in every round, logprobs, adapters,
tenants, priorities, callers that leave and come back, a memory for a few sessions only, and chunks of 1, 7 and 64
tokens, over a target and a draft on the torch engine. Alone means: one after the other, with no prefix shared.
"""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.exactness.loops import PATIENT, CountedClock, NobodyWatches, exactly, nobody, spelled
from tests.seams.adapter_folders import saved_adapter
from tests.seams.port_models import LENGTH, VOCAB, decoder

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Incarnation,
    Priority,
    SamplingParameters,
    SessionId,
    TokenId,
    TokenLogprob,
    Verification,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.engines.torch_engine.linear import multiplier_for

AT_ONCE = 24
"""Sessions that the engines are asked to hold together; their memory is enough for two at full length."""
BLOCKS = 16
REQUESTS = {64: 160, 7: 32, 1: 8}
"""By the size of a chunk."""


@dataclass(frozen=True)
class Case:
    """One request and its fate: K by round, and how often its caller leaves, after so many emissions, to come back."""

    request: Request
    ks: tuple[int, ...]
    leavings: tuple[int, ...]


@dataclass(frozen=True)
class Said:
    tokens: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...]


def cases_of(seed: int, count: int, adapters: Sequence[AdapterDigest] = ()) -> list[Case]:
    chance = random.Random(seed)
    stems = [[chance.randrange(VOCAB) for _ in range(70)] for _ in range(4)]
    return [_case(f"{seed}-{number}", chance, stems, adapters) for number in range(count)]


def _case(
    name: str, chance: random.Random, stems: Sequence[Sequence[TokenId]], adapters: Sequence[AdapterDigest]
) -> Case:
    own = [chance.randrange(VOCAB) for _ in range(chance.randint(1, 30))]
    stem = chance.choice(stems)[: chance.choice([0, 0, 16, 33, 48, 70])]
    request = Request(
        session=SessionId(name),
        prompt=(*stem, *own),
        parameters=SamplingParameters(
            seed=chance.getrandbits(64),
            temperature=chance.choice([0.0, 0.3, 0.8, 1.2]),
            top_p=chance.choice([1.0, 0.9]),
            presence_penalty=chance.choice([0.0, 0.0, 0.5]),
        ),
        verification=chance.choice(list(Verification)),
        endings=Endings(chance.randint(1, 8), frozenset({0}), ()),
        decode=spelled,
        target_length=LENGTH,
        draft_length=LENGTH,
        logprobs=chance.choice([None, 0, 3]),
        vocab_size=VOCAB,
        tenant=chance.choice(["a", "b", "c", None]),
        weight=chance.choice([1.0, 2.0]),
        priority=chance.choice(list(Priority)),
        adapter=chance.choice([None, *adapters]),
    )
    leavings = tuple(chance.randint(0, 4) for _ in range(chance.choice([0, 0, 0, 1, 2])))
    return Case(request, tuple(chance.randint(0, 8) for _ in range(32)), leavings)


@dataclass(frozen=True)
class Pair:
    """`models` are the target's and the draft's."""

    target: BatchedTarget
    draft: BatchedDraft
    models: tuple[TorchModel, TorchModel]

    async def say(self, case: Case) -> Said:
        """Ask as often as the caller leaves, and once more."""
        for leaving in case.leavings:
            await self._ask(case, leaving)
        return await self._ask(case, None)

    async def _ask(self, case: Case, until: int | None) -> Said:
        bounds = plan_of(case)
        engines = Engines(self.target, self.draft, nobody, PATIENT)
        items = generate(
            Session(case.request),
            engines=engines,
            lookahead=Lookahead(),
            allowance=lambda: next(bounds),
            observer=NobodyWatches(),
            clock=CountedClock(),
        )
        emits: list[Emit] = []
        async with aclosing(items) as stream:
            async for item in stream:
                if len(emits) == until:
                    break
                emits += [item] if isinstance(item, Emit) else []
        return Said(
            tuple(token for emit in emits for token in emit.tokens),
            tuple(logprob for emit in emits for logprob in emit.logprobs or ()),
        )


def plan_of(case: Case) -> Iterator[Bounds]:
    return (next(exactly(k)) for k in case.ks)


@dataclass(frozen=True)
class Setting:
    """What the engines compute in, and the adapters of the target."""

    dtype: torch.dtype
    folders: tuple[Path, ...] = ()

    @asynccontextmanager
    async def pair(self, *, chunk: int) -> AsyncIterator[Pair]:
        """The draft is a relative of the target's."""
        models = (model_of(self.dtype, 0.0), model_of(self.dtype, 0.1))
        if any(model.determinism != "Bitwise" for model in models):
            pytest.skip("this machine's libraries sum rows of this type in more than one order")
        adapters = Adapters(models[0])
        for folder in self.folders:
            adapters.put_in(folder.name, adapters.read(folder.name, folder))
        made = partial(EngineFacts, model_digest="m", tokenizer_digest="t")
        size = StepSize(chunk, 48)
        target = BatchedTarget(
            models[0],
            made(incarnation=Incarnation("t"), adapters=adapters),
            clock=CountedClock(),
            size=size,
            patience_seconds=0.0,
        )
        draft = BatchedDraft(
            models[1], made(incarnation=Incarnation("d")), clock=CountedClock(), size=size, patience_seconds=0.0
        )
        with ExitStack() as running:
            running.enter_context(target)
            running.enter_context(draft)
            yield Pair(target, draft, models)

    async def digests(self) -> list[AdapterDigest]:
        async with self.pair(chunk=1) as pair:
            return [facts.digest for facts in (await pair.target.capabilities()).adapters]


def model_of(dtype: torch.dtype, noise: float) -> TorchModel:
    weights = deepcopy(decoder(noise=noise)).to(dtype)
    return TorchModel(weights, max_sessions=AT_ONCE + 8, max_length=LENGTH, kv_blocks=BLOCKS)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, ...]:
    if not multiplier_for(torch.device("cpu")).row_invariant:
        return ()  # without our product rows round by company, and so would those of adapters
    weights = decoder(noise=0.0).state_dict()
    return tuple(saved_adapter(tmp_path / name, weights, seed=seed) for seed, name in enumerate(["poet", "clerk"]))


async def all_alone(setting: Setting, cases: Sequence[Case]) -> list[Said]:
    async with setting.pair(chunk=256) as pair:
        return [
            await pair.say(replace(case, request=replace(case.request, tenant=None), leavings=())) for case in cases
        ]


async def all_together(pair: Pair, cases: Sequence[Case]) -> list[Said]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> Said:
        async with places:
            return await pair.say(case)

    said = await asyncio.gather(*(one(case) for case in cases))
    for model in pair.models:
        assert (model.blocks.used, model.blocks.available) == (0, BLOCKS), "a block leaked"
    return said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
async def test_two_hundred_mixed_requests_say_what_each_says_alone(
    dtype: torch.dtype, folders: tuple[Path, ...]
) -> None:
    setting = Setting(dtype, folders)
    adapters = await setting.digests()
    preemptions = dropped = known = 0
    for chunk, count in REQUESTS.items():
        cases = cases_of(chunk, count, adapters)
        expected = await all_alone(setting, cases)
        async with setting.pair(chunk=chunk) as pair:
            found = await all_together(pair, cases)
            counts, drafted = pair.target.memory, pair.draft.memory
        assert [at for at, said in enumerate(found) if said != expected[at]] == []
        assert sum(len(said.tokens) for said in found) > 2 * count
        assert all(count > 0 for count in counts.computed.values()), "all priorities were computed"
        preemptions += counts.preemptions
        dropped += drafted.preemptions
        known += counts.cached_tokens
    assert min(preemptions, dropped) > 20
    assert known > 1000


async def test_coupled_requests_say_what_plain_decoding_says() -> None:
    setting = Setting(torch.float32)
    cases = [
        replace(case, request=replace(case.request, verification=Verification.COUPLED)) for case in cases_of(5, 30)
    ]
    plain = await all_alone(setting, [replace(case, ks=(0,) * 32) for case in cases])
    async with setting.pair(chunk=64) as pair:
        assert await all_together(pair, cases) == plain


async def test_memory_stays_flat_from_run_to_run() -> None:
    """Objects that Python holds, after one run and after two more."""
    cases = cases_of(6, 24)
    async with Setting(torch.float32).pair(chunk=64) as pair:
        held = []
        for _ in range(3):
            await all_together(pair, cases)
            gc.collect()
            held.append(len(gc.get_objects()))
    assert held[2] - held[0] < 500, f"objects after each run: {held}"
