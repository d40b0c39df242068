"""Knows how a request's rules change a row of logits before it becomes a law: the one list of logits processors.

Refuses to know tensors, how a grammar decides (what it admits is an argument), and how a row becomes a law.

Draft and target apply the same list, and it acts at every position of a proposal as it would in plain decoding: the
history of position i is the prompt, the output, and the i proposed tokens before it. The order is that of vLLM's v1
sampler, which is what most users' settings were tuned on:

    1  grammar             what the grammar does not admit after the output so far: -inf
    2  allowed tokens      all others: -inf
    3  bad words           the last token of a sequence whose other tokens were just said, in the output: -inf
    4  min tokens          the end tokens while the output is shorter: -inf
    5  bias                l + b
    6  repetition          l / r if l > 0, else l r, for each token of prompt or output       (Keskar et al. 2019)
    7  frequency           l - f n, with n the times that the token is in the output
    8  presence            l - a for each token of the output

and then `domain.sampling`: temperature, top-k, top-p, min-p. Masks come first, since no finite change lifts -inf, so
that nothing later can bring back what a rule forbids. Bias comes before repetition, which multiplies: transformers has
the two in the same order. The prompt counts for repetition only. vLLM takes min-p before top-k and top-p, transformers
after both, and so do we; it makes a difference only to a request with both top-p and min-p.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tandem_runtime.domain.errors import BadRequest, NotANumber, NothingAdmitted
from tandem_runtime.domain.tokens import SamplingParameters, TokenId, refuse_bad_seed, refuse_foreign_ids

Row: TypeAlias = list[float]


@dataclass(frozen=True, slots=True)
class History:
    """What stands before a position. `output` includes the proposed tokens before it."""

    prompt: Sequence[TokenId] = ()
    output: Sequence[TokenId] = ()


NOTHING_SAID = History()

Admitted: TypeAlias = Collection[TokenId] | None
"""What a grammar lets follow; None: there is no grammar."""

Processor: TypeAlias = Callable[[Row, SamplingParameters, History], Row]


def processed(
    logits: Sequence[float], parameters: SamplingParameters, history: History = NOTHING_SAID, admitted: Admitted = None
) -> Row:
    """The logits after all processors. Shape [vocab]; -inf forbids a token.

    processed([2, 1], repetition_penalty 2, output [0]) = [1, 1]. Raises NotANumber if the model's row holds NaN or
    +inf or is -inf everywhere, and NothingAdmitted if the rules forbid what the model left.
    """
    row = [float(logit) for logit in logits]
    _refuse_lawless(row)
    if admitted is not None:
        row = _keep(row, set(admitted))
    for processor in PROCESSORS:
        row = processor(row, parameters, history)
    if max(row) == -math.inf:
        raise nothing_admitted(parameters)
    return row


def keep_allowed(row: Row, parameters: SamplingParameters, _: History) -> Row:
    return _keep(row, set(parameters.allowed_tokens)) if parameters.allowed_tokens else row


def drop_bad_words(row: Row, parameters: SamplingParameters, history: History) -> Row:
    """Drop what would complete a bad word: after output [7, 8], the word (8, 9) drops 9. The prompt completes none."""
    return _drop(row, {word[-1] for word in parameters.bad_words if _ends_with(history.output, word[:-1])})


def hold_back_ends(row: Row, parameters: SamplingParameters, history: History) -> Row:
    """Tokens count, never rounds: with min_tokens 5 the sixth token is the first that may end the output."""
    return _drop(row, set(parameters.end_tokens)) if len(history.output) < parameters.min_tokens else row


def add_bias(row: Row, parameters: SamplingParameters, _: History) -> Row:
    bias = dict(parameters.logit_bias)
    return [logit + bias.get(token, 0.0) for token, logit in enumerate(row)]


def punish_repetition(row: Row, parameters: SamplingParameters, history: History) -> Row:
    penalty, seen = parameters.repetition_penalty, {*history.prompt, *history.output}
    return [_repeated(logit, penalty) if token in seen else logit for token, logit in enumerate(row)]


def punish_frequency(row: Row, parameters: SamplingParameters, history: History) -> Row:
    counts = Counter(history.output)
    return [logit - parameters.frequency_penalty * counts[token] for token, logit in enumerate(row)]


def punish_presence(row: Row, parameters: SamplingParameters, history: History) -> Row:
    said = set(history.output)
    return [logit - parameters.presence_penalty * (token in said) for token, logit in enumerate(row)]


PROCESSORS: tuple[Processor, ...] = (
    keep_allowed,
    drop_bad_words,
    hold_back_ends,
    add_bias,
    punish_repetition,
    punish_frequency,
    punish_presence,
)
"""In order, behind the grammar's mask."""


_NUMBERS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value < math.inf, "a number from 0 on, where 0 is greedy"),
    "top_k": (lambda value: value >= 0, "a whole number from 0 on, where 0 is off"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and up to 1, where 1 is off"),
    "min_p": (lambda value: 0 <= value <= 1, "a number from 0 to 1, where 0 is off"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "a number above 0, where 1 is off"),
    "frequency_penalty": (math.isfinite, "a number, where 0 is off"),
    "presence_penalty": (math.isfinite, "a number, where 0 is off"),
}
"""What each number may be, and how that is said."""


def _refuse_bad_numbers(parameters: SamplingParameters) -> None:
    refuse_bad_seed(parameters.seed)
    for name, (holds, wanted) in _NUMBERS.items():
        value = getattr(parameters, name)
        if not holds(value):
            raise BadRequest(f"{name} is {value}; give {wanted}", parameter=name)
    for token, bias in parameters.logit_bias:
        if not math.isfinite(bias):
            raise BadRequest(f"logit_bias of token {token} is {bias}; give a number", parameter="logit_bias")


def refuse_unfit(parameters: SamplingParameters, *, vocab_size: int) -> None:
    """Raises BadRequest naming the field and the value where a rule cannot be applied to rows of this vocabulary."""
    _refuse_bad_numbers(parameters)
    if () in parameters.bad_words:
        raise BadRequest("bad_words holds a word without a token; leave it out", parameter="bad_words")
    named = {
        "logit_bias": (token for token, _ in parameters.logit_bias),
        "allowed_token_ids": parameters.allowed_tokens,
        "bad_words": (token for word in parameters.bad_words for token in word),
        "min_tokens": parameters.end_tokens,
    }
    for field, tokens in named.items():
        refuse_foreign_ids(tokens, vocab_size=vocab_size, parameter=field)


def nothing_admitted(parameters: SamplingParameters) -> NothingAdmitted:
    """The error for a position where the rules leave no token; names the rules that this request has."""
    grammar = parameters.grammar
    rules = {
        "response_format" if grammar is None else grammar.asked_by: grammar is not None,
        "allowed_token_ids": bool(parameters.allowed_tokens),
        "bad_words": bool(parameters.bad_words),
        "min_tokens": parameters.min_tokens > 0,
    }
    named = [field for field, given in rules.items() if given]
    return NothingAdmitted(
        f"{' and '.join(named) or 'logit_bias'} left no token that may follow the output so far; relax one of them",
        parameter=named[0] if named else "logit_bias",
    )


def _refuse_lawless(row: Row) -> None:
    if not all(logit < math.inf for logit in row):
        raise NotANumber("the model's logits hold NaN or +inf; the request fails rather than guess a token")
    if max(row, default=-math.inf) == -math.inf:
        raise NotANumber("the model's logits are -inf for every token; nothing can be drawn")


def _keep(row: Row, kept: Collection[TokenId]) -> Row:
    return [logit if token in kept else -math.inf for token, logit in enumerate(row)]


def _drop(row: Row, dropped: Collection[TokenId]) -> Row:
    return [-math.inf if token in dropped else logit for token, logit in enumerate(row)]


def _ends_with(output: Sequence[TokenId], tail: Sequence[TokenId]) -> bool:
    return len(tail) <= len(output) and tuple(output[len(output) - len(tail) :]) == tuple(tail)


def _repeated(logit: float, penalty: float) -> float:
    return logit / penalty if logit > 0 else logit * penalty
