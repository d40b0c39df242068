"""Knows how a request of either endpoint becomes an `Ask`: prompts as ids, and everything that shapes the answer.

Refuses to know which revision and pods will serve it; what depends on those (context length, vocabulary) is checked
when they are chosen, before any model call.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.policy import OwnWish
from tandem_runtime.domain.tokens import Capabilities, SamplingParameters, TokenId
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest, SpeculationWish
from tandem_runtime.ports import Tokenizer

COMPLETION_TOKENS = 16
"""OpenAI's default length at the older endpoint; a chat runs to its own end."""
SEED_SPAN = 2**64
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
        parameters=_read_parameters(request, chance),
        stop=tuple(request.stop or ()),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        wish=_read_wish(request.speculation),
        user=request.user,
    )


def read_completion(request: CompletionRequest, tokenizer: Tokenizer, *, chance: int) -> Ask:
    """`chance` is a seed for a request that names none."""
    return Ask(
        model=request.model,
        prompts=tuple(_read_prompt(prompt, tokenizer) for prompt in request.prompt),
        prompt_field="prompt",
        choices=request.choices,
        parameters=_read_parameters(request, chance),
        stop=tuple(request.stop or ()),
        max_tokens=request.max_tokens or COMPLETION_TOKENS,
        logprobs=request.logprobs,
        wish=_read_wish(request.speculation),
        user=request.user,
    )


def check_fits(ask: Ask, target: Capabilities) -> None:
    """Refuse, before any model call, what this target cannot serve. Raises BadRequest naming field and value."""
    for token, _ in ask.parameters.logit_bias:
        if token >= target.vocab_size:
            raise BadRequest(
                f"logit_bias names token {token}; ids go up to {target.vocab_size - 1}", parameter="logit_bias"
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


def _read_parameters(request: ChatRequest | CompletionRequest, chance: int) -> SamplingParameters:
    return SamplingParameters(
        seed=(chance if request.seed is None else request.seed) % SEED_SPAN,
        temperature=1.0 if request.temperature is None else float(request.temperature),
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else float(request.top_p),
        min_p=float(request.min_p or 0.0),
        logit_bias=_read_bias(request.logit_bias or {}),
    )


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
