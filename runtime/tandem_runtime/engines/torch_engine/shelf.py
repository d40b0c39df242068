"""Knows where the weights of an engine stand in memory.

Refuses to know what they are for.

One row of a step reads every weight once, so memory's speed is its cost. Pages of 4 KB make a processor look up an
address for each 4 KB and end its reading ahead there; in pages of 2 MB one row took a quarter less time in bfloat16 and
a tenth in float32. Systems lend such pages to who asks (`madvise`), for memory that is not yet written, and most
weights of a small model are smaller than one. So on a CPU all of them are put into one piece of memory.
"""

import ctypes
import mmap

from torch import Tensor

__all__ = ["Shelf"]

ALIGNED = 64
"""Numbers: every weight begins where a line of the processor's cache does."""


class Shelf:
    """Memory for `count` weights of `numbers` numbers in all, of the type and device of `like`.

    On a CPU the system gives memory page by page when it is written: a weight takes its share once it is put here.
    """

    def __init__(self, numbers: int, *, count: int, like: Tensor) -> None:
        self._like = like
        self._free = _huge(numbers + count * ALIGNED, like) if like.device.type == "cpu" else None

    def take(self, rows: int, width: int) -> Tensor:
        """A weight [rows, width] that holds anything."""
        if self._free is None:
            return self._like.new_empty(rows, width)
        taken = self._free[: rows * width]
        self._free = self._free[-(-rows * width // ALIGNED) * ALIGNED :]
        return taken.view(rows, width)


def _huge(numbers: int, like: Tensor) -> Tensor:
    """A row of numbers, in large pages where the system has them; it is as good without."""
    memory = like.new_empty(numbers)
    advice: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        begin = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = memory.data_ptr() + memory.nbytes
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(0, end - begin)), advice)
    return memory
