"""Knows which session gives up its KV memory when another needs some.

Refuses to know blocks, models and threads.

A session's keys and values can be computed anew from its tokens, so memory can be taken from whoever is not in the step
at hand; it costs that session a prefill. To whom that may happen follows from the order in which sessions were opened:

1. parked sessions (no work of theirs waits): those opened later than the asker, and those that have been parked for
   longer than `patience_seconds`; whoever has been parked longest goes first;
2. sessions whose work waits, if they were opened later: the latest first.

So two sessions that together are too large do not push each other out in turns: the later one waits until the earlier
one ends, or rests for longer than the patience. And the earliest whose work waits can get all the memory there is once
the patience of the parked ones has run out, so somebody always goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Holder", "gives_way"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds memory; of two the one with the smaller number was opened earlier."""

    number: int
    parked_seconds: float | None
    """None: work of it waits."""


def gives_way(asker: int, others: Iterable[Holder], *, patience_seconds: float) -> int | None:
    """The number of the session whose memory session number `asker` may have next; None: it has to wait.

    With a patience of 1 s, of sessions 1 (parked for 0.5 s), 2 (the asker), 3 (at work) and 4 (parked for 0.1 s) first
    4 gives way, then 3, and 1 half a second later.
    """
    parked: list[tuple[float, int]] = []
    later: list[int] = []
    for other in others:
        is_later = other.number > asker
        if other.parked_seconds is None:
            later += [other.number] if is_later else []
        elif is_later or other.parked_seconds >= patience_seconds:
            parked.append((other.parked_seconds, other.number))
    if parked:
        return max(parked)[1]
    return max(later, default=None)
