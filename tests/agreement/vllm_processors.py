"""Knows whether our processors make of a row what vLLM's own sampler makes of it; a command for where vLLM is.

    PYTHONPATH=.:runtime PYTHON -m tests.agreement.vllm_processors [--cases 5000]

with the interpreter of an environment that has vLLM. (vLLM pins another torch than ours, so `make test` holds its
formulas instead, written out in tests/domain/test_processors.py.) Refuses to know engines and speculation.

Each case is a random request over a vocabulary of 24. Its row goes through vLLM's allowed tokens, bad words, minimum
length, bias and penalties, then temperature, min-p, top-k and top-p, in float32; ours in float64. Exits 1 where one
probability is off by more than `TOLERANCE`. Cases with both top-p and min-p are not asked: there the orders differ, on
purpose. Where rounding may decide which tokens a filter keeps, the case is left out and counted.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch
from vllm.v1.sample.sampler import Sampler

from tandem_runtime.domain.errors import NothingAdmitted
from tandem_runtime.domain.processors import History
from tandem_runtime.domain.sampling import distribution
from tandem_runtime.domain.tokens import SamplingParameters

VOCAB, SEED, TOLERANCE = 24, 5, 1e-5
CLOSE = 1e-4
"""A filter's border that changes what is kept when it moves by so much is for rounding to decide."""


def asked(chance: Random) -> SamplingParameters:
    def some(most: int) -> tuple[int, ...]:
        return tuple(sorted(chance.sample(range(VOCAB), chance.randrange(most + 1))))

    by_share = chance.random() < 0.5
    return SamplingParameters(
        seed=1,
        temperature=chance.choice([0.3, 1.0, 1.5]),
        top_k=chance.choice([0, 1, 3, 12]),
        top_p=chance.choice([0.3, 0.8, 0.95]) if by_share else 1.0,
        min_p=0.0 if by_share else chance.choice([0.0, 0.01, 0.2]),
        logit_bias=tuple((token, chance.uniform(-8, 8)) for token in some(4)),
        allowed_tokens=some(12) if chance.random() < 0.3 else (),
        bad_words=tuple(tuple(chance.choices(range(VOCAB), k=chance.randrange(1, 4))) for _ in range(3)),
        min_tokens=chance.randrange(30),
        end_tokens=(0, 5),
        repetition_penalty=chance.choice([1.0, 0.7, 1.3]),
        frequency_penalty=chance.choice([0.0, 0.4, -1.5]),
        presence_penalty=chance.choice([0.0, 0.9, -2.0]),
    )


def vllm_law(row: list[float], request: SamplingParameters, history: History) -> list[float]:
    logits = Sampler().apply_logits_processors(
        torch.tensor([row], dtype=torch.float32), metadata(request, history), predict_bonus_token=False
    )
    logits = Sampler.apply_temperature(logits, torch.tensor([request.temperature]), all_random=True)
    if request.min_p > 0:
        config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1))
        logits = told(MinPLogitsProcessor(config, torch.device("cpu"), False), request, history).apply(logits)
    k = torch.tensor([request.top_k or VOCAB])
    law: list[float] = apply_top_k_top_p_pytorch(logits, k, torch.tensor([request.top_p])).softmax(-1)[0].tolist()
    return law


def metadata(request: SamplingParameters, history: History) -> SamplingMetadata:
    cpu = torch.device("cpu")
    allowed = torch.ones(1, VOCAB, dtype=torch.bool)
    allowed[0, list(request.allowed_tokens)] = False
    processors = [MinTokensLogitsProcessor(None, cpu, False), LogitBiasLogitsProcessor(None, cpu, False)]
    return SamplingMetadata(
        temperature=None,
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=False,
        prompt_token_ids=torch.tensor([list(history.prompt)], dtype=torch.long),
        frequency_penalties=torch.tensor([request.frequency_penalty]),
        presence_penalties=torch.tensor([request.presence_penalty]),
        repetition_penalties=torch.tensor([request.repetition_penalty]),
        output_token_ids=[list(history.output)],
        allowed_token_ids_mask=allowed if request.allowed_tokens else None,
        bad_words_token_ids={0: [list(word) for word in request.bad_words]},
        logitsprocs=LogitsProcessors([told(processor, request, history) for processor in processors]),
    )


def told(processor: Any, request: SamplingParameters, history: History) -> Any:
    """The processor, with the request in its batch."""
    params = SimpleNamespace(
        min_tokens=request.min_tokens,
        all_stop_token_ids=set(request.end_tokens),
        structured_outputs=None,
        logit_bias=dict(request.logit_bias),
        min_p=request.min_p,
    )
    processor.update_state(BatchUpdate(1, [], [(0, params, list(history.prompt), list(history.output))], []))
    return processor


def compared(chance: Random) -> float | None:
    """How far the two laws are apart at most; None: rounding decides what a filter keeps, or nothing is left."""
    row, request = [chance.gauss(0, 4) for _ in range(VOCAB)], asked(chance)
    history = History(*(tuple(chance.choices(range(VOCAB), k=chance.randrange(1, 25))) for _ in range(2)))
    try:
        ours = distribution(row, request, history)
    except NothingAdmitted:
        return None
    if is_at_a_border(row, request, history, ours):
        return None
    theirs = vllm_law(row, request, history)
    return max(abs(ours.get(token, 0.0) - theirs[token]) for token in range(VOCAB))


def is_at_a_border(row: list[float], request: SamplingParameters, history: History, law: Mapping[int, object]) -> bool:
    """Do filters keep other tokens when they are moved a little?"""
    moved = [
        replace(request, top_p=min(1.0, request.top_p * factor), min_p=request.min_p * factor)
        for factor in (1 - CLOSE, 1 + CLOSE)
    ]
    return any(set(distribution(row, other, history)) != set(law) for other in moved)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.agreement.vllm_processors")
    parser.add_argument("--cases", type=int, default=5000)
    chance, cases = Random(SEED), parser.parse_args().cases
    found = [compared(chance) for _ in range(cases)]
    distances = [distance for distance in found if distance is not None]
    worst = max(distances, default=math.nan)
    left_out = cases - len(distances)
    print(f"vLLM {vllm.__version__}: {len(distances)} laws compared, {left_out} left out, off by {worst:.1e} at most")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
