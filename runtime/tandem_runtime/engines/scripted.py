"""Knows models that are plain functions from a prefix of token ids to logits: for tests, examples and benchmarks.

Refuses to know arithmetic on tensors, and text.

A scripted model is a real `StepModel`: it keeps what each block holds and answers from that alone, so that a stale or a
missing KV row changes the answer. Its rows are computed one by one, so it is `Bitwise`.

Named on the command line as `scripted:package.module:function`, where the function takes a tuple of ids and returns one
logit per token of the vocabulary. With `,acceptance=0.7` behind it the model agrees with that function on 70 % of all
prefixes, chosen by hash, and prefers another token on the others: a draft for it with a known acceptance at T = 0.
"""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tandem_runtime.domain.blocks import BlockId, Blocks, Copy
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.ports import Logits, Row, Toll

__all__ = [
    "SCHEME",
    "Script",
    "ScriptedModel",
    "agreeing",
    "chain_logits",
    "lame_chain_logits",
    "load_scripted_model",
]

Script: TypeAlias = Callable[[tuple[TokenId, ...]], Sequence[float] | Logits]

SCHEME = "scripted:"


BLOCK_TOKENS = 16
_BYTES_PER_TOKEN = 8
_NOTHING = -1


class ScriptedModel:
    """`ports.StepModel` over a function. `kv_blocks` None: memory enough for all sessions at full length."""

    determinism = "Bitwise"
    block_bytes = BLOCK_TOKENS * _BYTES_PER_TOKEN
    toll = Toll()
    """A function has no weights."""

    def __init__(
        self, script: Script, *, max_length: int = 4096, max_sessions: int = 64, kv_blocks: int | None = None
    ) -> None:
        self._script = script
        self.max_length = max_length
        self.max_sessions = max_sessions
        self.vocab_size = len(script((0,)))
        full = -(-max_length // BLOCK_TOKENS)
        self.blocks = Blocks(max_sessions * full if kv_blocks is None else kv_blocks, block_tokens=BLOCK_TOKENS)
        self._memory: dict[BlockId, list[TokenId]] = {}
        """What was written into each block so far."""

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        return [self._row(row) for row in rows]

    def copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._memory[copy.target] = list(self._memory[copy.source])

    def _row(self, row: Row) -> Logits:
        for position, token in enumerate(row.tokens, start=row.start):
            written = self._memory.setdefault(row.blocks[position // BLOCK_TOKENS], [_NOTHING] * BLOCK_TOKENS)
            written[position % BLOCK_TOKENS] = token
        end = row.start + len(row.tokens)
        held = [token for block in row.blocks for token in self._memory.get(block, ())][:end]
        assert _NOTHING not in held, "a row begins where its blocks hold nothing"
        logits = [
            np.asarray(self._script(tuple(held[:upto])), np.float64) for upto in range(end - row.outputs + 1, end + 1)
        ]
        return np.array(logits).reshape(row.outputs, self.vocab_size)


def load_scripted_model(
    name: str, *, max_length: int = 4096, max_sessions: int = 64, kv_bytes: int | None = None
) -> ScriptedModel:
    """The model that `scripted:package.module:function[,acceptance=SHARE]` names. Raises ModelRefused."""
    blocks = None if kv_bytes is None else kv_bytes // ScriptedModel.block_bytes
    needed = -(-max_length // BLOCK_TOKENS)
    if blocks is not None and blocks < needed:
        raise ModelRefused(
            f"--kv-bytes {kv_bytes}: one session of --max-length {max_length} needs "
            f"{needed * ScriptedModel.block_bytes} bytes; give as much, or lower --max-length"
        )
    return ScriptedModel(_script(name), max_length=max_length, max_sessions=max_sessions, kv_blocks=blocks)


def chain_logits(prefix: tuple[TokenId, ...]) -> list[float]:
    """Vocabulary 0 to 6; prefers (3 + sum over i of ((i mod 5) + 1)(t_i + 1)) mod 7: [1] goes on 5 3 1 2 3 0 2 4."""
    return _one_of_seven(_chain(prefix))


def lame_chain_logits(prefix: tuple[TokenId, ...]) -> list[float]:
    """As `chain_logits`, but one token further on where the prefix length is a multiple of 3."""
    return _one_of_seven((_chain(prefix) + (len(prefix) % 3 == 0)) % 7)


def agreeing(script: Script, *, acceptance: float) -> Script:
    """`script` on a share `acceptance` of the prefixes; on the others its logits moved on by one token."""

    def draft(prefix: tuple[TokenId, ...]) -> Logits:
        logits = np.asarray(script(prefix), np.float64)
        return logits if _share(prefix) < acceptance else np.roll(logits, 1)

    return draft


def _chain(prefix: tuple[TokenId, ...]) -> int:
    return (3 + sum((i % 5 + 1) * (token + 1) for i, token in enumerate(prefix))) % 7


def _one_of_seven(token: int) -> list[float]:
    return [8.0 if candidate == token else 0.0 for candidate in range(7)]


def _share(prefix: tuple[TokenId, ...]) -> float:
    """A number in [0, 1) that depends on the whole prefix."""
    digest = hashlib.sha256(",".join(map(str, prefix)).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _script(name: str) -> Script:
    path, _, option = name.removeprefix(SCHEME).partition(",")
    module_name, _, function_name = path.partition(":")
    try:
        script: Script = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ModelRefused(f"--model {name}: {error}; write {SCHEME}package.module:function") from error
    if not callable(script):
        raise ModelRefused(f"--model {name}: {function_name} is no function; write {SCHEME}package.module:function")
    return agreeing(script, acceptance=_acceptance(name, option)) if option else script


def _acceptance(name: str, option: str) -> float:
    key, _, value = option.partition("=")
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if key != "acceptance" or not 0 <= share <= 1:
        raise ModelRefused(f"--model {name}: the option is {option!r}; write acceptance=SHARE with a share from 0 to 1")
    return share
