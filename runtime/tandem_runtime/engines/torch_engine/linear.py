"""Knows how rows meet weights: which product an engine multiplies by, our own or torch's.

Refuses to know layers, caches and steps.

A verify of K + 1 rows reads the same weights as one row does, so it should cost nearly the same, and a row must have
the same bits in either. Libraries give neither: they pick another routine, and another order of summation, by the
number of rows. `product.c` does both, built (by `native`) when an engine first loads. Where that cannot be,
torch multiplies and the engine says why.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime import native
from tandem_runtime.engines.torch_engine.model import Linear
from tandem_runtime.native import NotBuilt

__all__ = ["Multiplier", "NativeProduct", "built", "multiplier_for"]

SOURCE = Path(__file__).with_name("product.c")
FLAGS = ("-fopenmp",)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """`linear`, and what an engine says of it: whether rows are independent in it, and a line about how it came."""

    linear: Linear
    row_invariant: bool
    about: str


class NativeProduct:
    """`model.Linear` by `product.c`, for float32 and bfloat16 on a CPU, on as many threads as torch has."""

    def __init__(self, library: Path) -> None:
        """Raises NotBuilt where `library` does not load."""
        loaded = native.loaded(library)
        self._products = {
            torch.float32: loaded.product_float32,
            torch.bfloat16: loaded.product_bfloat16,
        }
        for product in self._products.values():
            product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int]
            product.restype = ctypes.c_int

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        (rows, inputs), (outputs, taken) = x.shape, weight.shape
        x = x.contiguous()
        if taken != inputs or weight.dtype is not x.dtype or not weight.is_contiguous():
            raise ValueError(
                f"a weight {list(weight.shape)} {weight.dtype} does not suit rows {list(x.shape)} {x.dtype}"
            )
        y = x.new_empty(rows, outputs)
        multiply = self._products[x.dtype]
        threads = torch.get_num_threads()
        if not multiply(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, inputs, outputs, threads):
            raise torch.OutOfMemoryError(f"no memory to lay out {rows} x {inputs} numbers")
        return y


def multiplier_for(device: torch.device) -> Multiplier:
    """Our own product on a CPU, if it can be built; else torch's."""
    if device.type != "cpu":
        return Multiplier(functional.linear, row_invariant=False, about=f"torch on {device.type}")
    try:
        product = NativeProduct(built())
    except NotBuilt as reason:
        return Multiplier(functional.linear, row_invariant=False, about=f"torch, since ours was not built: {reason}")
    return Multiplier(product, row_invariant=True, about="ours, built for this processor")


def built() -> Path:
    """The library of `product.c`. Raises NotBuilt."""
    return native.built(SOURCE, native.cache_folder(), flags=FLAGS)
