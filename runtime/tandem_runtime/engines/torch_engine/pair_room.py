"""Knows how two models on one device share its memory: one sum, made before either of them is loaded.

Refuses to know devices, folders, and how a part's numbers come about.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.torch_engine.room import DEFAULT_SHARE, gigabytes

__all__ = ["Part", "left_for_both", "shares", "sums"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one model takes, in bytes: weights, logits of a full step, and a block of keys and values. A session at full
    length has `one` blocks."""

    name: str
    weights: int
    logits: int
    block: int
    one: int
    sessions: int


def left_for_both(available: int, parts: Sequence[Part]) -> int:
    """24 x .9 available, weights of 15 and 1.5: 5.1 are left, less the logits."""
    return available - sum(part.weights + part.logits for part in parts)


def shares(available: int, parts: Sequence[Part], *, length: int, asked: int | None) -> list[int]:
    """Bytes of keys and values for each: as many positions for one as for the other, as they hold the same text.

    `asked` is for all together. None: what all sessions need at `length`, but DEFAULT_SHARE of what is left at most.
    Raises ModelRefused where one request would not fit, and where more is asked for than is left.
    """
    left, position = left_for_both(available, parts), sum(part.block for part in parts)
    needed = (max(part.one for part in parts) + 1) * position
    told = sums(available, parts)
    if left <= 0:
        raise ModelRefused(f"{told}; take smaller models, a narrower --dtype, fewer --max-sessions or a larger machine")
    if asked is not None and asked > left:
        raise ModelRefused(f"{told}; give --kv-bytes {left} at most, which is for both together")
    budget = int(left * DEFAULT_SHARE) if asked is None else asked
    if budget < needed:
        raise ModelRefused(f"{told}; one request of --max-length {length} needs {needed}: {_advice(left, needed)}")
    blocks = budget // position
    if asked is not None:
        return [blocks * part.block for part in parts]
    return [min(blocks, part.sessions * part.one + 1) * part.block for part in parts]


def sums(available: int, parts: Sequence[Part]) -> str:
    """One line, in bytes where it matters."""
    taken = ", ".join(
        f"{part.name} takes {gigabytes(part.weights)} of weights and {gigabytes(part.logits)} of logits"
        for part in parts
    )
    left = left_for_both(available, parts)
    return f"of {gigabytes(available)} available {taken}; {left} bytes are left for keys and values of both"


def _advice(left: int, needed: int) -> str:
    return "lower --max-length" + (f", or give --kv-bytes {needed} to {left}" if needed <= left else "")
