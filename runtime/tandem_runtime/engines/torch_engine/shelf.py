"""Knows where the weights of an engine stand in memory, and what large pages are.

Refuses to know what they are for.

One row of a step reads every weight once, so memory's speed is its cost. Pages of 4 KB make a processor look up an
address for each 4 KB and end its reading ahead there; in pages of 2 MB one row took a quarter less time in bfloat16 and
a tenth in float32. Systems lend such pages to who asks (`madvise`), for memory that is not yet written, and most
weights of a small model are smaller than one. So on a CPU all of them are put into one piece of memory, as they are
read.
"""

import ctypes
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Shelf", "adjoining", "huge"]

ALIGNED_BYTES = 64
"""Every weight begins where a line of the processor's cache does."""


class Shelf:
    """Memory on `device` for `count` weights of `nbytes` bytes in all.

    On a CPU the system gives memory page by page when it is written: a weight takes its share once it is put here.
    """

    def __init__(self, nbytes: int, *, count: int, device: torch.device) -> None:
        self._device = device
        self._free = huge(nbytes + count * ALIGNED_BYTES) if device.type == "cpu" else None

    def take(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """A weight [rows, width] that holds anything."""
        if self._free is None:
            return torch.empty(rows, width, dtype=dtype, device=self._device)
        size = rows * width * dtype.itemsize
        taken = self._free[:size]
        self._free = self._free[-(-size // ALIGNED_BYTES) * ALIGNED_BYTES :]
        return taken.view(dtype).view(rows, width)


def adjoining(weights: Sequence[Tensor]) -> Tensor | None:
    """Weights [n, width] as one [all n, width] over the same memory; None where they do not stand behind each other."""
    first = weights[0].detach()
    begin, home = first.data_ptr(), first.untyped_storage().data_ptr()
    for weight in weights:
        if weight.data_ptr() != begin or weight.untyped_storage().data_ptr() != home or not weight.is_contiguous():
            return None
        begin += weight.nbytes
    return first.as_strided((sum(map(len, weights)), first.shape[1]), first.stride())


def huge(nbytes: int) -> Tensor:
    """Bytes, in large pages where the system has them; they are as good without."""
    memory = torch.empty(nbytes, dtype=torch.uint8)
    advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        begin = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = memory.data_ptr() + memory.nbytes
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(0, end - begin)), advice)
    return memory
