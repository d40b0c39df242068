"""Knows weights of 8 and 4 bits: how they are packed when a model loads, and how rows meet them.

Refuses to know layers, caches, and which models are worth it.

A draft made of its own target needs no second folder, and it guesses well; what it saves is bytes read per step. Each
weight is rounded to the nearest of few levels, as it stands in the folder, without a look at data:

    8 bits   w = s q        q in -127..127, a scale s for each output
    4 bits   w = s n + m    n in 0..15, a scale s and an offset m for each 32 inputs of an output

The head, in which an error moves every logit, keeps 8 bits either way. A packed weight is a tensor of bytes
[outputs, bytes], of type int8 or uint8 by its bits; rows of it can be joined and split as those of a plain weight, so
that layers need not know. Norms, biases and the embedding stay as they are.

Rows meet them in `quantised.c`, built as `product.c` is, and like it row-invariant. It rounds an input to 16 bits
within its block of 64, which is less than bfloat16 loses. Where it cannot be built, torch turns weights into float32
again at each product: slow, and the same within rounding.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tandem_runtime import native
from tandem_runtime.engines.torch_engine.fused import HEAD, Form
from tandem_runtime.engines.torch_engine.linear import FLAGS, Multiplier, multiplier_for
from tandem_runtime.engines.torch_engine.model import Decoder, Linear
from tandem_runtime.native import NotBuilt

__all__ = [
    "BITS",
    "NUMBERS_AT_ONCE",
    "NativeQuantisedProduct",
    "Rounding",
    "built",
    "packed",
    "packed_bytes",
    "plain_product",
    "quantised_multiplier",
    "unpacked",
]

SOURCE = Path(__file__).with_name("quantised.c")

BITS = {"int8": 8, "int4": 4}
HEAD_BITS = 8
TYPES = {8: torch.int8, 4: torch.uint8}

BLOCK, GROUP, WORDS, LANES = 64, 32, 16, 8
"""Inputs of a block and of a group; words of 4 codes in a block; groups are filled to a multiple of LANES."""

OUTPUTS_AT_ONCE = 4096
"""Unpacked in float32, so that a head takes megabytes, and not gigabytes, beside itself."""

NUMBERS_AT_ONCE = 1 << 18
"""Packed in float32: what is made in passing stays in the cache, where larger pieces took 2.5 times as long."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """`loading.Packing` into so many bits, of the head into `HEAD_BITS`."""

    bits: int

    def form(self, name: str, inputs: int) -> Form:
        bits = self._bits(name)
        return _line_bytes(inputs, bits), TYPES[bits]

    def write(self, name: str, weight: Tensor, home: Tensor) -> None:
        _pack(weight, home, bits=self._bits(name))

    def _bits(self, name: str) -> int:
        return HEAD_BITS if name == HEAD else self.bits


def packed_bytes(decoder: Decoder, *, bits: int, dtype: torch.dtype) -> int:
    """What all weights of a decoder of this shape take when they are packed."""
    products = {name: module.weight for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    plain = sum(weight.numel() for weight in decoder.parameters()) - sum(weight.numel() for weight in products.values())
    products.setdefault("lm_head", decoder.model.embed_tokens.weight)
    lines = (
        len(weight) * _line_bytes(weight.shape[1], HEAD_BITS if name == "lm_head" else bits)
        for name, weight in products.items()
    )
    return plain * dtype.itemsize + sum(lines)


def packed(weight: Tensor, *, bits: int) -> Tensor:
    """A weight [outputs, inputs] of any floating type as [outputs, bytes] on its device."""
    home = torch.empty(len(weight), _line_bytes(weight.shape[1], bits), dtype=TYPES[bits], device=weight.device)
    _pack(weight, home, bits=bits)
    return home


def _pack(weight: Tensor, home: Tensor, *, bits: int) -> None:
    """A weight [outputs, inputs] into `home` [outputs, bytes], piece by piece, on the device of `home`."""
    pack = _in_8_bits if bits == BITS["int8"] else _in_4_bits
    outputs = max(1, NUMBERS_AT_ONCE // weight.shape[1])
    for part, place in zip(torch.split(weight.detach(), outputs), torch.split(home, outputs), strict=True):
        place.copy_(pack(part.to(device=home.device, dtype=torch.float32)))


def unpacked(weight: Tensor, *, inputs: int) -> Tensor:
    """What a packed weight stands for: float32 [outputs, inputs]."""
    blocks = -(-inputs // BLOCK)
    if weight.dtype is TYPES[8]:
        return weight[:, :inputs] * weight[:, blocks * BLOCK :].contiguous().view(torch.float32)
    ends = [blocks * BLOCK // 2, blocks * BLOCK // GROUP * 2]
    words, *of_groups = (part.contiguous() for part in weight.tensor_split((ends[0], sum(ends)), dim=1))
    codes = (words.view(torch.int16).view(len(weight), blocks, 1, WORDS).int() >> _places(weight.device)) & 15
    scale, offset = (part.view(torch.bfloat16).float().unsqueeze(2) for part in of_groups)
    groups = codes.view(len(weight), -1, GROUP)
    return (groups * scale + offset[:, : groups.shape[1]]).view(len(weight), -1)[:, :inputs]


def _in_8_bits(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    codes = (weight / torch.where(scale == 0, 1, scale)).round().to(torch.int8)
    filled = functional.pad(codes, (0, -weight.shape[1] % BLOCK))
    return torch.cat((filled, scale.view(torch.int8)), dim=1)


def _in_4_bits(weight: Tensor) -> Tensor:
    """Scale and offset are rounded first, and the codes chosen for what they then are."""
    outputs = len(weight)
    groups = functional.pad(weight, (0, -weight.shape[1] % BLOCK)).view(outputs, -1, GROUP)
    offset = groups.amin(dim=2).bfloat16()
    scale = ((groups.amax(dim=2) - offset.float()) / 15).bfloat16()
    step = torch.where(scale == 0, 1, scale.float()).unsqueeze(2)
    codes = ((groups - offset.float().unsqueeze(2)) / step).round().clamp(0, 15).int()
    words = (codes.view(outputs, -1, BLOCK // WORDS, WORDS) << _places(weight.device)).sum(dim=2).to(torch.int16)
    offsets = functional.pad(offset, (0, -offset.shape[1] % LANES))
    return torch.cat([part.reshape(outputs, -1).view(torch.uint8) for part in (words, scale, offsets)], dim=1)


def _places(device: torch.device) -> Tensor:
    """[4, 1]: the bits from which the 4 codes of a word begin."""
    return torch.tensor([[0], [4], [8], [12]], dtype=torch.int32, device=device)


class NativeQuantisedProduct:
    """`model.Linear` by `quantised.c`: rows of float32 or bfloat16 on a CPU, on as many threads as torch has."""

    def __init__(self, library: Path) -> None:
        """Raises NotBuilt where `library` does not load."""
        self._multiply = native.loaded(library).quantised_product
        self._multiply.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int] * 3
        self._multiply.restype = ctypes.c_int

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        (rows, inputs), outputs = x.shape, len(weight)
        bits = 8 if weight.dtype is TYPES[8] else 4
        suits = weight.dtype in TYPES.values() and weight.shape[1] == _line_bytes(inputs, bits)
        if not suits or not weight.is_contiguous() or x.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(
                f"a packed weight {list(weight.shape)} {weight.dtype} does not suit rows {list(x.shape)} {x.dtype}"
            )
        x, y = x.contiguous(), x.new_empty(rows, outputs)
        narrow, threads = x.dtype is torch.bfloat16, torch.get_num_threads()
        places = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        if not self._multiply(*places, rows, inputs, outputs, bits, narrow, threads):
            raise torch.OutOfMemoryError(f"no memory to lay out {rows} x {inputs} numbers")
        return y


def _line_bytes(inputs: int, bits: int) -> int:
    blocks = -(-inputs // BLOCK)
    if bits == BITS["int8"]:
        return blocks * BLOCK + 4
    groups = blocks * BLOCK // GROUP
    return blocks * BLOCK // 2 + 2 * groups + 2 * -(-groups // LANES) * LANES


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """`model.Linear` by torch, on any device: each piece of a packed weight becomes float32 and is let go again."""
    wide, inputs = x.float(), x.shape[1]
    parts = [functional.linear(wide, unpacked(part, inputs=inputs)) for part in torch.split(weight, OUTPUTS_AT_ONCE)]
    return torch.cat(parts, dim=1).to(x.dtype)


def quantised_multiplier(device: torch.device) -> Multiplier:
    """Our own product of packed weights on a CPU, if it can be built; else torch's.

    Weights that are not packed, as those of adapters, meet rows as in any engine.
    """
    plain = multiplier_for(device)
    product, native, about = _product_for(device)

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        return (product if weight.dtype in TYPES.values() else plain.linear)(x, weight)

    return Multiplier(linear, row_invariant=native and plain.row_invariant, about=about)


def _product_for(device: torch.device) -> tuple[Linear, bool, str]:
    """The product of packed weights there, whether it is our own, and a line about how it came."""
    if device.type != "cpu":
        return plain_product, False, f"packed weights by torch on {device.type}"
    try:
        return NativeQuantisedProduct(built()), True, "packed weights by ours, built for this processor"
    except NotBuilt as reason:
        return plain_product, False, f"packed weights by torch, since ours was not built: {reason}"


def built() -> Path:
    """The library of `quantised.c`. Raises NotBuilt."""
    return native.built(SOURCE, native.cache_folder(), flags=FLAGS)
