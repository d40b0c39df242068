"""Measures plain decoding through Tandem over the engine alone, whole requests: `make bench NAME=off_overhead`.

Refuses to know speculation: there is no draft. The model is SmolLM2-135M in bf16, on all cores but one, which is left
to the gateway; greedy, 64 new tokens behind prompts of the engine's own comparison (`benchmarks.workload`).

*Through Tandem*: a target process and a gateway process (`tandem-runtime target`, `gateway`), asked over HTTP by this
process for a streamed answer; from the request to its last byte. *Alone*: the same engine in this process, its step
loop asked for one session and one run of all tokens; from the opening to the last token. Both read the prompt anew, as
no tenant is named. They take turns over the same prompts, A B B A, and both must say the same.

A ratio is that of one turn, through over alone. The figure is their median; quartiles stand beside it.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from benchmarks.record import record
from benchmarks.stage.fleet import addresses, fleet, plain
from benchmarks.workload import read_prompts
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.engines.cores import SHORT_WAITING, allowed_cores
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.model_folder import digests_of
from tandem_runtime.tokenizer import FolderTokenizer

SEED, TOKENS, TURNS, WARM_UP_TURNS = 31, 64, 16, 1
DTYPE, LENGTH = "bf16", 1024
SECONDS_TO_ANSWER = 120


class Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of one prompt, either way."""

    prompt_tokens: int
    through: float
    alone: float

    @property
    def ratio(self) -> float:
        return self.through / self.alone


@dataclass(slots=True)
class Alone:
    """The engine in this process."""

    target: BatchedTarget
    asked: int = 0

    async def answer(self, prompt: tuple[TokenId, ...]) -> tuple[list[TokenId], float]:
        """What it says, and in how many seconds."""
        self.asked += 1
        began = time.perf_counter()
        opening = OpenSession(
            SessionId(f"alone-{self.asked}"),
            prompt,
            (),
            SamplingParameters(seed=SEED, temperature=0.0),
            Verification.COUPLED,
            max_tokens=TOKENS,
        )
        opened = await self.target.open(opening)
        run = self.target.run(RunRounds(opening.session, opened.incarnation, 0, 0, TOKENS))
        said = [verdict.token async for verdict in run]
        seconds = time.perf_counter() - began
        await self.target.close(opening.session)
        return said, seconds


@dataclass(slots=True)
class Through:
    """A gateway, and a target behind it."""

    http: httpx.AsyncClient

    async def answer(self, prompt: tuple[TokenId, ...]) -> tuple[str, float]:
        """What it says, and in how many seconds."""
        began = time.perf_counter()
        body = {"model": "chat", "prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        pieces: list[bytes] = []
        async with self.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            pieces += [piece async for piece in reply.aiter_raw()]
        return _text(b"".join(pieces).decode()), time.perf_counter() - began


def _text(events: str) -> str:
    """Of a whole stream."""
    told = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {")]
    if not events.endswith("data: [DONE]\n\n"):
        raise SystemExit(f"an answer did not come whole: {told[-1:]}")
    return "".join(choice["text"] for each in told for choice in json.loads(each)["choices"])


@asynccontextmanager
async def through(place: Path, folder: Path, threads: int) -> AsyncIterator[Through]:
    (address,) = addresses(1)
    async with fleet(place, folder, plain()) as running:
        words = ["tandem_runtime.main", "target", "--model", str(folder), "--dtype", DTYPE, "--threads", str(threads)]
        words += ["--max-length", str(LENGTH), "--max-sessions", "4", "--device", "cpu", "--host", address]
        await running.start("target", *words)
        await running.tell("t", "target", address)
        gateway = await running.gateway("gateway")
        await gateway.until_ready(drafts=False)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=SECONDS_TO_ANSWER) as http:
            yield Through(http)


async def take_turns(place: Path, folder: Path, alone: Alone, threads: int) -> list[Turn]:
    """Ends the command where the two say different things."""
    tokenizer = FolderTokenizer(folder)
    prompts = [tuple(each.ids) for each in read_prompts(tokenizer.encode)]
    turns: list[Turn] = []
    async with through(place, folder, threads) as tandem:
        for number in range(-WARM_UP_TURNS, TURNS):
            prompt = prompts[number % len(prompts)]
            if number % 2:
                (text, seconds), (said, own) = await tandem.answer(prompt), await alone.answer(prompt)
            else:
                (said, own), (text, seconds) = await alone.answer(prompt), await tandem.answer(prompt)
            if text != tokenizer.decode(said):
                raise SystemExit(f"prompt {number}: the answer through Tandem is another than the engine's alone")
            turn = Turn(len(prompt), seconds, own)
            print(f"{turn.prompt_tokens:13} {seconds:10.3f} {own:8.3f} {turn.ratio:7.4f}", flush=True)
            turns += [turn] if number >= 0 else []
    return turns


def measure(threads: int) -> list[Turn]:
    """With torch loaded here and not before, as OpenMP reads its settings then."""
    from benchmarks.smollm2 import needed_folder  # noqa: PLC0415  # as said
    from tandem_runtime.engines.torch_engine.engine import load_torch_model  # noqa: PLC0415  # as said

    folder = needed_folder()
    options = EngineOptions(
        model=str(folder), device="cpu", dtype=DTYPE, threads=threads, max_sessions=4, max_length=LENGTH
    )
    digests = digests_of(folder)
    facts = EngineFacts(
        model_digest=digests.model, tokenizer_digest=digests.tokenizer, incarnation=Incarnation("alone")
    )
    with (
        BatchedTarget(load_torch_model(options), facts, clock=Clock()) as target,
        tempfile.TemporaryDirectory() as place,
    ):
        return asyncio.run(take_turns(Path(place), folder, Alone(target), threads))


def main() -> None:
    os.environ.update(SHORT_WAITING)  # as `tandem-runtime target` has it
    threads = max(1, allowed_cores() - 1)
    print(f"{threads} threads\nprompt tokens  through s  alone s   ratio")
    turns = measure(threads)
    ratios = [turn.ratio for turn in turns]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"through Tandem over alone {middle:.4f} (must be at most 1.01)  quartiles {low:.4f} {high:.4f}")
    figures = {
        "ratio": round(statistics.median(ratios), 4),
        "ratio_low_quartile": round(low, 4),
        "ratio_high_quartile": round(high, 4),
        "alone_ms_per_token": round(1000 * statistics.median(turn.alone for turn in turns) / TOKENS, 3),
    }
    samples = {"turns": [asdict(turn) for turn in turns], "threads": threads, "tokens": TOKENS}
    print(record("off_overhead", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
