"""Knows how rows meet weights: which product an engine multiplies by, and how our own one is built.

Refuses to know layers, caches and steps.

A verify of K + 1 rows reads the same weights as one row does, so it should cost nearly the same, and a row must have
the same bits in either. Libraries give neither: they pick another routine, and another order of summation, by the
number of rows. `product.c` does both. It is compiled for this very processor when an engine first loads, and kept in
the user's cache folder under a digest of source, compiler and processor. Where that cannot be, torch multiplies and the
engine says why; it then finds out by trial which amount of filling rows makes rows independent, if any does.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tandem_runtime.engines.torch_engine.model import Linear

__all__ = ["Multiplier", "NativeProduct", "NoNativeProduct", "multiplier_for"]

SOURCE = Path(__file__).with_name("product.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
BUILD_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Multiplier:
    """`linear`, and what an engine says of it: whether rows are independent in it, and a line about how it came."""

    linear: Linear
    row_invariant: bool
    about: str


class NoNativeProduct(Exception):
    """Our product cannot be had here; the text says why, in one line."""


class NativeProduct:
    """`model.Linear` by `product.c`, for float32 and bfloat16 on a CPU, on as many threads as torch has."""

    def __init__(self, library: Path) -> None:
        """Raises NoNativeProduct where `library` does not load."""
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError as error:
            raise NoNativeProduct(_line(error)) from error
        self._products = {
            torch.float32: loaded.product_float32,
            torch.bfloat16: loaded.product_bfloat16,
        }
        for product in self._products.values():
            product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3 + [ctypes.c_int]
            product.restype = ctypes.c_int

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        (rows, inputs), outputs = x.shape, len(weight)
        x = x.contiguous()
        if weight.shape != (outputs, inputs) or weight.dtype is not x.dtype or not weight.is_contiguous():
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
        native = NativeProduct(built(cache_folder()))
    except NoNativeProduct as reason:
        return Multiplier(functional.linear, row_invariant=False, about=f"torch, since ours was not built: {reason}")
    return Multiplier(native, row_invariant=True, about="ours, built for this processor")


def cache_folder() -> Path:
    """Raises NoNativeProduct for a user without a home."""
    try:
        return Path.home() / ".cache" / "tandem"
    except RuntimeError as error:
        raise NoNativeProduct(_line(error)) from error


def built(folder: Path, *, compilers: Sequence[str] = COMPILERS) -> Path:
    """The library of `product.c` for this processor, from `folder` or newly built into it. Raises NoNativeProduct."""
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise NoNativeProduct(f"there is no C compiler ({', '.join(compilers)}) on the path")
    library = folder / f"product-{_digest(compiler)}.so"
    try:
        if not library.exists():
            _build(compiler, library)
    except subprocess.CalledProcessError as error:
        raise NoNativeProduct(_line(f"{compiler} said: {error.stderr}")) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNativeProduct(_line(error)) from error
    return library


def _build(compiler: str, library: Path) -> None:
    """Beside its place first: whoever starts at the same moment sees a whole library or none."""
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as beside:
        new = Path(beside) / library.name
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(new)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)  # noqa: S603  # ours
        os.replace(new, library)


def _digest(compiler: str) -> str:
    parts = (SOURCE.read_text(), " ".join((compiler, *FLAGS)), _processor())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What `-march=native` goes by: the model and the flags of the first processor, or else the machine's name."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(line for line in first if line.partition(":")[0].strip() in told)


def _line(error: object) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])
