"""Knows what a step needs at the least: bytes that it reads from memory, and products of two numbers.

Refuses to know how long it took, and what the device could do in that time. Whoever divides the one by the other has
the share of memory bandwidth and of arithmetic that was used (MBU, MFU). Both are lower bounds: a step may read more.

    bytes      all weights once, and keys and values of each row's context up to its last token
    products   for each token one per weight of its layers, for each output one per weight of the head, and two of each
               key's and value's numbers for every head and position that a token attends to
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_runtime.ports import Row, Toll


@dataclass(slots=True)
class Needs:
    """Of all steps so far. Written by the step loop's thread, read by any."""

    bytes_read: int = 0
    products: int = 0

    def add(self, rows: Sequence[Row], toll: Toll) -> None:
        self.bytes_read += toll.weight_bytes
        for row in rows:
            self.bytes_read += toll.position_bytes * (row.start + len(row.tokens))
            self.products += len(row.tokens) * toll.layer_weights + row.outputs * toll.head_weights
            self.products += toll.position_products * attended(row)


def attended(row: Row) -> int:
    """Pairs of a token and a position that it attends to: 3 tokens at 10 attend to 11 + 12 + 13."""
    count = len(row.tokens)
    return count * row.start + count * (count + 1) // 2
