"""Knows one session's logits processors in numpy: `domain.processors` over whole rows, following the output.

Refuses to know sessions, models, and how a row becomes a token. The specification is `domain.processors`; this module
must equal it, bit for bit, and tests hold it to that. `engines.sampler` takes such rows with what is left of the
parameters, `after_processors()`; of a plain request it takes the model's rows and adds the bias itself.

What a row costs does not grow with the prompt beyond one gather: tokens are counted once, when they are committed. The
prefix of a proposal is committed token by token while its rows are made, and taken back afterwards.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem_runtime.domain.errors import BadRequest, NotANumber, TandemError
from tandem_runtime.domain.processors import nothing_admitted
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.ports import Logits, Matcher

__all__ = ["Processors"]

Floats = npt.NDArray[np.float64]
FIRST_CAPACITY = 64


class Processors:
    """What a session's rules need to know of its past. `commit` tells it; nothing else moves it for long."""

    def __init__(
        self, parameters: SamplingParameters, prompt: Sequence[TokenId], *, vocab_size: int, matcher: Matcher | None
    ) -> None:
        self._parameters = parameters
        self._matcher = matcher
        self._said: list[TokenId] = []
        self._counts = _Counts(prompt if parameters.repetition_penalty != 1 else ())
        self._banned = _banned_ids(parameters, vocab_size)
        self._ends = np.array(parameters.end_tokens, np.int64)
        self._words = [(word[:-1], word[-1]) for word in parameters.bad_words if len(word) > 1]
        self._biased = np.array([token for token, _ in parameters.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in parameters.logit_bias], np.float64)

    def commit(self, at: int, ids: Sequence[TokenId]) -> None:
        """The output is what it was up to the offset `at`, then `ids`."""
        self._take_back(len(self._said) - at)
        for token in ids:
            self._say(token)

    def rows(self, logits: Logits, proposed: Sequence[TokenId]) -> Floats:
        """`logits` [n, vocab] stand after the output and each prefix of `proposed`; the same rows, processed.

        Behind a proposed token that the rules forbid, rows stay as they are: it is rejected, and nothing after a
        rejection is looked at. A row of which nothing is left is -inf everywhere, and so is one behind a proposed token
        at which the grammar fails. Raises BadRequest where it fails at the first row.
        """
        processed = logits.astype(np.float64)
        offset = len(self._said)
        for at, row in enumerate(processed):
            self._process_in_proposal(row, at)
            if at < len(proposed):
                if not _admits(row, proposed[at]):
                    break
                self._say(proposed[at])
        self._take_back(len(self._said) - offset)
        return processed

    def cause_of(self, error: NotANumber, logits: Logits, processed: Logits) -> TandemError:
        """Whose fault a row without a law is: the rules', if the model's own row has one."""
        lawless = next(at for at, row in enumerate(processed) if not np.isfinite(row.max()))
        return nothing_admitted(self._parameters) if np.isfinite(logits[lawless].max()) else error

    def _say(self, token: TokenId) -> None:
        self._said.append(token)
        self._counts.add(token)
        if self._matcher is not None:
            self._matcher.advance(token)

    def _take_back(self, count: int) -> None:
        for _ in range(count):
            self._counts.remove(self._said.pop())
        if self._matcher is not None and count:
            self._matcher.roll_back(count)

    def _process_in_proposal(self, row: Floats, at: int) -> None:
        """A failure behind a proposed token is one of the round that begins there, if the token stands."""
        try:
            self._process(row)
        except BadRequest:
            if at == 0:
                raise
            row[:] = -np.inf

    def _process(self, row: Floats) -> None:
        """In place, in the order of `domain.processors`."""
        if self._matcher is not None:
            row[~self._matcher.admitted()] = -np.inf
        row[self._banned] = -np.inf
        for prefix, last in self._words:
            if tuple(self._said[-len(prefix) :]) == prefix:
                row[last] = -np.inf
        if len(self._said) < self._parameters.min_tokens:
            row[self._ends] = -np.inf
        row[self._biased] += self._bias
        self._punish(row)

    def _punish(self, row: Floats) -> None:
        asked = self._parameters
        ids, counts, seen = self._counts.table()
        if asked.repetition_penalty != 1:
            of, penalty = ids[seen], asked.repetition_penalty
            logits = row[of]
            row[of] = np.where(logits > 0, logits / penalty, logits * penalty)
        said = np.flatnonzero(counts)
        of = ids[said]
        row[of] = row[of] - asked.frequency_penalty * counts[said] - asked.presence_penalty


class _Counts:
    """How often each token is in the output, as arrays that grow by doubling; and which are in the prompt."""

    def __init__(self, prompt: Sequence[TokenId]) -> None:
        unique = sorted(set(prompt))
        capacity = len(unique) + FIRST_CAPACITY
        self._places = {token: place for place, token in enumerate(unique)}
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: len(unique)] = unique
        self._counts = np.zeros(capacity, np.int64)
        self._prompt_size = len(unique)

    def add(self, token: TokenId) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids, self._counts = _doubled(self._ids), _doubled(self._counts)
        self._ids[place] = token
        self._counts[place] += 1

    def remove(self, token: TokenId) -> None:
        self._counts[self._places[token]] -= 1

    def table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Ids without repetition, how often each is in the output, and whether it is in prompt or output."""
        size = len(self._places)
        counts = self._counts[:size]
        seen = counts > 0
        seen[: self._prompt_size] = True
        return self._ids[:size], counts, seen


def _doubled(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([numbers, np.zeros_like(numbers)])


def _banned_ids(parameters: SamplingParameters, vocab_size: int) -> npt.NDArray[np.int64]:
    """What is forbidden everywhere: all but the allowed tokens, and bad words of one token."""
    banned = np.zeros(vocab_size, np.bool_)
    if parameters.allowed_tokens:
        banned[:] = True
        banned[list(parameters.allowed_tokens)] = False
    banned[[word[0] for word in parameters.bad_words if len(word) == 1]] = True
    return np.flatnonzero(banned)


def _admits(row: Floats, token: TokenId) -> bool:
    return 0 <= token < len(row) and bool(row[token] > -np.inf)
