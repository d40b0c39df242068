"""Knows where an output ends and which text may be shown by then: end tokens, stop strings, length, whole characters.

Refuses to know tokenizers (decoding is an injected pure function), rounds, and how many tokens came at once: tokens are
read one by one, so that the ending does not depend on how a run was cut.

The rules. The earliest event in token order wins; at the same token a stop beats length. An end token counts as a token
and shows no text. A stop string is looked for in the text, whatever tokens it straddles: the one whose last character
comes first wins, the longer one if two end on the same character; it is cut from the text together with all that
follows. Text is held back while it could still become a stop string, and while it ends in U+FFFD, which an incomplete
character decodes to. What is still held when the output ends without a stop string is shown then.

Decoding is incremental in the way that engines share: tokens are decoded behind a few earlier ones, because some
tokenizers drop a space at the start of a text, and the characters already given are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from tandem_runtime.domain.tokens import FinishReason, TokenId
from tandem_runtime.domain.values import value

Decode: TypeAlias = Callable[[Sequence[TokenId]], str]

CONTEXT_TOKENS = 4
"""How many prompt tokens stand before the output when its first token is decoded."""

_WINDOW_TOKENS = 16
"""A run of bytes that never become a character is decoded again with each token; so far and no further."""

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Endings:
    """What ends an output. `end_tokens` is empty where the request ignores them; stop strings are not empty."""

    max_tokens: int
    end_tokens: frozenset[TokenId] = frozenset()
    stop: tuple[str, ...] = ()


class Detokenizer:
    """Tokens in, whole characters out: the pieces joined are the text.

    `context` are the tokens before the output (the prompt's last ones); their text is not given.
    """

    def __init__(self, decode: Decode, context: Sequence[TokenId]) -> None:
        self._decode = decode
        self._window: list[TokenId] = list(context)
        self._fresh = len(self._window)
        """Where the newest token stood when all before it was whole."""
        self._given = len(_whole(decode(self._window)))

    def feed(self, token: TokenId) -> str:
        """The characters that `token` completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        whole = _whole(text) if text.endswith(_INCOMPLETE) else text
        piece = whole[self._given :]
        self._given = max(self._given, len(whole))
        if whole == text:
            self._slide(self._fresh)
        elif len(self._window) > _WINDOW_TOKENS:
            self._slide(len(self._window) - _WINDOW_TOKENS // 2)
        return piece

    def rest(self) -> str:
        """What is still incomplete when no token will follow, as U+FFFD."""
        return self._decode(self._window)[self._given :]

    def _slide(self, start: int) -> None:
        self._window = self._window[start:]
        self._fresh = len(self._window)
        self._given = _characters(self._decode, tuple(self._window))


@lru_cache(1 << 14)
def _characters(decode: Decode, ids: tuple[TokenId, ...]) -> int:
    """Whole ones that these ids have by themselves. Most windows are of one token, and most tokens come again."""
    return len(_whole(decode(ids)))


def _whole(text: str) -> str:
    """The text without an incomplete character at its end: at most three U+FFFD, as a character has four bytes."""
    tail = len(text) - len(text.rstrip(_INCOMPLETE))
    return text[: len(text) - min(tail, 3)]


class StopScanner:
    """Text in, text that can be shown out, until a stop string is complete."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string was completed (then it is the last that is ever shown)."""
        if not self._stop:
            return text, False
        self._held += text
        found = self._first_stop()
        if found is not None:
            shown, self._held = self._held[:found], ""
            return shown, True
        keep = self._could_become_a_stop()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown, False

    def rest(self) -> str:
        """What was held back for a stop string that never came."""
        return self._held

    def _first_stop(self) -> int | None:
        hits = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        return min(hits)[1] if hits else None

    def _could_become_a_stop(self) -> int:
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0


@value(frozen=True, slots=True)
class Reading:
    """What one token did: text that may be shown now, and the reason if the output ends with this token."""

    text: str
    ended: FinishReason | None


class Reader:
    """Reads an output token by token and says what may be shown and where it ends."""

    def __init__(self, endings: Endings, decode: Decode, prompt: Sequence[TokenId]) -> None:
        self._endings = endings
        self._characters = Detokenizer(decode, prompt[-CONTEXT_TOKENS:])
        self._scanner = StopScanner(endings.stop)
        self._tokens = 0

    def read(self, token: TokenId) -> Reading:
        """Take the next token. After an ending no further token may be read."""
        self._tokens += 1
        if token in self._endings.end_tokens:
            return self._end("", FinishReason.STOP)
        shown, stopped = self._scanner.feed(self._characters.feed(token))
        if stopped:
            return Reading(shown, FinishReason.STOP)
        if self._tokens == self._endings.max_tokens:
            return self._end(shown, FinishReason.LENGTH)
        return Reading(shown, None)

    def _end(self, shown: str, reason: FinishReason) -> Reading:
        last, stopped = self._scanner.feed(self._characters.rest())
        if stopped:
            return Reading(shown + last, FinishReason.STOP)
        return Reading(shown + last + self._scanner.rest(), reason)
