"""Knows small deterministic parts that stand for a model's text and laws: for tests, examples and demonstrations.

Refuses to stand for engines and transports: those are real everywhere.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import SamplingDefaults, TokenId
from tandem_runtime.domain.tool_calls import ToolFormat

Script = Callable[[tuple[TokenId, ...]], list[float]]
PREFERRED_LOGIT = 20.0
"""Against 0 for every other token: practically certain at temperature 1, and a finite log-probability."""


class TableTokenizer:
    """The Tokenizer port over a table of bytes: token i stands for `table[i]`. Encodes by the longest match."""

    def __init__(
        self,
        table: Sequence[bytes],
        *,
        end_tokens: frozenset[TokenId] = frozenset(),
        tool_format: ToolFormat | None = None,
    ) -> None:
        self._table = tuple(table)
        self._end_tokens = end_tokens
        self._tool_format = tool_format

    @property
    def end_tokens(self) -> frozenset[TokenId]:
        return self._end_tokens

    @property
    def defaults(self) -> SamplingDefaults:
        return SamplingDefaults()

    def encode(self, text: str) -> tuple[TokenId, ...]:
        letters, at, ids = text.encode(), 0, []
        while at < len(letters):
            fits = [token for token, piece in enumerate(self._table) if piece and letters.startswith(piece, at)]
            if not fits:
                raise BadRequest(f"no token begins with {letters[at : at + 1]!r}", parameter="prompt")
            longest = max(fits, key=lambda token: len(self._table[token]))
            ids.append(longest)
            at += len(self._table[longest])
        return tuple(ids)

    def spellings(self, text: str) -> tuple[tuple[TokenId, ...], ...]:
        """One: a table's letters stand for themselves."""
        return (self.encode(text),)

    def continuation(self, text: str) -> tuple[TokenId, ...]:
        return self.encode(text)

    @property
    def tool_format(self) -> ToolFormat | None:
        return self._tool_format

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[TokenId, ...]:
        """The tools as JSON, then the contents one after another, without marks."""
        named = json.dumps(list(tools)) if tools else ""
        return self.encode(named + "".join(str(message["content"]) for message in messages))

    def decode(self, ids: Sequence[TokenId]) -> str:
        return b"".join(self._table[token] for token in ids).decode(errors="replace")

    def decode_calls(self, ids: Sequence[TokenId]) -> str:
        """A table has no special tokens."""
        return self.decode(ids)


def reciting(tokens: Sequence[TokenId], *, width: int, prompt_tokens: int = 1) -> Script:
    """A model that says `tokens` behind a prompt of `prompt_tokens`, over and over, whatever was said before."""

    def script(prefix: tuple[TokenId, ...]) -> list[float]:
        preferred = tokens[max(0, len(prefix) - prompt_tokens) % len(tokens)]
        return [PREFERRED_LOGIT if token == preferred else 0.0 for token in range(width)]

    return script


def constant(logits: Sequence[float]) -> Script:
    """A model with the same logits everywhere."""
    return lambda _: list(logits)
