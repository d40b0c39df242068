"""Knows small deterministic parts that stand for a model's text and laws: for tests, examples and demonstrations.

Refuses to stand for engines and transports: those are real everywhere.
"""

from collections.abc import Callable, Sequence

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import SamplingDefaults, TokenId

Script = Callable[[tuple[TokenId, ...]], list[float]]
PREFERRED_LOGIT = 20.0
"""Against 0 for every other token: practically certain at temperature 1, and a finite log-probability."""


class TableTokenizer:
    """The Tokenizer port over a table of bytes: token i stands for `table[i]`. Encodes by the longest match."""

    def __init__(self, table: Sequence[bytes], *, end_tokens: frozenset[TokenId] = frozenset()) -> None:
        self._table = tuple(table)
        self._end_tokens = end_tokens

    @property
    def end_tokens(self) -> frozenset[TokenId]:
        return self._end_tokens

    @property
    def defaults(self) -> SamplingDefaults:
        return SamplingDefaults()

    def encode(self, text: str) -> tuple[TokenId, ...]:
        rest, ids = text.encode(), []
        while rest:
            fits = [token for token, piece in enumerate(self._table) if piece and rest.startswith(piece)]
            if not fits:
                raise BadRequest(f"no token begins with {rest[:1]!r}", parameter="prompt")
            longest = max(fits, key=lambda token: len(self._table[token]))
            ids.append(longest)
            rest = rest[len(self._table[longest]) :]
        return tuple(ids)

    def spellings(self, text: str) -> tuple[tuple[TokenId, ...], ...]:
        """One: a table's letters stand for themselves."""
        return (self.encode(text),)

    def encode_chat(self, messages: Sequence[dict[str, object]]) -> tuple[TokenId, ...]:
        """The contents one after another, without marks."""
        return self.encode("".join(str(message["content"]) for message in messages))

    def decode(self, ids: Sequence[TokenId]) -> str:
        return b"".join(self._table[token] for token in ids).decode(errors="replace")


def reciting(tokens: Sequence[TokenId], *, width: int, prompt_tokens: int = 1) -> Script:
    """A model that says `tokens` behind a prompt of `prompt_tokens`, over and over, whatever was said before."""

    def script(prefix: tuple[TokenId, ...]) -> list[float]:
        preferred = tokens[max(0, len(prefix) - prompt_tokens) % len(tokens)]
        return [PREFERRED_LOGIT if token == preferred else 0.0 for token in range(width)]

    return script


def constant(logits: Sequence[float]) -> Script:
    """A model with the same logits everywhere."""
    return lambda _: list(logits)
