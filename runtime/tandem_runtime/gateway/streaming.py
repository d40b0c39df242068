"""Knows in which order the chunks of one streamed reply come, over all its choices.

Refuses to know bytes and time; shapes are the presenter's.

Each choice has its own end, and the others go on. The reply ends when the last choice has: with the usage chunk where
it was asked for, which then carries what speculation did; else the last choice's closing chunk carries that.
"""

from collections.abc import Iterable

from tandem_runtime.domain.commands import Emit
from tandem_runtime.domain.tokens import FinishReason
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

    def emitted(self, index: int, emit: Emit) -> list[Chunk]:
        opening = None if self._answers[index].tokens else self._presenter.opening(index)
        chunk = self._presenter.piece(index, emit, offset=self._offsets[index])
        self._answers[index].add(emit)
        if emit.logprobs is not None:
            self._offsets[index] += sum(len(self._presenter.token_text(token)) for token in emit.tokens)
        return _present([opening, chunk])

    def finished(
        self, index: int, reason: FinishReason, report: SpeculationReport, details: CompletionDetails | None = None
    ) -> list[Chunk]:
        """The choice's end, and the reply's if it was the last one: then usage tells `details` too."""
        self._answers[index].finish = reason
        closing = self._presenter.closing(index, reason)
        if any(answer.finish is None for answer in self._answers):
            return [closing]
        if self._usage_of_prompt is None:
            closing["speculation"] = report
            return [closing]
        usage = count_usage(prompt_tokens=self._usage_of_prompt, answers=self._answers, details=details)
        summary = self._presenter.summary(usage)
        summary["speculation"] = report
        return [closing, summary]


def _present(chunks: Iterable[Chunk | None]) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk is not None]
