"""Knows how the opening of a session becomes a message and comes back, with all that shapes its law.

Refuses to know frames, rounds and replies.
"""

import math
from collections.abc import Sequence

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import (
    Grammar,
    GrammarKind,
    OpenSession,
    Priority,
    SamplingParameters,
    SessionId,
    Verification,
    refuse_bad_seed,
)
from tandem_runtime.wire import verify_pb2 as pb

VERIFICATIONS = {
    Verification.COUPLED: pb.VERIFICATION_COUPLED,
    Verification.REJECTION: pb.VERIFICATION_REJECTION,
    Verification.BLOCK: pb.VERIFICATION_BLOCK,
}
_VERIFICATIONS_BACK: dict[int, Verification] = {number: name for name, number in VERIFICATIONS.items()}
_PRIORITIES = {
    Priority.INTERACTIVE: pb.PRIORITY_UNSPECIFIED,  # the usual one costs no bytes
    Priority.BATCH: pb.PRIORITY_BATCH,
    Priority.BACKGROUND: pb.PRIORITY_BACKGROUND,
}
_PRIORITIES_BACK: dict[int, Priority] = {
    **{number: name for name, number in _PRIORITIES.items()},
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
}
_GRAMMARS = {
    GrammarKind.JSON_SCHEMA: pb.GRAMMAR_KIND_JSON_SCHEMA,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.CALLS: pb.GRAMMAR_KIND_CALLS,
    GrammarKind.LARK: pb.GRAMMAR_KIND_LARK,
}
_GRAMMARS_BACK: dict[int, GrammarKind] = {number: kind for kind, number in _GRAMMARS.items()}


def open_message(request: OpenSession) -> pb.Open:
    """Raises BadRequest for a seed that no field carries, such as a negative one."""
    refuse_bad_seed(request.parameters.seed)
    return pb.Open(
        prompt=request.prompt,
        output=request.output,
        parameters=_parameters_message(request.parameters),
        verification=VERIFICATIONS[request.verification],
        max_tokens=request.max_tokens,
        logprobs=request.logprobs,
        tenant=request.tenant,
        adapter=request.adapter,
        priority=_PRIORITIES[request.priority],
        weight=0.0 if request.weight == 1 else request.weight,
    )


def open_value(message: pb.Open, session: SessionId) -> OpenSession:
    if not message.HasField("parameters"):
        raise BadRequest("open.parameters is missing: the seed is in it", parameter="open.parameters")
    return OpenSession(
        session=session,
        prompt=tuple(message.prompt),
        output=tuple(message.output),
        parameters=_parameters_value(message.parameters),
        verification=verification_value(message.verification, "open.verification"),
        max_tokens=message.max_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        tenant=message.tenant if message.HasField("tenant") else None,
        adapter=message.adapter if message.HasField("adapter") else None,
        priority=_priority_value(message.priority),
        weight=_weight_value(message.weight),
    )


def _priority_value(number: int) -> Priority:
    value = _PRIORITIES_BACK.get(number)
    if value is None:
        raise BadRequest(
            f"open.priority: {number} is not a priority that this release knows", parameter="open.priority"
        )
    return value


def _weight_value(number: float) -> float:
    if not 0 <= number < math.inf:
        raise BadRequest(f"open.weight is {number}; a weight above 0 is needed", parameter="open.weight")
    return number or 1.0


def _parameters_message(value: SamplingParameters) -> pb.SamplingParameters:
    return pb.SamplingParameters(
        seed=value.seed,
        choice=value.choice,
        temperature=value.temperature,
        top_k=value.top_k,
        top_p=value.top_p,
        min_p=value.min_p,
        bias_ids=[token for token, _ in value.logit_bias],
        bias_values=[bias for _, bias in value.logit_bias],
        grammar=None if value.grammar is None else _grammar_message(value.grammar),
        allowed_tokens=value.allowed_tokens,
        bad_words=[pb.Word(ids=word) for word in value.bad_words],
        min_tokens=value.min_tokens,
        end_tokens=value.end_tokens,
        repetition_penalty=0.0 if value.repetition_penalty == 1 else value.repetition_penalty,
        frequency_penalty=value.frequency_penalty,
        presence_penalty=value.presence_penalty,
    )


def _parameters_value(message: pb.SamplingParameters) -> SamplingParameters:
    return SamplingParameters(
        seed=message.seed,
        choice=message.choice,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        logit_bias=paired(message.bias_ids, message.bias_values, "open.parameters.bias_values"),
        grammar=_grammar_value(message.grammar) if message.HasField("grammar") else None,
        allowed_tokens=tuple(message.allowed_tokens),
        bad_words=tuple(tuple(word.ids) for word in message.bad_words),
        min_tokens=message.min_tokens,
        end_tokens=tuple(message.end_tokens),
        repetition_penalty=message.repetition_penalty or 1.0,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
    )


def _grammar_message(value: Grammar) -> pb.Grammar:
    return pb.Grammar(kind=_GRAMMARS[value.kind], text=value.text)


def _grammar_value(message: pb.Grammar) -> Grammar:
    kind = _GRAMMARS_BACK.get(message.kind)
    if kind is None:
        path = "open.parameters.grammar.kind"
        raise BadRequest(f"{path}: {message.kind} is not a grammar that this release knows", parameter=path)
    return Grammar(kind, message.text)


def verification_value(number: int, path: str) -> Verification:
    """Raises BadRequest naming `path`."""
    value = _VERIFICATIONS_BACK.get(number)
    if value is None:
        raise BadRequest(f"{path}: {number} is not a verification that this release knows", parameter=path)
    return value


def paired(ids: Sequence[int], values: Sequence[float], path: str) -> tuple[tuple[int, float], ...]:
    """Each id with its value. Raises BadRequest naming `path` where one has none."""
    if len(ids) != len(values):
        raise BadRequest(f"{path}: {len(ids)} ids but {len(values)} values", parameter=path)
    return tuple(zip(ids, values, strict=True))
