"""Knows the engines of a proof as a cluster has them: torch models behind gRPC servers, reached over sockets.

Refuses to know cases and answers.

Groups compute in float32 and bfloat16 in turns. The memory of a target holds a fraction of what a group's sessions come
to, so that sessions are pushed out of it and computed anew.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import torch
from tests.exactness.cases import Group
from tests.exactness.kernel_reference import random_decoder
from tests.exactness.loops import LONGEST, CountedClock, Stage
from tests.exactness.texts import VOCAB
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import Incarnation
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.engines.torch_engine.engine import TorchModel
from tandem_runtime.engines.torch_engine.model import Decoder, DecoderConfig
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole

SESSIONS, TIGHT_BLOCKS = 128, 96
KIN_SPREAD = 0.01
"""How far a kin draft's weights are from the target's, in shares of their own deviation."""

_SHAPE = DecoderConfig(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=LONGEST,
    tie_word_embeddings=False,
)


@asynccontextmanager
async def wired(group: Group, speculating: bool) -> AsyncIterator[Stage]:
    """An `invariance.Staging`."""
    dtype = (torch.float32, torch.bfloat16)[group.number % 2]
    async with AsyncExitStack() as stack:

        async def target(name: str) -> RemoteTarget:
            model = _model(_target(group.world), dtype, kv_blocks=TIGHT_BLOCKS)
            engine = BatchedTarget(model, _facts(name), clock=CountedClock(), size=StepSize(group.chunk_tokens))
            stack.enter_context(engine)
            server = await stack.enter_async_context(served(TargetRole(engine)))
            return await stack.enter_async_context(connected(RemoteTarget, server.port))

        async def draft(made: Callable[[], Decoder]) -> RemoteDraft:
            engine = BatchedDraft(_model(made(), dtype), _facts("draft"), clock=CountedClock())
            stack.enter_context(engine)
            server = await stack.enter_async_context(served(DraftRole(engine)))
            return await stack.enter_async_context(connected(RemoteDraft, server.port))

        targets = (await target("first"), await target("second"))
        drafts = (await draft(lambda: _kin(group.world)), await draft(_stranger)) if speculating else ()
        yield Stage(targets, drafts, refusal=BadRequest)


def _facts(name: str) -> EngineFacts:
    return EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation(name))


def _model(decoder: Decoder, dtype: torch.dtype, *, kv_blocks: int | None = None) -> TorchModel:
    model = TorchModel(decoder.to(dtype), max_sessions=SESSIONS, max_length=LONGEST, kv_blocks=kv_blocks)
    assert model.determinism == "Bitwise", "sequences are identical where a row's bits do not depend on its company"
    return model


def _target(world: int) -> Decoder:
    return random_decoder(_SHAPE, seed=world)


def _kin(world: int) -> Decoder:
    decoder, other = _target(world), random_decoder(_SHAPE, seed=100 + world)
    for own, foreign in zip(decoder.parameters(), other.parameters(), strict=True):
        own.add_(foreign - own, alpha=KIN_SPREAD)
    return decoder


def _stranger() -> Decoder:
    return random_decoder(_SHAPE, seed=200)
