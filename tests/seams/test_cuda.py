"""The engine on a GPU: the same code, all of whose tensors are on the device; and where a GPU is at hand, its logits.

Most machines have none. There torch carries out every operation but its arithmetic: it knows of each tensor its shape,
type and device, and refuses what mixes devices as a GPU would.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.seams.kv_tables import lent_blocks
from tests.seams.model_folders import VOCAB, saved_reference
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.blocks import BlockId, Copy
from tandem_runtime.engines.options import AS_IS, WEIGHTS, EngineOptions
from tandem_runtime.engines.torch_engine.adapters import Adapter, LowRank
from tandem_runtime.engines.torch_engine.engine import TorchModel, load_torch_model
from tandem_runtime.engines.torch_engine.fused import place
from tandem_runtime.engines.torch_engine.linear import multiplier_for
from tandem_runtime.engines.torch_engine.model import DecoderConfig, shape_of
from tandem_runtime.engines.torch_engine.quantised import BITS, Rounding, quantised_multiplier
from tandem_runtime.ports import Logits, Row

SHAPE = DecoderConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    head_norms=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
"""With a bias and a norm wherever an architecture has one."""

CUDA = torch.device("cuda")
ADAPTER = AdapterDigest("an adapter")

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")


def row(first: int, start: int, size: int, outputs: int, adapter: AdapterDigest | None = None) -> Row:
    return Row((BlockId(first), BlockId(first + 1), BlockId(first + 2)), start, tuple(range(size)), outputs, adapter)


ROWS = [row(0, 0, 40, 3), row(3, 5, 1, 1, ADAPTER), row(6, 10, 5, 5), row(9, 0, 2, 0, ADAPTER)]
"""A prompt's chunk, a plain row, a verify, and a chunk that wants nothing."""


@pytest.fixture
def imagined() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode:
        yield mode


def imagined_model(weights: str) -> TorchModel:
    decoder = shape_of(SHAPE)
    products = {name: module for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    rounding = None if weights == AS_IS else Rounding(BITS[weights])
    forms = {f"{name}.weight": rounding.form(name, each.in_features) for name, each in products.items() if rounding}
    place(decoder, forms, dtype=torch.bfloat16, device=CUDA)
    multiplier = (multiplier_for if weights == AS_IS else quantised_multiplier)(CUDA)
    model = TorchModel(decoder, max_sessions=4, max_length=64, multiplier=multiplier)
    update = LowRank(
        torch.ones(2, 32, dtype=torch.bfloat16, device=CUDA), torch.ones(64, 2, dtype=torch.bfloat16, device=CUDA)
    )
    model._adapters[ADAPTER] = Adapter(ADAPTER, 2, {(0, "qkv"): update})
    return model


@pytest.mark.usefixtures("imagined")
def test_imagined_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"two (different )?devices"):
        torch.ones(2, device=CUDA) + torch.ones(2)


@pytest.mark.usefixtures("imagined")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_all_of_a_step_is_on_the_device_and_rows_are_near_ties(weights: str) -> None:
    model = imagined_model(weights)
    model.copy([Copy(BlockId(1), BlockId(2))])
    hidden = inspect.unwrap(TorchModel._hidden)(model, ROWS)  # within inference mode torch cannot imagine
    logits = model._decoder.logits(hidden)
    assert (hidden.device.type, hidden.dtype, tuple(hidden.shape)) == ("cuda", torch.bfloat16, (48, 32))
    assert (logits.device.type, tuple(logits.shape)) == ("cuda", (48, VOCAB))
    assert model.determinism == "NearTie"


def needs_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")


def logits_in_pieces(model: TorchModel, tokens: tuple[int, ...]) -> Logits:
    """A prompt, a proposal that does not stand, and the rest one by one."""
    with lent_blocks(model) as blocks:
        [first] = model.forward([Row(blocks, 0, tokens[:20], 20)])
        model.forward([Row(blocks, 20, (3, 1, 4, 1, 5), 5)])
        rest = [model.forward([Row(blocks, at, tokens[at : at + 1], 1)])[0] for at in range(20, len(tokens))]
    return np.concatenate([first, *rest])


@pytest.mark.parametrize(("dtype", "off"), [("fp32", 1e-3), ("bf16", 0.1)])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_gpu_computes_what_the_cpu_does(weights: str, dtype: str, off: float, tmp_path: Path) -> None:
    needs_a_gpu()
    saved_reference(tmp_path, "Qwen3ForCausalLM")
    asked = EngineOptions(model=str(tmp_path), dtype=dtype, weights=weights, max_sessions=2, max_length=64)
    models = [load_torch_model(replace(asked, device=device)) for device in ("cuda", "cpu")]
    tokens = tuple(np.random.default_rng(1).integers(0, VOCAB, 40).tolist())
    near, exact = (logits_in_pieces(model, tokens) for model in models)
    assert models[0].determinism == "NearTie"
    assert np.abs(near - exact).max() < off * np.abs(exact).max()
