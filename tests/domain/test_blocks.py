"""The books of a paged memory: no block is lost or held twice, and what a table holds is what was written."""

from collections import Counter
from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.blocks import BlockId, Blocks, Copy, Table, root_key

SIZE = 4
A, X = AdapterDigest("a"), AdapterDigest("x")
ROOT = root_key(tenant="a", adapter=None)


def blocks_of(count: int) -> Blocks:
    return Blocks(count, block_tokens=SIZE)


def filled(blocks: Blocks, tokens: str, root: bytes | None = ROOT) -> Table:
    """A table that holds the settled `tokens`, one per character."""
    table = Table(root)  # type: ignore[arg-type]  # a key is bytes
    assert blocks.extend(table, len(tokens)) == ()
    blocks.settle(table, ids(tokens))
    return table


def ids(tokens: str) -> list[int]:
    return list(tokens.encode())


def adopted(blocks: Blocks, tokens: str, root: bytes | None = ROOT) -> list[int]:
    table = Table(root)  # type: ignore[arg-type]  # a key is bytes
    assert blocks.adopt(table, ids(tokens)) == len(table.blocks) * SIZE
    return list(table.blocks)


def test_a_roll_back_keeps_the_blocks_that_still_hold_something() -> None:
    blocks = blocks_of(5)
    table = filled(blocks, "abcdefghij")
    before = list(table.blocks)
    blocks.roll_back(table, 5)
    assert (table.blocks, table.length, blocks.used) == (before[:2], 5, 2)
    blocks.roll_back(table, 0)
    assert (blocks.used, blocks.available) == (0, 5)


@pytest.mark.parametrize(
    ("begins", "shares"),
    [("abcdefgh", 2), ("abcdefghijkl", 2), ("abcdefgX", 1), ("abcdXfgh", 1), ("Xbcdefgh", 0), ("abc", 0), ("", 0)],
)
def test_a_sequence_begins_with_the_known_blocks_of_the_same_prefix(begins: str, shares: int) -> None:
    blocks = blocks_of(8)
    table = filled(blocks, "abcdefghij")
    assert adopted(blocks, begins) == table.blocks[:shares]


@pytest.mark.parametrize(
    "root",
    [None, root_key(tenant="b", adapter=None), root_key(tenant="a", adapter=X), root_key(tenant="", adapter=A)],
)
def test_another_tenant_or_adapter_finds_nothing(root: bytes | None) -> None:
    blocks = blocks_of(8)
    filled(blocks, "abcdefgh")
    assert adopted(blocks, "abcdefgh", root) == []


def test_a_sequence_goes_on_with_what_another_has_settled_since() -> None:
    blocks = blocks_of(8)
    late = Table(ROOT)
    coming = [blocks.upcoming(late, ids("abcdefghi")[:end]) for end in (3, 4, 9)]
    early = filled(blocks, "abcd")
    assert coming == [None, early.settled[0], early.settled[0]]
    assert blocks.adopt(late, ids("abcdefghi")) == 4
    blocks.extend(early, 8)
    blocks.settle(early, ids("abcdefgh"))
    assert blocks.adopt(late, ids("abcdefghi")) == 8
    assert late.blocks == early.blocks
    blocks.extend(late, 9)
    blocks.extend(early, 12)
    blocks.settle(early, ids("abcdefghijkl"))
    assert blocks.upcoming(late, ids("abcdefghijkl")) == early.settled[2]
    assert blocks.adopt(late, ids("abcdefghijkl")) == 9  # it stands within a block


def test_what_is_not_settled_is_not_found() -> None:
    blocks = blocks_of(8)
    table = Table(ROOT)
    blocks.extend(table, 8)
    blocks.settle(table, ids("abcdef"))
    assert adopted(blocks, "abcdefgh") == table.blocks[:1]


def test_a_table_without_a_root_shares_nothing() -> None:
    blocks = blocks_of(8)
    filled(blocks, "abcdefgh", root=None)
    assert adopted(blocks, "abcdefgh", root=None) == []
    assert blocks.idle == 0


def test_known_blocks_outlive_their_table_until_they_are_needed() -> None:
    blocks = blocks_of(3)
    table = filled(blocks, "abcdefgh")
    first, second = table.blocks
    blocks.roll_back(table, 0)
    assert (blocks.used, blocks.idle, blocks.available) == (0, 2, 3)
    other = Table(None)
    assert blocks.extend(other, 2 * SIZE) == ()
    assert second in other.blocks  # of one table the last goes first
    assert adopted(blocks, "abcdefgh") == [first]


def test_the_longest_idle_blocks_are_taken_first() -> None:
    blocks = blocks_of(2)
    for tokens in ("aaaa", "bbbb"):
        blocks.roll_back(filled(blocks, tokens), 0)
    again = Table(ROOT)
    blocks.adopt(again, ids("aaaa"))
    blocks.roll_back(again, 0)
    blocks.extend(Table(None), 1)
    assert (len(adopted(blocks, "bbbb")), len(adopted(blocks, "aaaa"))) == (0, 1)


def test_who_writes_into_a_shared_block_gets_a_copy() -> None:
    blocks = blocks_of(4)
    table = filled(blocks, "abcdef")
    fork = blocks.fork(table)
    shared = table.blocks[1]
    assert fork.blocks == table.blocks
    assert blocks.used == 2
    copies = blocks.extend(fork, 7)
    assert copies == (Copy(shared, fork.blocks[1]),)
    assert fork.blocks[1] != shared
    assert blocks.extend(table, 7) == ()  # the block is its own again
    assert table.blocks[1] == shared


def test_a_fork_behind_a_stem_holds_what_lies_behind_it_and_no_more() -> None:
    blocks = blocks_of(9)
    table = filled(blocks, "abcdefghijklmn")
    rest = blocks.fork(table, begin=3)
    assert (rest.blocks, rest.length, rest.root, rest.settled) == (table.blocks[3:], 2, None, [])
    assert blocks.extend(rest, 5) == (Copy(table.blocks[3], rest.blocks[0]),)
    before, behind = list(table.blocks), list(rest.blocks)
    blocks.exchange(table, rest, begin=3)
    assert (table.blocks, table.length, rest.blocks, rest.length) == (before[:3] + behind, 17, before[3:], 2)


def test_writing_anew_within_a_known_block_makes_it_unknown() -> None:
    blocks = blocks_of(4)
    table = filled(blocks, "abcdefgh")
    blocks.roll_back(table, 7)
    assert blocks.extend(table, 8) == ()
    assert adopted(blocks, "abcdefgh") == table.blocks[:1]
    blocks.settle(table, ids("abcdefgX"))
    assert adopted(blocks, "abcdefgX") == table.blocks


def test_a_block_that_is_known_elsewhere_is_given_up() -> None:
    blocks = blocks_of(4)
    first, second = Table(ROOT), Table(ROOT)
    for table in (first, second):
        blocks.extend(table, SIZE)
    for table in (first, second):
        blocks.settle(table, ids("abcd"))
    assert first.blocks == second.blocks
    assert (blocks.used, blocks.available) == (1, 3)


def test_an_extension_without_room_changes_nothing() -> None:
    blocks = blocks_of(3)
    table = filled(blocks, "abcdef")
    fork = blocks.fork(table)
    before = (list(fork.blocks), fork.length, blocks.used, blocks.available)
    assert blocks.extend(fork, 9) is None  # one more, and a copy of the shared one
    assert (fork.blocks, fork.length, blocks.used, blocks.available) == before
    assert blocks.extend(fork, 7) is not None


def test_books_that_begin_anew_hold_and_know_nothing() -> None:
    blocks = blocks_of(3)
    filled(blocks, "abcdefgh")
    blocks.clear()
    assert (blocks.used, blocks.idle, blocks.available) == (0, 0, 3)
    assert blocks.adopt(Table(ROOT), ids("abcdefgh")) == 0


def test_what_is_forgotten_is_found_by_nobody_and_who_holds_it_goes_on_by_itself() -> None:
    blocks = blocks_of(8)
    tokens = list(range(3 * SIZE))
    idle, open_still, other = Table(ROOT), Table(ROOT), Table(root_key(tenant="b", adapter=None))
    for table in (idle, open_still, other):
        blocks.adopt(table, tokens)
        blocks.extend(table, 2 * SIZE)
        blocks.settle(table, tokens[: 2 * SIZE])
    blocks.roll_back(idle, 0)
    blocks.forget(ROOT, [open_still, other])
    assert (blocks.idle, blocks.used) == (0, 4)
    blocks.extend(open_still, 3 * SIZE)
    blocks.settle(open_still, tokens)
    assert open_still.length == 3 * SIZE
    assert blocks.adopt(Table(ROOT), tokens) == 0
    blocks.roll_back(open_still, 0)
    assert (blocks.idle, blocks.used) == (0, 2)
    assert blocks.adopt(Table(other.root), tokens) == 2 * SIZE


class Bookkeeping(RuleBasedStateMachine):
    """Any order of operations on a few tables, beside a memory that holds what was really written."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks_of(7)
        self.memory = {BlockId(block): [-1] * SIZE for block in range(7)}
        self.tables: list[tuple[Table, list[int]]] = []

    def written(self, table: Table) -> list[int]:
        return [self.memory[table.blocks[at // SIZE]][at % SIZE] for at in range(table.length)]

    @precondition(lambda self: len(self.tables) < 4)
    @rule(tenant=st.sampled_from(["a", "b", None]), tokens=st.lists(st.integers(0, 1), max_size=12))
    def begin(self, tenant: str | None, tokens: list[int]) -> None:
        table = Table(None if tenant is None else root_key(tenant=tenant, adapter=None))
        found = self.blocks.adopt(table, tokens)
        self.tables.append((table, tokens[:found]))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=9))
    def go_on_with_known_blocks(self, data: st.DataObject, tokens: list[int]) -> None:
        table, held = data.draw(st.sampled_from(self.tables))
        found = self.blocks.adopt(table, [*held, *tokens])
        held += tokens[: found - len(held)]

    @precondition(lambda self: 0 < len(self.tables) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((self.blocks.fork(table), list(tokens)))

    @precondition(lambda self: 0 < len(self.tables) < 4)
    @rule(data=st.data())
    def fork_behind_a_stem(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        begin = data.draw(st.integers(0, table.length // SIZE))
        self.tables.append((self.blocks.fork(table, begin=begin), tokens[begin * SIZE :]))

    @precondition(lambda self: any(table.root is None for table, _ in self.tables))
    @rule(data=st.data())
    def exchange(self, data: st.DataObject) -> None:
        rest, behind = data.draw(st.sampled_from([each for each in self.tables if each[0].root is None]))
        table, held = data.draw(st.sampled_from(self.tables))
        if table is rest:
            return
        begin = data.draw(st.integers(0, table.length // SIZE))
        if set(table.blocks[:begin]) & set(rest.blocks):
            return  # it was forked before that place: no block stands twice in a table
        self.blocks.exchange(table, rest, begin=begin)
        held[begin * SIZE :], behind[:] = behind, held[begin * SIZE :]

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def write(self, data: st.DataObject, tokens: list[int]) -> None:
        table, held = data.draw(st.sampled_from(self.tables))
        copies = self.blocks.extend(table, len(held) + len(tokens))
        if copies is None:
            missing = self.blocks.needed(len(held) + len(tokens)) - len(table.blocks)
            assert missing + 1 > self.blocks.available
            return
        for copy in copies:
            self.memory[copy.target] = list(self.memory[copy.source])
        for at, token in enumerate(tokens, start=len(held)):
            self.memory[table.blocks[at // SIZE]][at % SIZE] = token
        held += tokens

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), more=st.integers(0, 20))
    def ask_what_would_suffice(self, data: st.DataObject, more: int) -> None:
        at = data.draw(st.integers(0, len(self.tables) - 1))
        places = st.integers(0, len(self.tables) - 1).filter(lambda place: place != at)
        others = data.draw(st.sets(places)) if len(self.tables) > 1 else set()
        table, *without = [self.tables[place][0] for place in (at, *others)]
        told = self.blocks.suffice(table, table.length + more, without=without)
        blocks, table, without = deepcopy((self.blocks, table, without))
        for other in without:
            blocks.roll_back(other, 0)
        assert told == (blocks.extend(table, table.length + more) is not None)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        table, held = data.draw(st.sampled_from(self.tables))
        self.blocks.settle(table, held[: data.draw(st.integers(0, len(held)))])

    @rule(tenant=st.sampled_from(["a", "b"]), tokens=st.lists(st.integers(0, 1), min_size=SIZE, max_size=9))
    def forget(self, tenant: str, tokens: list[int]) -> None:
        root = root_key(tenant=tenant, adapter=None)
        self.blocks.forget(root, [table for table, _ in self.tables])
        assert self.blocks.adopt(Table(root), tokens) == 0
        assert root not in self.blocks._roots.values()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        table, held = data.draw(st.sampled_from(self.tables))
        length = data.draw(st.integers(0, len(held)))
        self.blocks.roll_back(table, length)
        del held[length:]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(at)
        self.blocks.roll_back(table, 0)

    @invariant()
    def each_table_holds_what_was_written(self) -> None:
        for table, held in self.tables:
            assert self.written(table) == held
            assert len(table.blocks) == self.blocks.needed(table.length)

    @invariant()
    def every_block_is_free_or_idle_or_held_as_often_as_counted(self) -> None:
        held = Counter(block for table, _ in self.tables for block in table.blocks)
        assert self.blocks._references == held
        assert self.blocks.used + self.blocks.available == self.blocks.count
        assert sorted([*self.blocks._free, *self.blocks._idle, *held]) == list(range(self.blocks.count))

    @invariant()
    def keys_and_blocks_name_each_other(self) -> None:
        assert {block: key for key, block in self.blocks._known.items()} == self.blocks._keys
        assert set(self.blocks._idle) == set(self.blocks._keys) - set(self.blocks._references)
        assert set(self.blocks._roots) == set(self.blocks._keys)


Bookkeeping.TestCase.settings = settings(deadline=None, stateful_step_count=40)
test_bookkeeping = Bookkeeping.TestCase
