"""Knows the command that proves speculation harmless on real kernels: the engine as it is, and engines that are wrong.

    python -m tests.exactness.kernels                                 the example target and a random model
    python -m tests.exactness.kernels --model FOLDER --dtype bf16     one model, on this machine's device
    python -m tests.exactness.kernels --export FILE                   the counts as JSON, one object a line, too

Refuses to know what explains a split. Prints a line per engine; exits 1 if a right engine is not certified, or if a
planted fault is, whether its rows are computed anew by itself or by an engine without it.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
from tests.exactness.certifying import BITWISE, Engine, Judge
from tests.exactness.kernel_faults import BY_COMPANY, FAULTS, STOCK, planted
from tests.exactness.kernel_reference import PAIRS, Subject, from_folder, tiny

from tandem_runtime.domain.certificate import Calibration, Certificate
from tandem_runtime.engines.torch_engine.engine import DTYPES, TorchModel
from tandem_runtime.engines.torch_engine.linear import Multiplier

LONGEST_PROMPT = 64
TEMPERATURES = (0.0, 1.0)
TEXTS, TOKENS = 12, 48


@dataclass(frozen=True)
class Bench:
    """Makes engines of one subject and dtype, with room for texts of `tokens`."""

    subject: Subject
    dtype: torch.dtype
    tokens: int

    def shipped(self) -> TorchModel:
        return self._made(None)

    def stock(self) -> TorchModel:
        return self._made(STOCK)

    def by_company(self) -> TorchModel:
        return self._made(BY_COMPANY)

    def _made(self, multiplier: Multiplier | None) -> TorchModel:
        decoder = self.subject.decoder(self.dtype).to("cuda" if torch.cuda.is_available() else "cpu")
        length = LONGEST_PROMPT + 2 * self.tokens
        return TorchModel(decoder, max_sessions=2, max_length=length, multiplier=multiplier)


@dataclass(frozen=True)
class Setting:
    """What an engine was judged on."""

    model: str
    dtype: str
    temperature: float

    def __str__(self) -> str:
        return f"{self.model} {self.dtype} T={self.temperature}"


@dataclass(frozen=True)
class Finding:
    """`rate`: the splits per position that were allowed at most."""

    name: str
    determinism: str
    certificate: Certificate
    is_fault: bool
    rate: float

    @property
    def is_right(self) -> bool:
        """Certified, or a fault with a split that nothing explains."""
        return bool(self.certificate.unexplained) if self.is_fault else self.certificate.holds

    def exported(self, setting: Setting) -> dict[str, str | int | float | bool]:
        """One object of `--export`; docs/determinism.md says what each field is."""
        found = self.certificate
        return {
            **asdict(setting),
            "engine": self.name,
            "determinism": self.determinism,
            "planted_fault": self.is_fault,
            "positions": found.positions,
            "near_ties": found.near_ties,
            "allowed": found.allowed,
            "rate": self.rate,
            "unexplained": len(found.unexplained),
            "certified": found.holds,
        }

    def __str__(self) -> str:
        found = self.certificate
        splits = f"{found.near_ties} near ties of {found.allowed} allowed, {len(found.unexplained)} unexplained"
        says = ("rejected" if self.is_fault else "certified") if self.is_right else "WRONG"
        return f"  {self.name:<49} {self.determinism:<8} {found.positions:5} positions, {splits}: {says}"


async def honest(name: str, judge: Judge, engine: Engine, limits: Calibration) -> Finding:
    """An engine without fault. One that says `Bitwise` is allowed no split."""
    model = engine()
    allowed = BITWISE if model.determinism == "Bitwise" else limits
    certificate = await judge.certificate(await judge.runs(lambda: model), engine, allowed)
    return Finding(name, model.determinism, certificate, is_fault=False, rate=allowed.rate)


async def faulty(fault: str, judge: Judge, engine: Engine, limits: Calibration) -> list[Finding]:
    """An engine with a fault, looked at by itself and by an engine without."""
    with planted(FAULTS[fault]):
        runs = await judge.runs(engine)
        by_itself = await judge.certificate(runs, engine, limits)
    by_another = await judge.certificate(runs, engine, limits)
    return [
        Finding(f"{fault}, computed anew by {whom}", "", certificate, is_fault=True, rate=limits.rate)
        for whom, certificate in (("itself", by_itself), ("a sound engine", by_another))
    ]


async def judged(bench: Bench, setting: Setting, texts: int) -> list[Finding]:
    judge = Judge(bench.subject, bench.dtype, setting.temperature, texts=texts, tokens=bench.tokens)
    limits, power = await judge.calibrated(bench.shipped)
    print(
        f"{setting}: rows within {limits.bound:.2g} of the reference, "
        f"{limits.rate:.2g} splits per position at most. A rule on gaps alone would excuse {power.excused_by_gap:.0%} "
        f"of all positions; of rows with a wrong context {power.excused_faults:.0%} lie within the bound",
        flush=True,
    )
    findings = []
    async for finding in _findings(bench, judge, limits):
        print(finding, flush=True)
        findings.append(finding)
    return findings


async def _findings(bench: Bench, judge: Judge, limits: Calibration) -> AsyncIterator[Finding]:
    yield await honest("as shipped", judge, bench.shipped, limits)
    yield await honest("by torch", judge, bench.stock, limits)
    yield await honest("summing by company", judge, bench.by_company, limits)
    for fault in FAULTS:
        for finding in await faulty(fault, judge, bench.by_company, limits):
            yield finding


async def all_judged(
    subjects: list[Subject], dtypes: list[str], *, texts: int, tokens: int
) -> list[tuple[Setting, Finding]]:
    found = []
    for subject, dtype, temperature in product(subjects, dtypes, TEMPERATURES):
        setting = Setting(subject.name, dtype, temperature)
        findings = await judged(Bench(subject, DTYPES[dtype], tokens), setting, texts)
        found += [(setting, finding) for finding in findings]
    return found


def export(judged: list[tuple[Setting, Finding]], file: Path) -> None:
    """One JSON object a line."""
    file.write_text("".join(f"{json.dumps(finding.exported(setting))}\n" for setting, finding in judged))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.kernels")
    parser.add_argument("--model", type=Path, help="a folder in the Hugging Face layout; default: both of our own")
    parser.add_argument("--dtype", choices=DTYPES, help="default: each of them")
    parser.add_argument("--texts", type=int, default=TEXTS, help="how many are judged, each with and without proposals")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text")
    parser.add_argument("--export", type=Path, metavar="FILE", help="also write the counts: JSON, one object a line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subjects = [from_folder(options.model)] if options.model else [tiny(), from_folder(PAIRS / "target")]
    dtypes = [options.dtype] if options.dtype else list(DTYPES)
    found = asyncio.run(all_judged(subjects, dtypes, texts=options.texts, tokens=options.tokens))
    if options.export:
        export(found, options.export)
    findings = [finding for _, finding in found]
    wrong = [finding for finding in findings if not finding.is_right]
    near_ties = sum(finding.certificate.near_ties for finding in findings if not finding.is_fault)
    print(f"{len(findings)} engines judged, {len(wrong)} wrongly; {near_ties} near ties of engines without fault")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
