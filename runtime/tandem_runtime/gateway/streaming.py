"""Knows in which order the chunks of one streamed reply come, over all its choices.

Refuses to know bytes and time; shapes are the presenter's.

A choice opens with the first that is told of it. Each has its own end, and the others go on. The reply ends when the
last choice has: with the usage chunk where it was asked for, which then carries what speculation did; else the last
choice's closing chunk carries that.
"""

from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.tokens import FinishReason, PromptRead
from tandem_runtime.gateway.present import Answer, Chunk, Presenter, count_usage
from tandem_runtime.gateway.replies import CompletionDetails, SpeculationReport


class ReplyStream:
    """The chunks of one reply; fed with what the sessions of its choices emit."""

    def __init__(self, presenter: Presenter, *, choices: int, usage_of_prompt: int | None) -> None:
        self._presenter = presenter
        self._usage_of_prompt = usage_of_prompt
        """Prompt tokens where usage was asked for, else absent."""
        self._answers = [Answer() for _ in range(choices)]
        self._offsets = [0] * choices
        self._opened: set[int] = set()

    def prompt_read(self, index: int, read: PromptRead) -> list[Chunk]:
        self._offsets[index] = self._presenter.echoed(index)
        return self._opening(index, read)

    def emitted(self, index: int, emit: Emit) -> list[Chunk]:
        opening = self._opening(index)
        chunk = self._presenter.piece(index, emit, offset=self._offsets[index])
        self._answers[index].add(emit)
        if emit.logprobs is not None:
            self._offsets[index] += sum(len(self._presenter.token_text(token)) for token in emit.tokens)
        return opening if chunk is None else [*opening, chunk]

    def finished(
        self, index: int, reason: FinishReason, report: SpeculationReport, details: CompletionDetails | None = None
    ) -> list[Chunk]:
        """The choice's end, and the reply's if it was the last one: then usage tells `details` too."""
        self._answers[index].finish = reason
        opening, closing = self._opening(index), self._presenter.closing(index, reason)
        if any(answer.finish is None for answer in self._answers):
            return [*opening, closing]
        if self._usage_of_prompt is None:
            closing["speculation"] = report
            return [*opening, closing]
        usage = count_usage(prompt_tokens=self._usage_of_prompt, answers=self._answers, details=details)
        summary = self._presenter.summary(usage)
        summary["speculation"] = report
        return [*opening, closing, summary]

    def _opening(self, index: int, read: PromptRead | None = None) -> list[Chunk]:
        """What a choice begins with, the first time."""
        chunk = None if index in self._opened else self._presenter.opening(index, read)
        self._opened.add(index)
        return [] if chunk is None else [chunk]
