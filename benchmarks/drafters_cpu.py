"""Measures suffix drafting in real time: SmolLM2-135M in the torch engine, against its own plain decoding.

Refuses to know the rig. The ten edit-or-quote prompts of `engine_cpu` and ten replayed edits of this repository's
history; the text is the model's own, greedy, 96 tokens. Each prompt is answered plainly and with suffix drafting in
turns (ABBA, so that drift falls on both alike), and both texts are compared: they must be the same. Decode time alone
counts, from the first tokens to the last. The figure is the geometric mean over prompts of the ratio of medians.
"""

import asyncio
import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.edits import read_edits
from benchmarks.smollm2 import needed_folder
from benchmarks.workload import read_prompts
from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Round,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.driver import Deadlines, Engines, generate
from tandem_runtime.engines.cores import allowed_cores
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.ports import TargetEngine
from tandem_runtime.tokenizer import FolderTokenizer

TOKENS, TURNS, LENGTH = 96, 4, 2048
EDITS = 10
ON = Bounds(1, 16)
SUFFIX = (Drafter.SUFFIX,)
PATIENT = Deadlines(open_seconds=600, propose_seconds=600, verify_seconds=600)


class Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class Silent:
    def round(self, round: Round) -> None:
        """Nothing to tell."""


@dataclass(slots=True)
class Stand:
    """The engine, and what its sessions share while lookups draft."""

    engine: BatchedTarget
    capabilities: Capabilities
    clock: Clock = field(default_factory=Clock)
    beliefs: Beliefs = field(default_factory=lambda: Beliefs(Segments(), Segment("bench"), Looks()))
    patience: Patience = field(default_factory=Patience)
    asked: int = 0

    async def decode(self, prompt: tuple[TokenId, ...], *, drafts: bool) -> tuple[float, tuple[TokenId, ...]]:
        """Seconds from the first emission to the last, and the text. No tenant: nothing is kept between answers."""
        self.asked += 1
        drafting = Drafting(SUFFIX, self.beliefs)
        lookup = LookupDraft(Drafter.SUFFIX, self.capabilities, self.clock)
        member = Member(Drafter.SUFFIX, lookup, self.patience, LENGTH)
        request = Request(
            session=SessionId(f"bench-{self.asked}"),
            prompt=prompt,
            parameters=SamplingParameters(seed=0, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(TOKENS),
            decode=lambda _: "",
            target_length=LENGTH,
            draft_length=LENGTH,
            draft_is_free=True,
        )
        items = generate(
            Session(request),
            engines=Engines(
                self.engine,
                CombinedDraft([member], drafting, self.clock, self.capabilities.vocab_size),
                self._same,
                PATIENT,
            ),
            lookahead=drafting,
            allowance=lambda: ON if drafts else OFF,
            observer=Silent(),
            clock=self.clock,
        )
        ids: list[TokenId] = []
        at: list[float] = []
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Emit):
                    ids += item.tokens
                    at.append(time.perf_counter())
        return at[-1] - at[0], tuple(ids)

    async def _same(self) -> TargetEngine:
        return self.engine


async def compare(stand: Stand, prompts: Sequence[tuple[str, tuple[TokenId, ...]]]) -> list[dict[str, Any]]:
    """For each prompt the seconds of each turn."""
    runs: list[dict[str, Any]] = []
    await stand.decode(prompts[0][1], drafts=True)  # warms up
    for name, prompt in prompts:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        texts: set[tuple[TokenId, ...]] = set()
        for turn in range(TURNS):
            for drafts in (False, True) if turn % 2 else (True, False):
                took, text = await stand.decode(prompt, drafts=drafts)
                seconds[drafts].append(took)
                texts.add(text)
        assert len(texts) == 1, f"drafting changed the text of {name}"
        ratio = median(seconds[False]) / median(seconds[True])
        print(f"{name:40} {len(prompt):5} + {TOKENS} tokens: {ratio:.2f}", flush=True)
        runs.append({"prompt": name, "plain": seconds[False], "suffix": seconds[True], "ratio": ratio})
    return runs


def prompts_of(tokenizer: FolderTokenizer) -> list[tuple[str, tuple[TokenId, ...]]]:
    """Edits or quotes of `engine_cpu`, then steps of agents: the file's part, and its first changed lines."""
    fixed = [(prompt.name, prompt.ids) for prompt in read_prompts(tokenizer.encode) if prompt.kind == "edit"]
    steps = [
        (
            f"{edit.commit}:{Path(edit.path).name}",
            tokenizer.encode(
                f"{edit.path} is:\n\n{edit.before}\n{edit.subject}. {edit.path} becomes:\n\n"
                + "".join(edit.after.splitlines(keepends=True)[:3])
            ),
        )
        for edit in read_edits()[:EDITS]
    ]
    return [*fixed, *steps]


def measure_cpu() -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The figures, and the raw seconds."""
    folder = needed_folder()
    threads = int(os.environ.get("OMP_NUM_THREADS", allowed_cores()))
    options = EngineOptions(
        model=str(folder), device="cpu", dtype="fp32", threads=threads, max_sessions=2, max_length=LENGTH
    )
    model = load_torch_model(options)
    facts = EngineFacts(model_digest="bench", tokenizer_digest="bench", incarnation=Incarnation("bench"))
    tokenizer = FolderTokenizer(folder)
    with ExitStack() as running:
        engine = running.enter_context(BatchedTarget(model, facts, clock=Clock()))
        stand = Stand(engine, facts.capabilities(model))
        runs = asyncio.run(compare(stand, prompts_of(tokenizer)))
    gain = math.exp(sum(math.log(run["ratio"]) for run in runs) / len(runs))
    print(f"suffix over plain on SmolLM2-135M, {threads} threads, geometric mean: {gain:.2f}")
    return {"cpu_speedup": round(gain, 4)}, runs
