"""Measures tokens per second of the trained pair, off and on, unpaced and paced: `make bench NAME=pair_speed`.

Refuses to know HTTP and gRPC: driver, session and the K rule are the product's own, the engines run in this process
with one thread each. Unpaced figures are this machine's; paced ones stretch the steps to the tables' costs (target
h100-70b: 15 + .6 K ms, draft l4-8b: 4 ms). One stream, greedy, off and on in turns over the same prompts; the texts
must be equal. The figure is total tokens over total seconds of each side.
"""

import asyncio
import json
import time
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from benchmarks.coupled_verify import PAIRS, SEED, Clock, engine_facts
from benchmarks.record import record
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.commands import Emit, Request
from tandem_runtime.domain.lookahead import OFF, Belief, Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Round, SamplingParameters, SessionId, Verification
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.pace import UNPACED, Pace, cost_named
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.native_lessons import beginning
from tandem_runtime.ports import StepModel, TargetEngine
from tandem_runtime.tokenizer import FolderTokenizer

PROMPTS, TOKENS = 12, 64
ON = Bounds(1, 8)
TABLES = {"target": "h100-70b", "draft-good": "l4-8b"}


class Silent:
    def round(self, round: Round) -> None:
        """Nothing to tell."""


@dataclass(slots=True)
class Side:
    """One arm's sums, and the K rule that it keeps over its prompts as a gateway would."""

    bounds: Bounds
    lookahead: Lookahead
    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class Pair:
    """The running engines and their tokenizer."""

    target: BatchedTarget
    draft: BatchedDraft
    tokenizer: FolderTokenizer

    async def ids(self, text: str, side: Side, number: int) -> list[int]:
        """The greedy continuation of `text`; adds to the side's sums."""
        request = Request(
            session=SessionId(f"bench-{number}-{side.bounds.maximum}"),
            prompt=self.tokenizer.encode(text),
            parameters=SamplingParameters(seed=SEED, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(max_tokens=TOKENS, end_tokens=frozenset(), stop=()),
            decode=self.tokenizer.decode,
            target_length=(await self.target.capabilities()).max_length,
            draft_length=(await self.draft.capabilities()).max_length,
        )
        found: list[int] = []
        began = time.perf_counter()
        items = generate(
            Session(request),
            engines=Engines(self.target, self.draft, self._reopen),
            lookahead=side.lookahead,
            allowance=lambda: side.bounds,
            observer=Silent(),
            clock=Clock(),
        )
        async with aclosing(items):
            async for item in items:
                found += item.tokens if isinstance(item, Emit) else ()
        side.seconds += time.perf_counter() - began
        side.tokens += len(found)
        return found

    async def _reopen(self) -> TargetEngine:
        return self.target


def knowing_nothing() -> Lookahead:
    """As in a gateway that begins."""
    return Shared(Belief(beginning().untaught)).begin()


async def compare(pair: Pair) -> tuple[Side, Side]:
    """Off and on in turns; raises where a text differs."""
    prompts = json.loads((PAIRS / "prompts.json").read_text())["prose"][: PROMPTS + 2]
    warm = Side(ON, knowing_nothing()), Side(OFF, knowing_nothing())
    for side in warm:
        await pair.ids(prompts[PROMPTS], side, -1)
    off, on = Side(OFF, knowing_nothing()), Side(ON, knowing_nothing())
    for number, text in enumerate(prompts[:PROMPTS]):
        sides = (off, on) if number % 2 == 0 else (on, off)
        first, second = [await pair.ids(text, side, number) for side in sides]
        if first != second:
            raise SystemExit(f"prompt {number}: speculation changed the text")
    return off, on


def load(role: str) -> StepModel:
    return load_torch_model(EngineOptions(model=str(PAIRS / role), dtype="fp32", threads=1, max_sessions=4))


def pace(role: str, *, paced: bool) -> Pace:
    return Pace(cost_named(TABLES[role]) if paced else UNPACED, clock=Clock())


def run(*, paced: bool) -> tuple[Side, Side]:
    with ExitStack() as stack:
        target = stack.enter_context(
            BatchedTarget(
                load("target"), engine_facts(PAIRS / "target"), clock=Clock(), pace=pace("target", paced=paced)
            )
        )
        draft = stack.enter_context(
            BatchedDraft(
                load("draft-good"),
                engine_facts(PAIRS / "draft-good"),
                clock=Clock(),
                pace=pace("draft-good", paced=paced),
            )
        )
        return asyncio.run(compare(Pair(target, draft, FolderTokenizer(PAIRS / "target"))))


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, float]] = {}
    for name, paced in (("unpaced", False), ("paced", True)):
        off, on = run(paced=paced)
        print(f"{name:8} off {off.rate:7.1f} tokens/s  on {on.rate:7.1f} tokens/s  speed-up {on.rate / off.rate:.3f}")
        figures |= {
            f"{name}_off_tokens_per_s": round(off.rate, 2),
            f"{name}_on_tokens_per_s": round(on.rate, 2),
            f"{name}_speedup": round(on.rate / off.rate, 4),
        }
        samples[name] = {
            "off_tokens": off.tokens,
            "off_seconds": off.seconds,
            "on_tokens": on.tokens,
            "on_seconds": on.seconds,
        }
    print(record("pair_speed", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
