"""Knows where the weights of an engine stand in memory.

Refuses to know what they are for.

One row of a step reads every weight once, so memory's speed is its cost. Pages of 4 KB make a processor look up an
address for each 4 KB and end its reading ahead there; in pages of 2 MB one row took a quarter less time in bfloat16 and
a tenth in float32. Systems lend such pages to who asks (`madvise`), for memory that is not yet written, and most
weights of a small model are smaller than one. So on a CPU all of them are put into one piece of memory.
"""

import ctypes
import mmap

import torch
from torch import Tensor

__all__ = ["Shelf"]

ALIGNED = 64
"""Bytes: every weight begins where a line of the processor's cache does."""


class Shelf:
    """Memory for `count` weights of `size` bytes in all, of whatever types, on one device.

    On a CPU the system gives memory page by page when it is written: a weight takes its share once it is put here.
    """

    def __init__(self, size: int, *, count: int, device: torch.device) -> None:
        self._free = _huge(size + count * ALIGNED) if device.type == "cpu" else None

    def take(self, rows: int, *, like: Tensor) -> Tensor:
        """A weight [rows, width] of the type and width of `like` that holds anything."""
        width = like.shape[1]
        if self._free is None:
            return like.new_empty(rows, width)
        size = rows * width * like.itemsize
        taken, self._free = self._free[:size], self._free[-(-size // ALIGNED) * ALIGNED :]
        return taken.view(like.dtype).view(rows, width)


def _huge(size: int) -> Tensor:
    """So many bytes, in large pages where the system has them; it is as good without."""
    memory = torch.empty(size, dtype=torch.uint8)
    advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        begin = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = memory.data_ptr() + memory.nbytes
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(0, end - begin)), advice)
    return memory
