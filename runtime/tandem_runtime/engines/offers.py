"""Knows which answers of a draft are ready before they are asked for, on the side of those who ask.

Refuses to know the model's thread: what is ready there is told here, as the results of a step are.

A step of the draft that is under way when the verdict comes cannot be broken off. Who has enough ready for that verdict
is answered at once all the same; the draft hears of it after the step, and goes on from there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tandem_runtime.domain.ahead import goes_on
from tandem_runtime.domain.tokens import (
    Ahead,
    Incarnation,
    Proposal,
    ProposeRound,
    SessionId,
    SparseRow,
    TokenId,
)

__all__ = ["Offer", "Offers", "needed"]


def needed(request: ProposeRound) -> int:
    """How many tokens to have before the answer."""
    least = None if request.outlook is None else request.outlook.enough
    return request.k if least is None else min(request.k, least)


Guess: TypeAlias = tuple[TokenId, SparseRow | None]


@dataclass(slots=True, eq=False)
class Offer:
    """What is ready for the verdicts on one proposal, `proposed` from `offset` on, by how the output then goes on from
    there. It grows while the verdict is awaited."""

    incarnation: Incarnation
    offset: int
    proposed: tuple[TokenId, ...]
    has_q: bool
    ready: dict[tuple[TokenId, ...], list[Guess]] = field(default_factory=dict)
    due: dict[tuple[TokenId, ...], float] = field(default_factory=dict)
    """When the next token is likely to be there, of those that are being drafted."""

    def add(self, after: tuple[TokenId, ...], guess: Guess, due: float | None) -> None:
        self.ready.setdefault(after, []).append(guess)
        self.due.pop(after, None)
        if due is not None:
            self.due[after] = due

    def answer(self, request: ProposeRound, now: float, round_seconds: float) -> Proposal | None:
        """What is ready for what happened; None: not enough, or it is better to wait for the next token."""
        stand = request.base - self.offset
        if request.incarnation != self.incarnation or not 0 <= stand <= len(self.proposed):
            return None
        after = (*self.proposed[:stand], *request.committed)
        found = self.ready.get(after, [])
        if request.stop is not None or request.outlook is None or not 0 < needed(request) <= len(found):
            return None
        survivals = request.outlook.survivals
        if after in self.due and len(found) < min(request.k, len(survivals)):
            late_seconds = max(self.due[after] - now, 0.0)
            if goes_on(survivals, len(found), late_seconds=late_seconds, round_seconds=round_seconds):
                return None
        offered = found[: request.k]
        wasted = sum(map(len, self.ready.values())) - len(offered) + len(self.due)  # with those of the step under way
        return Proposal(
            ids=tuple(token for token, _ in offered),
            q=tuple(_present(row for _, row in offered)) if self.has_q else None,
            ahead=Ahead(True, wasted),
        )


class Offers:
    """One for each session whose latest proposal is being verified. What the model's thread makes of a request may be
    told when the next one is here already: it is no offer any more."""

    def __init__(self) -> None:
        self._latest: dict[SessionId, tuple[ProposeRound, Offer | None]] = {}

    def make(self, after: ProposeRound, offer: Offer) -> None:
        """For the round that comes after that request, if that was the session's last."""
        if after.session in self._latest and self._latest[after.session][0] is after:
            self._latest[after.session] = after, offer

    def forget(self, session: SessionId) -> None:
        self._latest.pop(session, None)

    def answer(self, request: ProposeRound, now: float, round_seconds: float) -> Proposal | None:
        """An answer that can be given at once; None: there is none. Whatever was offered, it was for this round."""
        _, offer = self._latest.get(request.session, (None, None))
        self._latest[request.session] = request, None
        return None if offer is None else offer.answer(request, now, round_seconds)


def _present(rows: Iterable[SparseRow | None]) -> Iterable[SparseRow]:
    return (row for row in rows if row is not None)
