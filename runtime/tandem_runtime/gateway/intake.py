"""Knows how a request of either endpoint becomes an `Ask`: prompts as ids, and everything that shapes the answer.

Refuses to know which revision and pods will serve it; what depends on those (context length, vocabulary) is checked
when they are chosen, before any model call.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.policy import OwnWish
from tandem_runtime.domain.processors import refuse_unfit
from tandem_runtime.domain.tokens import Capabilities, Grammar, Priority, SamplingParameters, TokenId
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest, SpeculationWish
from tandem_runtime.grammar import refuse_bad_grammar
from tandem_runtime.ports import Tokenizer

COMPLETION_TOKENS = 16
"""OpenAI's default length at the older endpoint; a chat runs to its own end."""
SEED_SPAN = 2**64
_TIERS = {None: Priority.INTERACTIVE, "flex": Priority.BATCH}
LARGEST_BIAS = 100.0
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
"""One spelling for each id, so that no id is named twice."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request in tokens. It has `len(prompts) * choices` choices, numbered prompt by prompt."""

    model: str
    prompts: tuple[tuple[TokenId, ...], ...]
    prompt_field: str
    choices: int
    parameters: SamplingParameters
    stop: tuple[str, ...]
    max_tokens: int | None
    logprobs: int | None
    wish: OwnWish
    user: str | None
    ignore_eos: bool = False
    tenant: str = ""
    """Whose key the request came with; empty where keys are not asked for."""
    weight: float = 1.0
    """The tenant's, among others."""
    priority: Priority = Priority.INTERACTIVE

    @property
    def sessions(self) -> int:
        return len(self.prompts) * self.choices


def read_chat(request: ChatRequest, tokenizer: Tokenizer, *, chance: int) -> Ask:
    """`chance` is a seed for a request that names none."""
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    return Ask(
        model=request.model,
        prompts=(tokenizer.encode_chat(messages),),
        prompt_field="messages",
        choices=request.choices,
        parameters=_read_parameters(request, tokenizer, chance),
        stop=tuple(request.stop or ()),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        wish=_read_wish(request.speculation),
        user=request.user,
        ignore_eos=bool(request.ignore_eos),
        priority=_TIERS[request.service_tier],
    )


def read_completion(request: CompletionRequest, tokenizer: Tokenizer, *, chance: int) -> Ask:
    """`chance` is a seed for a request that names none."""
    return Ask(
        model=request.model,
        prompts=tuple(_read_prompt(prompt, tokenizer) for prompt in request.prompt),
        prompt_field="prompt",
        choices=request.choices,
        parameters=_read_parameters(request, tokenizer, chance),
        stop=tuple(request.stop or ()),
        max_tokens=request.max_tokens or COMPLETION_TOKENS,
        logprobs=request.logprobs,
        wish=_read_wish(request.speculation),
        user=request.user,
        ignore_eos=bool(request.ignore_eos),
        priority=_TIERS[request.service_tier],
    )


def check_fits(ask: Ask, target: Capabilities) -> None:
    """Refuse, before any model call, what this target cannot serve. Raises BadRequest naming field and value."""
    refuse_unfit(ask.parameters, vocab_size=target.vocab_size)
    if ask.max_tokens is not None and ask.parameters.min_tokens > ask.max_tokens:
        raise BadRequest(
            f"min_tokens is {ask.parameters.min_tokens}, above the {ask.max_tokens} tokens that the answer may have",
            parameter="min_tokens",
        )
    for prompt in ask.prompts:
        _check_prompt(prompt, ask.prompt_field, target)


def _check_prompt(prompt: tuple[TokenId, ...], field: str, target: Capabilities) -> None:
    if not prompt:
        raise BadRequest(f"{field} is empty; at least one token is needed", parameter=field)
    if len(prompt) >= target.max_length:
        raise BadRequest(
            f"{field} has {len(prompt)} tokens; the model holds {target.max_length} with the answer: shorten it",
            parameter=field,
        )
    strange = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if strange is not None:
        raise BadRequest(f"{field} holds token {strange}; ids go up to {target.vocab_size - 1}", parameter=field)


def _read_prompt(prompt: object, tokenizer: Tokenizer) -> tuple[TokenId, ...]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    assert isinstance(prompt, list)
    return tuple(prompt)


def _read_parameters(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, chance: int) -> SamplingParameters:
    min_tokens, defaults = request.min_tokens or 0, tokenizer.defaults
    return SamplingParameters(
        seed=(chance if request.seed is None else request.seed) % SEED_SPAN,
        temperature=_chosen(request.temperature, defaults.temperature),
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        top_p=_chosen(request.top_p, defaults.top_p),
        min_p=_chosen(request.min_p, defaults.min_p),
        logit_bias=_read_bias(request.logit_bias or {}),
        grammar=_read_grammar(request, tokenizer),
        allowed_tokens=tuple(sorted(set(request.allowed_token_ids or ()))),
        bad_words=_read_bad_words(request.bad_words or (), tokenizer),
        min_tokens=min_tokens,
        end_tokens=tuple(sorted(tokenizer.end_tokens)) if min_tokens else (),
        repetition_penalty=_chosen(request.repetition_penalty, defaults.repetition_penalty),
        frequency_penalty=float(request.frequency_penalty or 0.0),
        presence_penalty=float(request.presence_penalty or 0.0),
    )


def _chosen(asked: float | None, default: float) -> float:
    return default if asked is None else float(asked)


def _read_grammar(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> Grammar | None:
    """Raises BadRequest for a grammar that does not compile, or that no answer of this model could keep to."""
    grammar, parameter = _asked_grammar(request)
    if grammar is None:
        return None
    if not tokenizer.end_tokens:
        raise BadRequest(f"{parameter} needs an end token; this model names none: leave it out", parameter=parameter)
    if request.ignore_eos:
        raise BadRequest(
            f"ignore_eos goes on behind an end token, where {parameter} admits nothing: leave one out",
            parameter="ignore_eos",
        )
    refuse_bad_grammar(grammar, parameter=parameter)
    return grammar


def _asked_grammar(request: ChatRequest | CompletionRequest) -> tuple[Grammar | None, str]:
    """The grammar, and the path of the field that holds it."""
    asked, wanted = request.structured_outputs, request.response_format
    grammar = None if wanted is None else wanted.grammar()
    if asked is None:
        schema = wanted is not None and wanted.json_schema is not None
        return grammar, "response_format.json_schema.schema" if schema else "response_format"
    if grammar is not None:
        raise BadRequest(
            "structured_outputs and response_format both ask for a grammar: leave one out",
            parameter="structured_outputs",
        )
    return asked.grammar(), f"structured_outputs.{asked.field}"


def _read_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[TokenId, ...], ...]:
    """Each word in each of its spellings."""
    return tuple(dict.fromkeys(ids for word in words for ids in _spelt(word, tokenizer)))


def _spelt(word: str, tokenizer: Tokenizer) -> tuple[tuple[TokenId, ...], ...]:
    try:
        ways = tokenizer.spellings(word)
    except BadRequest as error:
        raise BadRequest(f"bad_words holds {word[:40]!r}: {error}", parameter="bad_words") from error
    if not ways:
        raise BadRequest(f"bad_words holds {word[:40]!r}, which no token spells: leave it out", parameter="bad_words")
    return ways


def _read_bias(bias: Mapping[str, float]) -> tuple[tuple[TokenId, float], ...]:
    """In token order. JSON has no integer keys, so ids come as texts."""
    pairs = []
    for key, value in bias.items():
        if not _TOKEN_ID.fullmatch(key):
            raise BadRequest(f"logit_bias names {key!r}; keys are token ids", parameter="logit_bias")
        if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
            raise BadRequest(f"logit_bias of token {key} is {value}; -100 to 100 is allowed", parameter="logit_bias")
        pairs.append((int(key), float(value)))
    return tuple(sorted(pairs))


def _read_wish(wish: SpeculationWish) -> OwnWish:
    return OwnWish(
        off=wish.off,
        min_draft_tokens=wish.minDraftTokens,
        max_draft_tokens=wish.maxDraftTokens,
        verification=wish.verification,
    )
