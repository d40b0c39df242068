"""Knows how callers of all kinds are kept asking while everything breaks, and what came of it.

Refuses to know what an answer should be: it is what was said before anything broke, without speculation.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.asking import KINDS, Kind, Said, read_plain
from tests.soak.exchange import Manner, exchange
from tests.soak.judging import FINE, Judged, Outcome, judge
from tests.soak.secrets import leaks, secrets_of
from tests.soak.stage import FAULTS, Stage, staged

from tandem_runtime.tokenizer import FolderTokenizer

CALLERS = 12
MANNERS = (Manner.PATIENT,) * 6 + (Manner.SLOW,) * 2 + (Manner.LEAVING, Manner.HALF_CLOSED)
MOST_BYTES_BEFORE_LEAVING = 6_000
MOST_PAUSE_SECONDS = 0.5
TRIES = 20
"""Of a request that no gateway took: one that drains closes its port before everyone has heard of it."""
TRY_AGAIN_SECONDS = 0.1
WORST_SHOWN = 5


@dataclass(slots=True)
class Report:
    """What came of it."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left_behind: Mapping[str, float] = field(default_factory=dict)
    """Sessions that roles hold at the end, though nobody asks any more."""
    tracebacks: list[str] = field(default_factory=list)
    """Logs with one."""
    leaks: list[str] = field(default_factory=list)
    """Places where a prompt or an answer stands that is nobody's business."""
    resident_mb: list[int] = field(default_factory=list)
    """Of the gateways at the end."""

    @property
    def is_clean(self) -> bool:
        return not (self.wrong or self.left_behind or self.tracebacks or self.leaks)

    def add(self, kind: Kind, manner: Manner, judged: Judged) -> None:
        self.outcomes[judged.outcome] += 1
        if judged.outcome is Outcome.REFUSED:
            self.refusals[judged.why] += 1
        if judged.outcome is Outcome.WRONG:
            self.wrong.append(f"{kind.name}, {manner}: {judged.why}")

    def __str__(self) -> str:
        lines = [
            f"answers {_counts(self.outcomes)}; refusals {_counts(self.refusals)}",
            f"faults {_counts(self.faults)}; gateways at the end {self.resident_mb} MB",
            *(f"WRONG {each}" for each in self.wrong[:WORST_SHOWN]),
            *(f"LEFT BEHIND {name}: {count:.0f} sessions" for name, count in self.left_behind.items()),
            *(f"TRACEBACK in {name}" for name in self.tracebacks),
            *(f"LEAK in {each}" for each in self.leaks[:WORST_SHOWN]),
        ]
        return "\n".join(lines)


def _counts(counts: Counter[Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


async def undisturbed(port: int) -> dict[str, Said]:
    """What each kind of request is answered, plainly decoded, by its name."""
    said: dict[str, Said] = {}
    for kind in KINDS:
        heard = await exchange(port, kind.path, kind.body(stream=False, off=True), Manner.PATIENT, leave_after=0)
        assert heard.status == FINE, f"{kind.name} was answered {heard.status}: {heard.content[:500]!r}"
        said[kind.name] = read_plain(heard.content)
    return said


async def call(stage: Stage, expected: Mapping[str, Said], report: Report, chance: random.Random) -> None:
    """One caller, request after request."""
    while True:
        kind, manner = chance.choice(KINDS), chance.choice(MANNERS)
        report.add(kind, manner, await _asked(stage, kind, manner, expected[kind.name], chance))


async def _asked(stage: Stage, kind: Kind, manner: Manner, expected: Said, chance: random.Random) -> Judged:
    stream = kind.streams and chance.random() < 0.7
    leave_after = chance.randrange(MOST_BYTES_BEFORE_LEAVING)
    judged = Judged(Outcome.WRONG, f"no gateway took it in {TRIES} tries")
    for _ in range(TRIES):
        port = chance.choice(stage.ports)
        try:
            heard = await exchange(port, kind.path, kind.body(stream=stream), manner, leave_after=leave_after)
        except TimeoutError:
            return Judged(Outcome.WRONG, "it was never answered")
        now = judge(heard, expected, manner, stream=stream)
        if now.outcome is not Outcome.UNTAKEN:
            return now
        await asyncio.sleep(TRY_AGAIN_SECONDS)
    return judged


async def disturb(stage: Stage, report: Report, until: float) -> None:
    """One fault after another: all in their order, then by chance."""
    coming = list(reversed(FAULTS))
    while time.monotonic() < until:
        fault = coming.pop() if coming else stage.chance.choice(FAULTS)
        began = time.monotonic()
        await fault(stage)
        report.faults[fault.__name__] += 1
        print(f"{fault.__name__} {time.monotonic() - began:.1f} s", flush=True)
        await asyncio.sleep(stage.chance.random() * MOST_PAUSE_SECONDS)


async def soak(place: Path, *, seconds: float, seed: int) -> Report:
    """Ask and break for so long; then let all come to its end. Logs lie in `place`."""
    async with staged(place, seed) as stage:
        expected, report = await undisturbed(stage.ports[0]), Report()
        print(f"{len(expected)} kinds of request, {CALLERS} callers, {seconds:.0f} s, seed {seed}", flush=True)
        callers = [
            asyncio.create_task(call(stage, expected, report, random.Random(f"{seed}-{number}")))
            for number in range(CALLERS)
        ]
        try:
            await _unless_one_fails(callers, disturb(stage, report, time.monotonic() + seconds))
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)
        report.left_behind = await stage.quiet()
        report.resident_mb = [gateway.child.resident_bytes // 2**20 for gateway in stage.gateways]
        told = await stage.told()
    logs = {log.name: log.read_text(errors="replace") for log in sorted(place.glob("*.log"))}
    report.tracebacks = [name for name, text in logs.items() if "Traceback" in text]
    report.leaks = list(leaks({**logs, **told}, secrets_of(expected, FolderTokenizer(stage.running.folder))))
    return report


async def _unless_one_fails(callers: Sequence[asyncio.Task[None]], disturbing: Coroutine[Any, Any, None]) -> None:
    """A caller that fails is a fault of the soak itself, and is not to be missed."""
    breaking = asyncio.create_task(disturbing)
    done, _ = await asyncio.wait((*callers, breaking), return_when=asyncio.FIRST_COMPLETED)
    if breaking not in done:
        breaking.cancel()
        with suppress(asyncio.CancelledError):
            await breaking
    for task in done:
        task.result()
