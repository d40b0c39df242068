"""Measures what judging a row of logits costs on one CPU thread: `make bench NAME=verify_cost`.

Refuses to know models: rows are made, and handed over as engines do, in float32. By mode, vocabulary, temperature,
filters and the precision in which the logits were computed; beside it, in turns (A B B A), the naive path: everything
in float64, a Gumbel number for every token, filters by a full sort. A sample is the thread's CPU time of one round
of K = 4 over the rows that it judged (what else runs beside it does not count, but does cost caches); figures are
medians, in milliseconds per row.

The rows: a bulk of normal logits with deviation 2.5, and 200 tokens that rise above it to 16 by the logarithm of their
rank. So the likeliest token has some 20 to 40 % at T = 1, as in running text.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.record import record
from tandem_runtime.domain.noise import Salt, key
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, Verification
from tandem_runtime.engines.noise_words import gumbels, noise_bits
from tandem_runtime.engines.rejection import verify
from tandem_runtime.engines.sampler import guess

SEED, K, ROUNDS = 7, 4, 6
VOCABULARIES = (49_152, 131_072)
FILTERS: dict[str, SamplingParameters] = {
    "none": SamplingParameters(seed=SEED),
    "top_k=50": SamplingParameters(seed=SEED, top_k=50),
    "top_p=.9": SamplingParameters(seed=SEED, top_p=0.9),
    "min_p=.05": SamplingParameters(seed=SEED, min_p=0.05),
    "all three": SamplingParameters(seed=SEED, top_k=50, top_p=0.9, min_p=0.05),
}
TEMPERATURES = (0.3, 1.0, 1.5)

Rows = npt.NDArray[np.float32]

Way = Callable[["Case", Rows, Proposal, int], int]
"""How many rows a round of a case, at a position, took to judge."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    mode: Verification
    vocab: int
    temperature: float
    filters: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.mode.value} V={self.vocab} T={self.temperature} {self.filters} {self.dtype}"

    @property
    def parameters(self) -> SamplingParameters:
        plain = FILTERS[self.filters]
        return SamplingParameters(
            seed=SEED, temperature=self.temperature, top_k=plain.top_k, top_p=plain.top_p, min_p=plain.min_p
        )


def cases() -> list[Case]:
    """Coupled mode in all ways; the others with the vocabulary and dtype that tell most."""
    coupled = [
        Case(Verification.COUPLED, vocab, temperature, filters, dtype)
        for vocab in VOCABULARIES
        for temperature in TEMPERATURES
        for filters in FILTERS
        for dtype in ("fp32", "bf16")
    ]
    others = [
        Case(mode, vocab, 1.0, filters, "fp32")
        for mode in Verification
        if mode is not Verification.COUPLED
        for vocab in VOCABULARIES
        for filters in FILTERS
    ]
    return coupled + others


def made_rows(vocab: int, dtype: str) -> Rows:
    """[K + 1, vocab]"""
    chance = np.random.default_rng(SEED)
    rows = chance.normal(0, 2.5, (K + 1, vocab)).astype(np.float32)
    for row in rows:
        head = chance.permutation(vocab)[:200]
        row[head] = 16 - 1.8 * np.log1p(np.arange(200))
    if dtype == "bf16":
        rows = (rows.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return rows


def proposed(case: Case, rows: Rows, position: int) -> Proposal:
    """What a draft with the target's own rows proposes, so that most rows are judged."""
    guesses = [
        guess(row, case.parameters, verification=case.mode, position=position + at) for at, row in enumerate(rows[:K])
    ]
    q = tuple(sparse for _, sparse in guesses if sparse is not None)
    return Proposal(tuple(token for token, _ in guesses), q or None)


def judge(case: Case, rows: Rows, proposal: Proposal, position: int) -> int:
    """How many rows were judged."""
    return verify(rows, proposal, case.parameters, verification=case.mode, offset=position).accepted + 1


def judge_naively(case: Case, rows: Rows, proposal: Proposal, position: int) -> int:
    """The coupled rule with float64 and logarithms for everything."""
    for at, row in enumerate(rows):
        choice = naive_choice(row, case.parameters, position + at)
        if at == K or choice != proposal.ids[at]:
            return at + 1
    raise AssertionError("the row after the proposal always ends it")


def naive_choice(row: Rows, parameters: SamplingParameters, position: int) -> int:
    logits = row.astype(np.float64)
    words = noise_bits(
        key(parameters.seed, parameters.choice, Salt.COUPLED, position), np.arange(len(row)), vocab_size=len(row)
    )
    scores = logits / parameters.temperature + gumbels(words)
    if parameters.top_k or parameters.top_p < 1 or parameters.min_p > 0:
        scores[~naive_filter(logits, parameters)] = -np.inf
    return int(scores.argmax())


def naive_filter(logits: npt.NDArray[np.float64], parameters: SamplingParameters) -> npt.NDArray[np.bool_]:
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order] - logits[order[0]]) / parameters.temperature)
    if parameters.top_k:
        weights[parameters.top_k :] = 0
    before = np.cumsum(weights) - weights
    kept = (weights > 0) & ((before < parameters.top_p * weights.sum()) | (before == 0))
    kept &= weights >= parameters.min_p
    mask = np.zeros(len(logits), bool)
    mask[order[kept]] = True
    return mask


def milliseconds_per_row(way: Way, case: Case, rows: Rows, position: int) -> float:
    proposal = proposed(case, rows, position)
    began = time.thread_time()
    judged = way(case, rows, proposal, position)
    return (time.thread_time() - began) * 1e3 / judged


def measure(case: Case) -> dict[str, list[float]]:
    """Samples of both paths, in turns; of other modes than coupled there is no naive path."""
    rows = made_rows(case.vocab, case.dtype)
    samples: dict[str, list[float]] = {"fast": [], "naive": []}
    ways: dict[str, Way] = {"fast": judge}
    if case.mode is Verification.COUPLED:
        ways["naive"] = judge_naively
    for number in range(ROUNDS):
        for name, way in (*ways.items(), *reversed(ways.items())):
            samples[name].append(milliseconds_per_row(way, case, rows, number * (K + 1)))
    return samples


def main() -> None:
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, list[float]]] = {}
    load = os.getloadavg()[0]
    print(f"load average {load:.2f}; milliseconds per row, medians")
    for case in cases():
        found = measure(case)
        samples[case.name] = {way: [round(sample, 4) for sample in values] for way, values in found.items()}
        fast = statistics.median(found["fast"])
        naive = statistics.median(found["naive"]) if found["naive"] else None
        figures[case.name] = round(fast, 4)
        beside = f"naive {naive:7.3f}  {naive / fast:5.1f} x" if naive else ""
        print(f"{case.name:48} {fast:7.3f}  {1e3 / fast:7.0f} rows/s  {beside}")
    largest = max(value for name, value in figures.items() if name.startswith("Coupled V=49152"))
    figures |= {
        "ms_per_row": figures["Coupled V=49152 T=1.0 none fp32"],
        "ms_per_row_worst": largest,
        "load_average": load,
    }
    print(f"coupled, V = 49152: {figures['ms_per_row']:.3f} ms per row, at worst {largest:.3f} (must be at most .4)")
    print(record("verify_cost", seed=SEED, figures=figures, samples={"milliseconds_per_row": samples}))


if __name__ == "__main__":
    main()
