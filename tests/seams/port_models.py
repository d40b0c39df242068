"""The models that the suite for the engine ports runs over: pairs of draft and target, scripted and torch."""

import hashlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import Script, ScriptedModel, agreeing
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.ports import Logits, StepModel

VOCAB = 64
LENGTH = 128
SLOTS = 4


def hashed_logits(prefix: tuple[TokenId, ...]) -> Logits:
    """Rough logits that depend on the whole prefix."""
    seed = int.from_bytes(hashlib.sha256(repr(prefix).encode()).digest()[:8])
    return np.random.default_rng(seed).normal(0, 2, VOCAB)


@dataclass(frozen=True)
class Pair:
    target: Callable[[], StepModel]
    draft: Callable[[], StepModel]


def scripted(script: Script) -> Callable[[], StepModel]:
    return lambda: ScriptedModel(script, max_length=LENGTH, max_sessions=SLOTS)


@cache
def decoder(*, noise: float) -> Decoder:
    """A random decoder with lively logits; with `noise` a relative of it, as a draft is of its target."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    plain = Decoder(
        DecoderConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=False,
        )
    ).requires_grad_(False)
    for weight in plain.parameters():
        if weight.dim() > 1:
            weight.copy_(torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5 * 1.5)
    relative = deepcopy(plain)
    for weight in relative.parameters():
        weight.add_(noise * weight.std(correction=0) * torch.randn(weight.shape, generator=generator))
    return relative


def torched(*, noise: float = 0.0) -> Callable[[], StepModel]:
    return lambda: TorchModel(decoder(noise=noise), max_sessions=SLOTS, max_length=LENGTH)


PAIRS = {
    "scripted": Pair(scripted(hashed_logits), scripted(agreeing(hashed_logits, acceptance=0.7))),
    "torch": Pair(torched(), torched(noise=0.1)),
}
