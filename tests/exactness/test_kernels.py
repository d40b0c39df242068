"""Real kernels: speculation splits no text, or only where rounding explains it; faults of the cache are not explained.

`python -m tests.exactness.kernels` does the same at length, with the trained pair at every temperature.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.exactness.certifying import BITWISE, Engine, Judge
from tests.exactness.kernel_faults import FAULTS, planted
from tests.exactness.kernel_reference import PAIRS, Power, Subject, from_folder, tiny
from tests.exactness.kernels import Bench, Finding, Setting, export

from tandem_runtime.domain.certificate import Calibration, Certificate, Doubt

TEXTS, TOKENS = 6, 24
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@cache
def subject(name: str) -> Subject:
    return tiny() if name == "tiny" else from_folder(PAIRS / name)


@cache
def judge(name: str, dtype: str, temperature: float) -> Judge:
    return Judge(subject(name), DTYPES[dtype], temperature, texts=TEXTS, tokens=TOKENS)


def bench(name: str, dtype: str) -> Bench:
    return Bench(subject(name), DTYPES[dtype], TOKENS)


_calibrated: dict[tuple[str, str, float], tuple[Calibration, Power]] = {}


async def calibrated(name: str, dtype: str, temperature: float) -> tuple[Calibration, Power]:
    key = (name, dtype, temperature)
    if key not in _calibrated:
        _calibrated[key] = await judge(*key).calibrated(bench(name, dtype).shipped)
    return _calibrated[key]


async def certified(judging: Judge, engine: Engine, limits: Calibration) -> Certificate:
    return await judging.certificate(await judging.runs(engine), engine, limits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["tiny", "target"])
async def test_the_engine_as_shipped_splits_no_text_or_at_explained_near_ties(name: str, dtype: str) -> None:
    """None where it says `Bitwise`, as on every CPU that we know."""
    model = bench(name, dtype).shipped()
    limits = BITWISE if model.determinism == "Bitwise" else (await calibrated(name, dtype, 1.0))[0]
    found = await certified(judge(name, dtype, 1.0), lambda: model, limits)
    assert found.holds, found
    if dtype == "fp32" or limits is BITWISE:
        assert found == Certificate(TEXTS * TOKENS, near_ties=0, allowed=found.allowed, unexplained=())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_in_fp32_not_even_kernels_that_round_by_company_split_a_text(temperature: float) -> None:
    for engine in (bench("tiny", "fp32").stock, bench("tiny", "fp32").by_company):
        limits, _ = await calibrated("tiny", "fp32", temperature)
        found = await certified(judge("tiny", "fp32", temperature), engine, limits)
        assert found == Certificate(TEXTS * TOKENS, near_ties=0, allowed=found.allowed, unexplained=())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_kernels_that_round_by_company_split_texts_at_near_ties_no_oftener_than_gaps_predict(
    temperature: float,
) -> None:
    limits, _ = await calibrated("tiny", "bf16", temperature)
    found = await certified(judge("tiny", "bf16", temperature), bench("tiny", "bf16").by_company, limits)
    assert found.holds, found
    assert found.near_ties > 0


async def test_such_an_engine_may_not_say_bitwise() -> None:
    found = await certified(judge("tiny", "bf16", 1.0), bench("tiny", "bf16").by_company, BITWISE)
    assert found.unexplained


@pytest.mark.parametrize(("dtype", "temperature"), [("bf16", 0.0), ("bf16", 1.0), ("fp32", 1.0)])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_the_cache_cannot_certify_itself(fault: str, dtype: str, temperature: float) -> None:
    """Whether the rows are computed anew by the engine that has it, or by one that has not."""
    judging, engine = judge("tiny", dtype, temperature), bench("tiny", dtype).by_company
    limits, _ = await calibrated("tiny", dtype, temperature)
    with planted(FAULTS[fault]):
        runs = await judging.runs(engine)
        by_itself = await judging.certificate(runs, engine, limits)
    by_another = await judging.certificate(runs, engine, limits)
    assert by_itself.unexplained, by_itself
    assert by_another.unexplained, by_another


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_cannot_widen_what_is_allowed_to_it(fault: str) -> None:
    """Limits calibrated by an engine that has the fault refuse it all the same."""
    judging, engine = judge("tiny", "bf16", 1.0), bench("tiny", "bf16").by_company
    with planted(FAULTS[fault]):
        limits, _ = await judging.calibrated(engine)
        found = await certified(judging, engine, limits)
    assert found.unexplained, found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_bound_on_gaps_alone_would_excuse_more_than_the_certificate(temperature: float) -> None:
    _, power = await calibrated("tiny", "bf16", temperature)
    assert power.excused_faults < power.excused_by_gap


def test_the_counts_are_exported_one_object_a_line(tmp_path: Path) -> None:
    setting = Setting("tiny", "bf16", 1.0)
    sound = Certificate(576, near_ties=3, allowed=9, unexplained=())
    broken = Certificate(300, near_ties=1, allowed=7, unexplained=((4, Doubt.DIFFERENCE), (9, Doubt.PLAIN_ROW)))
    found = [
        (setting, Finding("summing by company", "NearTie", sound, is_fault=False, rate=0.005)),
        (setting, Finding("wrong position, computed anew by itself", "", broken, is_fault=True, rate=0.004)),
    ]
    export(found, tmp_path / "counts.jsonl")
    where = {"model": "tiny", "dtype": "bf16", "temperature": 1.0}
    assert [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()] == [
        where
        | {"engine": "summing by company", "determinism": "NearTie", "planted_fault": False}
        | {"positions": 576, "near_ties": 3, "allowed": 9, "rate": 0.005, "unexplained": 0, "certified": True},
        where
        | {"engine": "wrong position, computed anew by itself", "determinism": "", "planted_fault": True}
        | {"positions": 300, "near_ties": 1, "allowed": 7, "rate": 0.004, "unexplained": 2, "certified": False},
    ]
