"""Knows which blocks of KV memory hold which tokens: the books of a paged memory, in plain integers.

Refuses to know tensors, models, sessions and time.

Memory is cut into blocks of equal size (Kwon et al. 2023, "PagedAttention"). A *table* lists the blocks of a sequence:
position p stands in block `blocks[p // block_tokens]`. A block may stand in several tables, as often as its reference
count says; who writes into a shared one gets a copy of it first. Rolling back shortens a table and moves nothing.

What has been verified may be *settled*: a full block then gets a key that holds all tokens up to its end,

    key(0) = H(tenant, adapter),    key(i + 1) = H(key(i), tokens of block i),    H = SHA-256

so that equal keys mean equal prefixes, the same adapter and the same tenant, and a sequence that begins as a known one
begins with its blocks. A settled block that no table holds any more is *idle*: still known, and the first to be taken
when nothing is free, the longest idle first; of one table the last block goes first, since without the blocks before
it nobody can find it. A table without a root key neither finds nor settles anything. What was settled under a root key
can be forgotten at once.

At any time each block is free, idle, or held by as many tables as its count says. Nothing else is needed to prove that
no memory leaks.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NewType

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.tokens import TokenId

__all__ = ["BlockId", "Blocks", "Copy", "Key", "Table", "root_key"]

BlockId = NewType("BlockId", int)
Key = NewType("Key", bytes)

_BYTES_PER_TOKEN = 4


def root_key(*, tenant: str, adapter: AdapterDigest | None) -> Key:
    """What may share blocks: sequences of one tenant under one adapter (None: the model alone)."""
    names = [tenant.encode(), b"" if adapter is None else adapter.encode()]
    return Key(hashlib.sha256(b"".join(hashlib.sha256(name).digest() for name in names)).digest())


def _next_key(key: Key, tokens: Sequence[TokenId]) -> Key:
    return Key(hashlib.sha256(key + b"".join(token.to_bytes(_BYTES_PER_TOKEN) for token in tokens)).digest())


@dataclass(frozen=True, slots=True)
class Copy:
    """The contents of block `source` are to be written into block `target`."""

    source: BlockId
    target: BlockId


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's blocks, of which the first `length` positions hold something. Changed by its `Blocks` only."""

    root: Key | None
    blocks: list[BlockId] = field(default_factory=list)
    length: int = 0
    settled: list[Key] = field(default_factory=list)
    """The keys of the first blocks, as far as they are settled."""


class Blocks:
    """The books over `count` blocks of `block_tokens` positions each."""

    def __init__(self, count: int, *, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self.clear()

    def clear(self) -> None:
        """All blocks are free, and nothing is known; the tables that there were are worth nothing any more."""
        self._free = [BlockId(block) for block in reversed(range(self.count))]
        self._references: dict[BlockId, int] = {}
        self._known: dict[Key, BlockId] = {}
        self._keys: dict[BlockId, Key] = {}
        self._roots: dict[BlockId, Key] = {}
        self._idle: OrderedDict[BlockId, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that tables hold, each counted once."""
        return len(self._references)

    @property
    def idle(self) -> int:
        """Blocks that no table holds, but whose tokens are still known."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that a table can get: those that no table holds."""
        return len(self._free) + len(self._idle)

    @property
    def used_share(self) -> float:
        """Of all blocks those that tables hold, 0 to 1."""
        return self.used / self.count

    def needed(self, length: int) -> int:
        """Blocks for `length` positions. With blocks of 16, needed(33) = 3."""
        return -(-length // self.block_tokens)

    def upcoming(self, table: Table, tokens: Sequence[TokenId]) -> Key | None:
        """What a table's next block to be full will be known as when it holds `tokens`, whose beginning it holds now.

        None where that block will not be known, or `tokens` do not fill it.
        """
        key = table.settled[-1] if table.settled else table.root
        start = len(table.settled) * self.block_tokens
        end = start + self.block_tokens
        if key is None or table.length >= end or len(tokens) < end:
            return None
        return _next_key(key, tokens[start:end])

    def adopt(self, table: Table, tokens: Sequence[TokenId]) -> int:
        """Let a table that holds the beginning of `tokens` go on with the known blocks that hold what follows.

        Returns the length that it then has. An empty table may begin so; one that stands within a block stays there.
        """
        while table.length % self.block_tokens == 0:
            key = self.upcoming(table, tokens)
            if key is None or key not in self._known:
                break
            table.blocks.append(self._hold(self._known[key]))
            table.settled.append(key)
            table.length += self.block_tokens
        return table.length

    def fork(self, table: Table, *, begin: int = 0) -> Table:
        """Another sequence that is the same so far, in the same blocks; from block `begin` on, where that is not 0: a
        table that counts positions from there, and whose blocks nobody will find, as their prefix is not in it."""
        blocks = [self._hold(block) for block in table.blocks[begin:]]
        length = table.length - begin * self.block_tokens
        return Table(None, blocks, length) if begin else Table(table.root, blocks, length, list(table.settled))

    def exchange(self, table: Table, rest: Table, *, begin: int) -> None:
        """From its block `begin` on, `table` goes on as `rest`, which was forked there, and the other way round."""
        start = begin * self.block_tokens
        assert table.length >= start, "what lies before stands"
        table.blocks[begin:], rest.blocks[:] = rest.blocks, table.blocks[begin:]
        table.length, rest.length = start + rest.length, table.length - start
        del table.settled[begin:], rest.settled[:]

    def extend(self, table: Table, length: int) -> tuple[Copy, ...] | None:
        """Make the positions from the table's length up to `length` its own, to write into.

        Returns the copies to make before, one at most; or None, and nothing has changed, where blocks do not suffice.
        """
        begun = self._begun(table, length)
        shared = begun is not None and self._references[begun] > 1
        missing = self.needed(length) - len(table.blocks)
        if missing + shared > self.available:
            return None
        copies = (self._part(table),) if shared else ()
        if begun is not None:
            self._forget(table.blocks[-1])
        if missing > 0:
            table.blocks += [self._fresh() for _ in range(missing)]
        table.length = max(length, table.length)
        return copies

    def suffice(self, table: Table, length: int, *, without: Collection[Table]) -> bool:
        """Whether `extend` would find blocks enough if the tables `without` held nothing."""
        gone = Counter(block for other in without for block in other.blocks)
        freed = sum(self._references[block] == count for block, count in gone.items())
        begun = self._begun(table, length)
        shared = begun is not None and self._references[begun] - gone[begun] > 1
        return self.needed(length) - len(table.blocks) + shared <= self.available + freed

    def roll_back(self, table: Table, length: int) -> None:
        """Only the first `length` positions stand."""
        assert length <= table.length, "a roll-back goes back"
        kept = self.needed(length)
        for block in reversed(table.blocks[kept:]):
            self._let_go(block)
        del table.blocks[kept:]
        del table.settled[length // self.block_tokens :]
        table.length = length

    def settle(self, table: Table, tokens: Sequence[TokenId]) -> None:
        """The table's first positions hold `tokens`, for good: whoever begins with them may use their full blocks.

        Where another block is known to hold the same, the table takes that one and gives up its own.
        """
        size, root = self.block_tokens, table.root
        if root is None:
            return
        key = table.settled[-1] if table.settled else root
        for at in range(len(table.settled), min(len(tokens), table.length) // size):
            key = _next_key(key, tokens[at * size : (at + 1) * size])
            table.blocks[at] = self._one_of_two(key, table.blocks[at], root)
            table.settled.append(key)

    def forget(self, root: Key, tables: Iterable[Table]) -> None:
        """Nobody finds any more what was settled under `root`. Those of `tables` that have it, which must be all, keep
        their blocks, and neither find nor settle anything from now on."""
        for table in tables:
            if table.root == root:
                table.root = None
                table.settled.clear()
        for block in [block for block, of in self._roots.items() if of == root]:
            self._forget(block)
            if block in self._idle:
                del self._idle[block]
                self._free.append(block)

    def _one_of_two(self, key: Key, block: BlockId, root: Key) -> BlockId:
        known = self._known.get(key)
        if known is None:
            self._known[key], self._keys[block], self._roots[block] = block, key, root
            return block
        self._hold(known)
        self._let_go(block)
        return known

    def _begun(self, table: Table, length: int) -> BlockId | None:
        """The table's block that is begun and not full, where more is to be written into it."""
        begun = table.length % self.block_tokens > 0 and length > table.length
        return table.blocks[-1] if begun else None

    def _part(self, table: Table) -> Copy:
        """Give the table a block of its own in place of its last one."""
        copy = Copy(table.blocks[-1], self._fresh())
        self._let_go(copy.source)
        table.blocks[-1] = copy.target
        return copy

    def _hold(self, block: BlockId) -> BlockId:
        self._idle.pop(block, None)
        self._references[block] = self._references.get(block, 0) + 1
        return block

    def _let_go(self, block: BlockId) -> None:
        self._references[block] -= 1
        if self._references[block] > 0:
            return
        del self._references[block]
        if block in self._keys:
            self._idle[block] = None
        else:
            self._free.append(block)

    def _fresh(self) -> BlockId:
        if not self._free:
            longest, _ = self._idle.popitem(last=False)
            self._forget(longest)
            self._free.append(longest)
        return self._hold(self._free.pop())

    def _forget(self, block: BlockId) -> None:
        """Its contents are about to change: nobody may find it under its key."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._known[key], self._roots[block]
