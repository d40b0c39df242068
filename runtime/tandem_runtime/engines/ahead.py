"""Knows the answers that a draft prepares for one session while its proposal is verified, and which of them is right.

Refuses to know which branches are worth it (`domain.ahead`), the port, and how a token is drawn.

A *branch* supposes a verdict: the first j proposed tokens stand, then y. It is a line of KV memory of its own, forked
from the session's (it shares whole blocks, and copies the one that is begun), and a job of its own in the steps that
all share, in the lowest class of urgency; the first line to give up its memory, and one that never takes any from
others. What follows if all proposed tokens stand is known only once the last of them has been read: so does the
*trunk*, the job that begins all others. What goes wrong in one of these jobs ends that one, and frees its memory.

A branch draws what would be drawn if its verdict came and it were asked then: from the same prefix, under the same
rules, with the same numbers of chance. So a proposal does not depend on whether it was prepared, but for its length,
and that depends on time, never on what was drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeAlias

from tandem_runtime.domain.ahead import goes_on
from tandem_runtime.domain.fan_out import Chances, Worth, fan_out, on_average
from tandem_runtime.domain.tokens import Ahead, Outlook, SparseRow, TokenId
from tandem_runtime.engines.jobs import Work
from tandem_runtime.engines.lines import Line, Want
from tandem_runtime.engines.offers import Offer
from tandem_runtime.engines.sampler import has_law
from tandem_runtime.engines.sessions import Session
from tandem_runtime.engines.shortlists import Shortlist, shortlist
from tandem_runtime.engines.step_loop import Beside, StepLoop
from tandem_runtime.ports import Logits

__all__ = ["MOST_BRANCHES", "Desk", "Drafted", "Guesser", "Guessing", "Leads", "Pauses", "Preparation"]

MOST_BRANCHES = 32
"""Of one session, whatever is asked for."""

LEARNT_PER_PAUSE = 0.1

DEEP_CHANCE = 0.03
"""Behind a verdict that is less likely no more is drafted than would be waited for."""

Guesser: TypeAlias = Callable[[Session, Logits, int], tuple[TokenId, SparseRow | None] | None]
"""(session, logits [1, vocab], guesses before it in its round) -> the guess after the session's output; None: none."""


@dataclass(slots=True, eq=False)
class Drafted:
    """A proposal as far as it is drafted; q is empty in coupled mode. Of what the tokens were drawn from, the first are
    kept as `shortlists`, the others as `logits` [1, vocab]."""

    ids: list[TokenId] = field(default_factory=list)
    q: list[SparseRow] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)
    shortlists: list[Shortlist] = field(default_factory=list)

    def first(self, k: int) -> "Drafted":
        """Its first k tokens, with all that is known of the places after each of them."""
        return Drafted(self.ids[:k], self.q[:k], shortlists=self.shortlists[: k + 1])

    def add(self, token: TokenId, row: SparseRow | None) -> None:
        self.ids.append(token)
        if row is not None:
            self.q.append(row)


@dataclass(frozen=True, slots=True)
class Guessing:
    """How a draft guesses: by `guess`, never behind one of the tokens `ends`, up to `longest` tokens in all."""

    guess: Guesser
    ends: frozenset[TokenId]
    longest: int
    pauses: "Pauses"
    leads: "Leads"


@dataclass(frozen=True, slots=True)
class Desk:
    """Where what is prepared for the round after this one is told: `tell` runs something there once results are due,
    which `offer` is filled by. `answered_at` is when this round was answered."""

    offer: Offer
    tell: Callable[[Callable[[], None]], None]
    answered_at: float


class Pauses:
    """How long a session takes from the answer to a round to its next round: what there is time for. One for all."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """None: unknown."""

    def learn(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds is None else self.seconds + (seconds - self.seconds) * LEARNT_PER_PAUSE


class Leads:
    """What all sessions have said of how much a lead is worth: those that are sampled, and those that are not."""

    def __init__(self) -> None:
        self._known = {True: Worth(), False: Worth()}

    def of(self, session: Session) -> Worth:
        return self._known[session.parameters.temperature > 0]

    def learn(self, session: Session, shortlists: Sequence[Shortlist], said: Sequence[TokenId]) -> None:
        """Of the places that were examined, with the tokens that the target said there."""
        sampled = session.parameters.temperature > 0
        for place, token in zip(shortlists, said, strict=False):
            if place.behind:
                rank = place.ranked.index(token) if token in place.ranked else None
                self._known[sampled] = self._known[sampled].told(place.behind, rank)


@dataclass(slots=True, eq=False)
class _Branch:
    """`after` is what the output goes on with from the preparation's offset, if this branch is right; `most` tokens are
    drafted behind it."""

    after: tuple[TokenId, ...]
    most: int
    line: Line | None
    """None: it has given up its memory. What it has drafted may be offered all the same."""
    lane: Beside
    drafted: Drafted = field(default_factory=Drafted)


class Preparation:
    """Begins at `begin`, on the model's thread, and ends with `settle` or `drop`."""

    def __init__(
        self, session: Session, proposed: Drafted, outlook: Outlook, *, loop: StepLoop, guessing: Guessing, desk: Desk
    ) -> None:
        """`proposed` is the session's latest guess, which its output ends with."""
        self._session = session
        self._outlook = outlook
        self._proposed = proposed
        self._loop = loop
        self._guessing = guessing
        self._offset = len(session.output) - len(proposed.ids)
        self._settled = len(session.request.prompt) + self._offset
        self._branches: dict[tuple[TokenId, ...], _Branch] = {}
        self._trunk: _Branch | None = None
        self._numbers = count()
        self._over = False
        self._desk = desk

    def begin(self) -> None:
        """Fork the branches that are known, and read on for those that are not."""
        if self._over:
            return
        self._trunk = _Branch(tuple(self._proposed.ids), 0, None, self._next_lane())
        self._loop.go_beside(self._trunk.lane, self._owning(self._trunk, self._grow(self._trunk)))

    def settle(self, arrived: float) -> tuple[Drafted | None, Ahead]:
        """The output has gone on, as was told at the moment `arrived`: what was prepared for just that, and what came
        of it all. The session's line then holds what the right branch's did."""
        happened = tuple(self._session.output[self._offset :])
        right = self._branches.get(happened)
        if right is not None and not right.drafted.ids:
            right = None
        if len(happened) <= len(self._proposed.ids) + 1:  # else rounds went between that were not asked of this draft
            self._guessing.pauses.learn(max(arrived - self._desk.answered_at, 0.0))
        self._guessing.leads.learn(self._session, self._proposed.shortlists, happened)
        if right is not None and right.line is not None:
            self._loop.lines.take_over(right.line, self._session.prefix)
        self.drop()
        wasted = sum(len(branch.drafted.ids) for branch in self._branches.values() if branch is not right)
        return None if right is None else right.drafted, Ahead(right is not None, wasted)

    def drop(self) -> None:
        """End all of it. Idempotent."""
        self._over = True
        held = [*self._branches.values(), *([self._trunk] if self._trunk else [])]
        self._loop.end_beside([branch.lane for branch in held])
        for branch in held:
            self._free(branch)

    def _next_lane(self) -> Beside:
        return self._session.request.session, next(self._numbers)

    def _owning(self, branch: _Branch, work: Work[None]) -> Work[None]:
        """`work`, which ends the branch's hold on memory where it does not come to its end."""
        try:
            yield from work
        except BaseException:  # given up, dropped or failed
            self._free(branch)
            raise

    def _free(self, branch: _Branch) -> None:
        line, branch.line = branch.line, None
        if line is not None:
            self._loop.lines.close(line)

    def _grow(self, trunk: _Branch) -> Work[None]:
        ids, own = self._proposed.ids, self._session.line
        self._loop.lines.cut(own, own.agrees(self._session.prefix))
        self._shorten()
        *wanted, after_all = self._fanned_out()
        for stand, chances in enumerate(wanted):
            guesses = self._proposed.shortlists[stand].after_rejection(ids[stand], len(chances))
            self._fork(own, stand, guesses, chances)
        if not after_all or ids[-1] in self._guessing.ends or self._settled + len(ids) > self._guessing.longest:
            return
        if len(self._proposed.shortlists) > len(ids):
            guesses = self._proposed.shortlists[len(ids)].after_all(len(after_all))
            self._fork(own, len(ids), guesses, after_all)
        else:
            yield from self._read_on(trunk)
            self._free(trunk)

    def _fanned_out(self) -> tuple[Chances, ...]:
        """By the draft's scores where the target's are a likeness of them, else on average."""
        ids, worth = self._proposed.ids, self._guessing.leads.of(self._session)
        places = [*on_average(self._outlook.survivals[: len(ids)])]
        for at, place in enumerate(self._proposed.shortlists[: len(places)]):
            if place.behind and (at == len(ids) or place.ranked[0] == ids[at]):
                places[at] = worth.chances(place.behind)
        return fan_out(places, min(self._outlook.branches, MOST_BRANCHES))

    def _shorten(self) -> None:
        """Make shortlists of the rows that the proposal was drawn from."""
        proposed = self._proposed
        for index, logits in enumerate(proposed.logits, start=len(proposed.shortlists)):
            with self._session.supposing(self._offset, proposed.ids[:index]):
                proposed.shortlists.append(self._shortlist(self._session.processed(logits, ())[0], self._offset, index))
        proposed.logits.clear()

    def _shortlist(self, row: Logits, offset: int, index: int) -> Shortlist:
        session = self._session
        asked = session.request.verification
        return shortlist(row, session.parameters, verification=asked, offset=offset, index=index)

    def _fork(self, line: Line, stand: int, guesses: Sequence[TokenId], chances: Chances) -> None:
        """Branches off `line` behind the first `stand` proposed tokens. Behind what is hardly likely no more is drafted
        than would be waited for, so that later steps have fewer rows."""
        longest = len(self._outlook.survivals)
        for token, chance in zip(guesses, chances, strict=False):
            after = (*self._proposed.ids[:stand], token)
            if token in self._guessing.ends:
                continue
            most = min(self._outlook.enough or longest, longest) if chance < DEEP_CHANCE else longest
            fork = self._loop.lines.fork(line, self._settled + stand)
            branch = self._branches[after] = _Branch(after, most, fork, self._next_lane())
            self._loop.go_beside(branch.lane, self._owning(branch, self._draft(branch, fork)))

    def _behind(self, line: Line, after: Sequence[TokenId]) -> list[TokenId]:
        """What a branch's line is to hold: all behind its stem, of what is settled and then `after`."""
        prompt, output = self._session.request.prompt, self._session.output
        begins = max(line.begins - len(prompt), 0)
        settled = [*prompt[line.begins :], *output[begins : self._offset]]
        return [*settled, *after[max(line.begins - self._settled, 0) :]]

    def _read_on(self, trunk: _Branch) -> Work[None]:
        """Read the last proposed token, and branch off behind it."""
        ids, session = self._proposed.ids, self._session
        line = trunk.line = self._loop.lines.fork(session.line, self._settled + len(ids))
        tokens = self._behind(line, ids)
        seen = yield Want(line, tokens, first=len(tokens) - 1, settled=0)
        with session.supposing(self._offset, ids):
            (row,) = session.processed(seen.logits, ())
        if not has_law(row, session.parameters):
            return
        self._proposed.shortlists.append(self._shortlist(row, self._offset, len(ids)))
        *_, chances = self._fanned_out()
        self._fork(line, len(ids), self._proposed.shortlists[-1].after_all(len(chances)), chances)

    def _draft(self, branch: _Branch, line: Line) -> Work[None]:
        """Draft what would be proposed behind the branch."""
        session, drafted = self._session, branch.drafted
        tokens = self._behind(line, branch.after)
        offset = self._offset + len(branch.after)
        while len(drafted.ids) < branch.most and line.begins + len(tokens) <= self._guessing.longest:
            seen = yield Want(line, tokens, first=len(tokens) - 1, settled=0)
            with session.supposing(self._offset, [*branch.after, *drafted.ids]):
                guessed = self._guessing.guess(session, seen.logits, len(drafted.ids))
                if guessed is None:
                    return
                (row,) = session.processed(seen.logits, ())
                drafted.shortlists.append(self._shortlist(row, offset, len(drafted.ids)))
            drafted.add(*guessed)
            tokens.append(guessed[0])
            more = guessed[0] not in self._guessing.ends and self._goes_on(branch, seen.forward_seconds)
            due = self._loop.now() + seen.forward_seconds if more and len(drafted.ids) < branch.most else None
            self._desk.tell(partial(self._desk.offer.add, branch.after, guessed, due))
            if not more:
                return

    def _goes_on(self, branch: _Branch, step_seconds: float) -> bool:
        """Whether to take another step of so many seconds, if there is one to take."""
        ready, pause_seconds = len(branch.drafted.ids), self._guessing.pauses.seconds
        if pause_seconds is None or ready >= branch.most:
            return True
        late_seconds = self._loop.now() + step_seconds - self._desk.answered_at - pause_seconds
        survivals = self._outlook.survivals
        return goes_on(survivals, ready, late_seconds=late_seconds, round_seconds=pause_seconds)
