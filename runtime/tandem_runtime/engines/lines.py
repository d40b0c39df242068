"""Knows the KV memory of sessions: which of their tokens stand in it, who gets more, and who has to give up what.

Refuses to know what sessions are for, which of them share a step, and what a model computes.

A line is a session's place in the memory: the ids that stand there and the blocks in which they do. Roll-back, prefix
cache and preemption are one thing seen from here: the ids become fewer, and what is missing will be computed.

A *branch* drafts ahead behind a session's line. It reads that line's whole blocks, its *stem*, and holds none of them:
ids and blocks of its own begin behind it, so a branch costs the same however long the text is. That is safe, since the
session's line changes only once what was drafted ahead has ended, but for one thing: it may have to give up its memory.
Branches give way before any session does, and one that is left without its stem is given up.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.batching import Claim, Holder, gives_way, ranks
from tandem_runtime.domain.blocks import BlockId, Key, Table
from tandem_runtime.domain.errors import Overloaded
from tandem_runtime.domain.places import is_welcome, kept
from tandem_runtime.domain.tokens import Priority, TokenId
from tandem_runtime.ports import StepModel

__all__ = ["PATIENCE_SECONDS", "Line", "Lines", "MemoryCounts", "Stem", "Want"]

PATIENCE_SECONDS = 1.0
"""How long a session keeps its memory between rounds against those opened later. A draft's round takes far less."""


@dataclass(frozen=True, slots=True, eq=False)
class Stem:
    """What a branch reads and never writes: the first `blocks` of another line, `length` positions in all."""

    line: "Line"
    blocks: tuple[BlockId, ...]
    length: int

    @property
    def stands(self) -> bool:
        """Whether that line still holds it."""
        return self.line.table.length >= self.length


@dataclass(slots=True, eq=False)
class Line:
    """The KV memory of one session, or of a branch. `held` are the ids that stand in the blocks of `table`.

    `number` tells in which order lines were opened. `used_at` is when a step or the session's opening last used it.
    """

    number: int
    table: Table
    claim: Claim
    used_at: float
    adapter: AdapterDigest | None = None
    stem: Stem | None = None
    """Of a branch, whose ids and positions are counted from its end."""
    held: list[TokenId] = field(default_factory=list)

    @property
    def is_ahead(self) -> bool:
        """Whether it is a branch: beside a session's own line, and the first to give way."""
        return self.stem is not None

    @property
    def begins(self) -> int:
        """The position of its first id in the sequence."""
        return 0 if self.stem is None else self.stem.length

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        """All that its rows read, from the sequence's beginning."""
        return (*(() if self.stem is None else self.stem.blocks), *self.table.blocks)

    def agrees(self, tokens: list[TokenId]) -> int:
        """How many of the ids that it holds `tokens` begins with. By halves, as whole pieces are compared fast."""
        least, most = 0, min(len(self.held), len(tokens))
        if self.held[:most] == tokens[:most]:
            return most
        while most - least > 1:
            middle = (least + most) // 2
            if self.held[least:middle] == tokens[least:middle]:
                least = middle
            else:
                most = middle
        return least


@dataclass(frozen=True, slots=True)
class Want:
    """The logits that follow `tokens[first]`, `tokens[first + 1]`, ... to the end, given all before them.

    Of a branch, `tokens` are those behind its stem. The first `settled` tokens are verified: of no others will the
    memory be known to other sessions. With `survivals` the others are guesses that a step may leave out (see
    `domain.budget`): one survival for each that was asked for, so there are no more guesses than survivals.
    """

    line: Line
    tokens: list[TokenId]
    first: int
    settled: int
    survivals: tuple[float, ...] = ()

    @property
    def compulsory(self) -> int:
        """So many of the tokens are computed in any case."""
        return self.settled if self.survivals else len(self.tokens)


@dataclass(slots=True)
class MemoryCounts:
    """What happened so far."""

    preemptions: int = 0
    """Sessions that gave up their memory."""
    abandoned: int = 0
    """Lines that drafted ahead and gave theirs up."""
    cached_tokens: int = 0
    """Tokens found in the memory instead of computed."""
    computed: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    """Tokens that were computed, by how urgent they were."""
    preempted_at: float | None = None


class Lines:
    """All lines over a model's memory. Used on the model's thread only."""

    def __init__(
        self, model: StepModel, *, now: Callable[[], float], patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._model = model
        self._blocks = model.blocks
        self._now = now
        self._patience = patience_seconds
        self._lines: dict[int, Line] = {}
        self._opened = 0
        self.counts = MemoryCounts()

    @property
    def largest(self) -> int:
        """Blocks of the line that holds most. May be read on any thread."""
        return max((len(line.table.blocks) for line in list(self._lines.values())), default=0)

    @property
    def adapters(self) -> set[AdapterDigest | None]:
        """What open lines are computed with."""
        return {line.adapter for line in self._lines.values()}

    def open(self, root: Key | None, claim: Claim, *, adapter: AdapterDigest | None = None) -> Line:
        """An empty line. What is settled in it is known to lines of the same `root`; None: to no others.

        Raises Overloaded when as many are open as the model serves, or only places are left that are kept for others.
        """
        self._refuse_what_has_no_place(claim)
        self._opened += 1
        line = Line(self._opened, Table(root), claim, self._now(), adapter)
        self._lines[line.number] = line
        return line

    def _refuse_what_has_no_place(self, claim: Claim) -> None:
        held: dict[str | None, tuple[int, float]] = {}
        for line in self._lines.values():
            if not line.is_ahead:
                count, _ = held.get(line.claim.tenant, (0, 0.0))
                held[line.claim.tenant] = count + 1, line.claim.weight
        most = self._model.max_sessions
        if sum(count for count, _ in held.values()) >= most:
            raise Overloaded(f"all {most} sessions of this engine are taken; try again later")
        if not is_welcome(claim.tenant, claim.weight, 1, held=held, places=most):
            raise Overloaded(
                f"the last {kept(most)} of {most} sessions of this engine are kept for tenants below their share; try"
                " again later"
            )

    def fork(self, line: Line, length: int) -> Line:
        """A branch behind the first `length` ids of a session's line, or of those of a branch and its stem; or behind
        as many of them as there are. What it shares and may write into is at most a block, and what lies behind that.
        """
        stem = line.stem or self._stem(line, length)
        skipped = stem.length - line.begins
        self._opened += 1
        claim = replace(line.claim, priority=Priority.BACKGROUND)
        table = self._blocks.fork(line.table, begin=self._blocks.needed(skipped))
        branch = Line(self._opened, table, claim, self._now(), line.adapter, stem, line.held[skipped:])
        self.cut(branch, length - stem.length)
        self._lines[branch.number] = branch
        return branch

    def take_over(self, branch: Line, tokens: list[TokenId]) -> None:
        """The line behind whose stem it is goes on as the branch does, if so it holds more of `tokens`. The branch then
        holds the rest of that line."""
        stem = branch.stem
        if stem is None or not stem.stands or stem.length + len(branch.held) <= stem.line.agrees(tokens):
            return
        self._blocks.exchange(stem.line.table, branch.table, begin=len(stem.blocks))
        stem.line.held[stem.length :], branch.held[:] = branch.held, stem.line.held[stem.length :]

    def close(self, line: Line) -> None:
        """The line is none any more, and holds nothing."""
        self.cut(line, 0)
        del self._lines[line.number]

    def forget(self) -> None:
        """Nothing of what the memory holds can be trusted: every line is empty, and the books begin anew."""
        self._blocks.clear()
        for line in self._lines.values():
            line.held, line.table = [], Table(line.table.root)

    def forget_of(self, root: Key) -> None:
        """What was settled in lines of that root is known to none any more; those that are open go on by themselves."""
        self._blocks.forget(root, [line.table for line in self._lines.values()])

    def cut(self, line: Line, length: int) -> None:
        """Only the first `length` ids stand."""
        del line.held[length:]
        self._blocks.roll_back(line.table, min(length, line.table.length))

    def recall(self, line: Line, tokens: list[TokenId]) -> int:
        """Make the line hold nothing but a beginning of `tokens`, as long a one as the memory knows; how long it is."""
        self.cut(line, line.agrees(tokens))
        self._adopt(line, tokens)
        return len(line.held)

    def begin(self, want: Want) -> None:
        """What is held of a want already is not computed again, save for positions whose logits are wanted."""
        self.cut(want.line, want.line.agrees(want.tokens))
        self.adopt(want)
        self.cut(want.line, min(len(want.line.held), want.first))

    def adopt(self, want: Want) -> None:
        """Take over what other lines have computed of a want since."""
        if len(want.line.held) < want.first:
            self._adopt(want.line, want.tokens[: want.settled])
            self.cut(want.line, min(len(want.line.held), want.first))

    def upcoming(self, want: Want) -> Key | None:
        """What the block that is computed next for a want will be known as; None: it will not be known."""
        table = want.line.table
        if want.settled < (len(table.settled) + 1) * self._blocks.block_tokens:
            return None
        return self._blocks.upcoming(table, want.tokens[: want.settled])

    def grant(self, line: Line, length: int, *, at_work: Collection[Line]) -> bool:
        """Memory for the line's first `length` ids, if need be that of others, who hold nothing any more afterwards.
        False where it does not suffice, and nobody has given up any: for a line that drafts ahead nobody ever does."""
        copies = self._blocks.extend(line.table, length)
        if copies is None and not line.is_ahead:
            for other in self._yielding(line, length, at_work):
                self._preempt(other)
            copies = self._blocks.extend(line.table, length)
        if copies:
            self._model.copy(copies)
        return copies is not None

    def fed(self, want: Want, count: int) -> None:
        """The next `count` ids of a want, for which memory was granted, have been computed."""
        line = want.line
        line.held += want.tokens[len(line.held) : len(line.held) + count]
        line.used_at = self._now()
        self.counts.computed[line.claim.priority] += count
        settled = min(want.settled, len(line.held))
        if settled // self._blocks.block_tokens > len(line.table.settled):
            self._blocks.settle(line.table, want.tokens[:settled])

    def seconds_of_patience(self, at_work: Collection[Line]) -> float:
        """How long until a parked line gives way that does not yet."""
        now = self._now()
        parked = [line.used_at + self._patience - now for line in self._lines.values() if line not in at_work]
        return min((left for left in parked if left > 0), default=0.0)

    def _stem(self, line: Line, length: int) -> Stem:
        """The whole blocks of its first `length` ids, or of as many as it holds."""
        size = self._blocks.block_tokens
        whole = min(length, line.table.length) // size
        return Stem(line, tuple(line.table.blocks[:whole]), whole * size)

    def _adopt(self, line: Line, tokens: list[TokenId]) -> None:
        before = len(line.held)
        line.held += tokens[before : self._blocks.adopt(line.table, tokens)]
        self.counts.cached_tokens += len(line.held) - before

    def _yielding(self, asker: Line, length: int, at_work: Collection[Line]) -> list[Line]:
        """Who makes room for the asker's first `length` ids; nobody, where all who may do not suffice. What was drafted
        ahead goes first, and all at once: branches share most of their blocks, so that one alone frees next to nothing.
        """
        yielding = [line for line in self._lines.values() if line.is_ahead and line.table.blocks and line is not asker]
        while not self._blocks.suffice(asker.table, length, without=[other.table for other in yielding]):
            number = self._next_to_yield(asker, at_work, yielding)
            if number is None:
                return []
            yielding.append(self._lines[number])
        return yielding

    def _next_to_yield(self, asker: Line, at_work: Collection[Line], yielding: Collection[Line]) -> int | None:
        now = self._now()
        ranked = ranks({number: line.claim for number, line in self._lines.items()})
        holders = [
            Holder(number, ranked[number], None if line in at_work else now - line.used_at)
            for number, line in self._lines.items()
            if line.table.blocks and line is not asker and line not in yielding
        ]
        return gives_way(ranked[asker.number], holders, patience_seconds=self._patience)

    def _preempt(self, line: Line) -> None:
        self.cut(line, 0)
        if line.is_ahead:
            self.counts.abandoned += 1
            return
        self.counts.preemptions += 1
        self.counts.preempted_at = self._now()
