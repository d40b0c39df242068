"""Measures a coupled verify beside a rejection verify, on the trained pair: `make bench NAME=coupled_verify`.

Refuses to know HTTP and gRPC: both engines run in this process, one thread each. Both modes verify K = 4 proposals
of the good draft over the same prompts at temperature 1, in turns (A B B A), so that drift of the machine meets both
alike. A sample is the wall time of one verify call; the figure is the ratio of medians.
"""

import asyncio
import json
import statistics
import time
from pathlib import Path

from benchmarks.record import record
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    ProposeRound,
    SamplingParameters,
    SessionId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import load_torch_model
from tandem_runtime.model_folder import digests_of
from tandem_runtime.tokenizer import FolderTokenizer

PAIRS = Path(__file__).parents[1] / "examples" / "pairs"
SEED, K, ROUNDS, WARM_UP_ROUNDS, PROMPTS, REPEATS = 11, 4, 24, 4, 12, 2


class Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


async def verify_seconds(target: BatchedTarget, draft: BatchedDraft, request: OpenSession) -> list[float]:
    """The wall times of the verifies of one session, the first ones left out: they hold the prefill."""
    opened, drafted = await target.open(request), await draft.open(request)
    base, committed = 0, tuple[int, ...]()
    samples: list[float] = []
    for number in range(ROUNDS):
        proposal = await draft.propose(
            ProposeRound(request.session, drafted.incarnation, base=base, committed=committed, k=K)
        )
        offset = base + len(committed)
        began = time.perf_counter()
        verdict = await target.verify(VerifyRound(request.session, opened.incarnation, number, offset, proposal))
        samples.append(time.perf_counter() - began)
        base, committed = offset, (*proposal.ids[: verdict.accepted], verdict.token)
    await target.close(request.session)
    await draft.close(request.session)
    return samples[WARM_UP_ROUNDS:]


async def measure(target: BatchedTarget, draft: BatchedDraft) -> dict[str, list[float]]:
    """Samples per mode, the modes in turns."""
    tokenizer = FolderTokenizer(PAIRS / "target")
    prompts = json.loads((PAIRS / "prompts.json").read_text())["prose"][:PROMPTS]
    samples: dict[str, list[float]] = {mode.value: [] for mode in Verification}
    order = (Verification.COUPLED, Verification.REJECTION, Verification.REJECTION, Verification.COUPLED)
    for repeat in range(REPEATS):
        for index, text in enumerate(prompts):
            for turn, mode in enumerate(order):
                request = OpenSession(
                    session=SessionId(f"{repeat}-{index}-{turn}"),
                    prompt=tokenizer.encode(text),
                    output=(),
                    parameters=SamplingParameters(seed=SEED + index, temperature=1.0),
                    verification=mode,
                    max_tokens=ROUNDS * (K + 1),
                )
                samples[mode.value] += await verify_seconds(target, draft, request)
    return samples


def engine_facts(folder: Path) -> EngineFacts:
    digests = digests_of(folder)
    return EngineFacts(
        model_digest=digests.model, tokenizer_digest=digests.tokenizer, incarnation=Incarnation(folder.name)
    )


def main() -> None:
    folders = [PAIRS / "target", PAIRS / "draft-good"]
    models = [
        load_torch_model(EngineOptions(model=str(folder), dtype="fp32", threads=1, max_sessions=4))
        for folder in folders
    ]
    target = BatchedTarget(models[0], engine_facts(folders[0]), clock=Clock())
    draft = BatchedDraft(models[1], engine_facts(folders[1]), clock=Clock())
    with target, draft:
        samples = asyncio.run(measure(target, draft))
    medians = {mode: statistics.median(seconds) for mode, seconds in samples.items()}
    ratio = medians["Coupled"] / medians["Rejection"]
    for mode, seconds in samples.items():
        low, middle, high = (quartile * 1e3 for quartile in statistics.quantiles(seconds, n=4))
        print(f"{mode:10} median {middle:6.3f} ms  quartiles {low:.3f} {high:.3f}  n {len(seconds)}")
    print(f"coupled / rejection {ratio:.3f}  (must be at most 1.05)")
    figures = {
        "ratio": round(ratio, 4),
        "coupled_ms": round(medians["Coupled"] * 1e3, 4),
        "rejection_ms": round(medians["Rejection"] * 1e3, 4),
    }
    rounded = {mode: [round(second * 1e3, 4) for second in seconds] for mode, seconds in samples.items()}
    print(record("coupled_verify", seed=SEED, figures=figures, samples={"milliseconds": rounded}))


if __name__ == "__main__":
    main()
