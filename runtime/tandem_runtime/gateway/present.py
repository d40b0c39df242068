"""Knows how what a session emits looks to a client of either endpoint: chunks, whole answers, usage.

Refuses to know HTTP, time and sessions: ids and times are arguments.

Order within a choice: the role first (chat), then text, the reason last. A chunk of several tokens carries the logprobs
of all of them, also where its text is still held back. A stream ends with the usage in a chunk of its own, without
choices, if the caller asked for it; what speculation did rides on the last chunk in either case.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.tokens import FinishReason, PromptRead, TokenId, TokenLogprob
from tandem_runtime.gateway.replies import (
    AlternativeLogprob,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    CompletionDetails,
    Finish,
    SpeculationReport,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)

Chunk: TypeAlias = ChatChunk | TextCompletion
Whole: TypeAlias = ChatCompletion | TextCompletion
TokenText: TypeAlias = Callable[[TokenId], str]
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
LEAST_LOGPROB = -9999.0
"""Of a token that cannot come: JSON has no infinity, and OpenAI says this of what it gives no number for."""


@dataclass(slots=True)
class Answer:
    """One whole choice as it grows."""

    text: str = ""
    tokens: list[TokenId] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    prompt: PromptRead | None = None
    """What was read of its prompt, where that was asked for."""

    def add(self, emit: Emit) -> None:
        self.text += emit.text
        self.tokens += emit.tokens
        self.logprobs += emit.logprobs or ()


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk repeats. `usage_asked` puts a null usage on all chunks but the last, as OpenAI does."""

    id: str
    created: int
    model: str
    usage_asked: bool = False
    logprobs_asked: bool = False


def count_usage(*, prompt_tokens: int, answers: Sequence[Answer], details: CompletionDetails | None = None) -> Usage:
    """A prompt counts once however many choices it has; all choices' tokens count, end tokens included."""
    completion = sum(len(answer.tokens) for answer in answers)
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion, total_tokens=prompt_tokens + completion)
    if details is not None:
        usage["completion_tokens_details"] = details
    return usage


def likeliest(answers: Sequence[Answer], *, of: int, keep: int) -> list[Answer]:
    """Of every `of` answers the `keep` likeliest, by their mean log-probability per token, the likeliest first."""
    groups = [answers[start : start + of] for start in range(0, len(answers), of)]
    return [answer for group in groups for answer in sorted(group, key=_mean_logprob, reverse=True)[:keep]]


def _mean_logprob(answer: Answer) -> float:
    return sum(known.logprob for known in answer.logprobs) / max(len(answer.logprobs), 1)


class Presenter(ABC):
    """One endpoint's shapes."""

    def __init__(self, head: Head, token_text: TokenText) -> None:
        self.head = head
        self.token_text = token_text

    @abstractmethod
    def opening(self, index: int, read: PromptRead | None = None) -> Chunk | None:
        """What comes before any text of a choice, with what was read of its prompt."""

    def echoed(self, index: int) -> int:  # noqa: ARG002 (where nothing is echoed, it is so of each choice)
        """Characters of the prompt that stand before a choice's text."""
        return 0

    @abstractmethod
    def piece(self, index: int, emit: Emit, *, offset: int) -> Chunk | None:
        """Text and logprobs; None while all text is held back and no logprobs are wanted. `offset` in characters."""

    @abstractmethod
    def closing(self, index: int, reason: FinishReason) -> Chunk:
        """The reason, without text."""

    @abstractmethod
    def summary(self, usage: Usage) -> Chunk:
        """The chunk without choices."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer], usage: Usage, report: SpeculationReport) -> Whole:
        """The plain answer."""


class ChatPresenter(Presenter):
    def opening(self, index: int, read: PromptRead | None = None) -> ChatChunk:  # noqa: ARG002 (a chat echoes nothing)
        choice = ChatChunkChoice(
            index=index, delta={"role": "assistant", "content": ""}, logprobs=None, finish_reason=None
        )
        return self._chunk([choice])

    def piece(self, index: int, emit: Emit, *, offset: int) -> ChatChunk | None:  # noqa: ARG002 (a chat has no offsets)
        logprobs = self._logprobs(emit.tokens, emit.logprobs or ())
        delta = self._delta(index, emit.text)
        if not delta and logprobs is None:
            return None
        return self._chunk(
            [ChatChunkChoice(index=index, delta=delta or {"content": ""}, logprobs=logprobs, finish_reason=None)]
        )

    def closing(self, index: int, reason: FinishReason) -> ChatChunk:
        return self._chunk([ChatChunkChoice(index=index, delta={}, logprobs=None, finish_reason=_finish(reason))])

    def _delta(self, index: int, text: str) -> ChatDelta:  # noqa: ARG002 (each choice's text is its own)
        """What `text` adds to the choice; empty where that is nothing yet."""
        return {"content": text} if text else {}

    def _whole_choice(self, index: int, answer: Answer) -> ChatChoice:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.tokens, answer.logprobs),
            "finish_reason": _ended(answer),
        }

    def summary(self, usage: Usage) -> ChatChunk:
        return {**self._chunk([]), "usage": usage}

    def whole(self, answers: Sequence[Answer], usage: Usage, report: SpeculationReport) -> ChatCompletion:
        return {
            "id": self.head.id,
            "object": "chat.completion",
            "created": self.head.created,
            "model": self.head.model,
            "choices": [self._whole_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage,
            "speculation": report,
        }

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        chunk: ChatChunk = {
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }
        if self.head.usage_asked:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, tokens: Sequence[TokenId], logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if not self.head.logprobs_asked or not tokens:
            return None
        content = [
            ChatLogprob(
                **self._alternative(token, known.logprob),
                top_logprobs=[self._alternative(other, logprob) for other, logprob in known.top],
            )
            for token, known in zip(tokens, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _alternative(self, token: TokenId, logprob: float) -> AlternativeLogprob:
        """A token that is part of a character has no text of its own, so its bytes are not known from it."""
        text = self.token_text(token)
        return {
            "token": text,
            "logprob": _number(logprob),
            "bytes": None if INCOMPLETE in text else list(text.encode()),
        }


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is told again: its text as it was sent, and its tokens."""

    text: str = ""
    tokens: tuple[TokenId, ...] = ()


NO_ECHO = Echo()


def _no_echo(_: int) -> Echo:
    return NO_ECHO


class TextPresenter(Presenter):
    """`echo` gives what is to stand before a choice's text."""

    def __init__(self, head: Head, token_text: TokenText, echo: Callable[[int], Echo] = _no_echo) -> None:
        super().__init__(head, token_text)
        self._echo = echo

    def opening(self, index: int, read: PromptRead | None = None) -> TextCompletion | None:
        echo = self._echo(index)
        if echo == NO_ECHO:
            return None
        logprobs = self._prompt_logprobs(echo, read)
        return self._chunk([TextChoice(index=index, text=echo.text, logprobs=logprobs, finish_reason=None)])

    def echoed(self, index: int) -> int:
        return sum(len(self.token_text(token)) for token in self._echo(index).tokens)

    def piece(self, index: int, emit: Emit, *, offset: int) -> TextCompletion | None:
        logprobs = self._logprobs(emit.tokens, emit.logprobs or (), offset=offset)
        if not emit.text and logprobs is None:
            return None
        return self._chunk([TextChoice(index=index, text=emit.text, logprobs=logprobs, finish_reason=None)])

    def closing(self, index: int, reason: FinishReason) -> TextCompletion:
        return self._chunk([TextChoice(index=index, text="", logprobs=None, finish_reason=_finish(reason))])

    def summary(self, usage: Usage) -> TextCompletion:
        return {**self._chunk([]), "usage": usage}

    def whole(self, answers: Sequence[Answer], usage: Usage, report: SpeculationReport) -> TextCompletion:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        return {**self._chunk(choices), "usage": usage, "speculation": report}

    def _whole_choice(self, index: int, answer: Answer) -> TextChoice:
        echo = self._echo(index)
        of_prompt = self._prompt_logprobs(echo, answer.prompt)
        offset = 0 if of_prompt is None else self.echoed(index)
        of_answer = self._logprobs(answer.tokens, answer.logprobs, offset=offset)
        return {
            "index": index,
            "text": echo.text + answer.text,
            "logprobs": _joined([of_prompt, of_answer]),
            "finish_reason": _ended(answer),
        }

    def _chunk(self, choices: list[TextChoice]) -> TextCompletion:
        chunk: TextCompletion = {
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }
        if self.head.usage_asked:
            chunk["usage"] = None
        return chunk

    def _logprobs(
        self, tokens: Sequence[TokenId], logprobs: Sequence[TokenLogprob], *, offset: int
    ) -> TextLogprobs | None:
        if not self.head.logprobs_asked or not tokens:
            return None
        texts = [self.token_text(token) for token in tokens]
        *offsets, _ = accumulate(map(len, texts), initial=offset)
        return {
            "tokens": texts,
            "token_logprobs": [_number(known.logprob) for known in logprobs],
            "top_logprobs": [self._top(known) for known in logprobs],
            "text_offset": offsets,
        }

    def _prompt_logprobs(self, echo: Echo, read: PromptRead | None) -> TextLogprobs | None:
        """Nothing stands before a prompt's first token, so nothing is told of it."""
        if read is None:
            return None
        first = self.token_text(echo.tokens[0])
        begins: TextLogprobs = {
            "tokens": [first],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }
        return _joined([begins, self._logprobs(echo.tokens[1:], read.logprobs, offset=len(first))])

    def _top(self, known: TokenLogprob) -> dict[str, float]:
        """Of several tokens that have one text, as parts of characters have, the likeliest is told."""
        top: dict[str, float] = {}
        for token, logprob in known.top:
            top.setdefault(self.token_text(token), _number(logprob))
        return top


def _joined(parts: Iterable[TextLogprobs | None]) -> TextLogprobs | None:
    """One after the other; None where there is none."""
    told = [part for part in parts if part is not None]
    if len(told) < 2:
        return told[0] if told else None
    return {
        "tokens": [token for part in told for token in part["tokens"]],
        "token_logprobs": [logprob for part in told for logprob in part["token_logprobs"]],
        "top_logprobs": [top for part in told for top in part["top_logprobs"]],
        "text_offset": [offset for part in told for offset in part["text_offset"]],
    }


def _number(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _finish(reason: FinishReason) -> Finish:
    return "stop" if reason is FinishReason.STOP else "length"


def _ended(answer: Answer) -> Finish:
    assert answer.finish is not None, "a whole answer is presented after its end"
    return _finish(answer.finish)
