"""Knows how a request of either endpoint becomes an `Ask`: prompts as ids, and everything that shapes the answer.

Refuses to know which revision and pods will serve it; what depends on those (context length, vocabulary) is checked
when they are chosen, before any model call.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest, NotSupported
from tandem_runtime.domain.policy import OwnWish
from tandem_runtime.domain.processors import refuse_unfit
from tandem_runtime.domain.suffix import Prediction, prediction_of
from tandem_runtime.domain.tokens import SEEDS, Capabilities, Grammar, Priority, SamplingParameters, TokenId
from tandem_runtime.gateway.keys import NO_QUOTA, Quota
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest
from tandem_runtime.gateway.tools import FREE, Tool, ToolUse, call_grammar, free_calls_grammar, refuse_bad_tools
from tandem_runtime.grammar import refuse_bad_grammar
from tandem_runtime.ports import Tokenizer

COMPLETION_TOKENS = 16
"""OpenAI's default length at the older endpoint; a chat runs to its own end."""
DRAWN = -1
"""As a seed it asks for one to be drawn, as at vLLM and llama.cpp: clients that cannot leave the field out send it."""
LARGEST_BIAS = 100.0
LONGEST_PREDICTION = 16_384
"""Tokens. Reading them takes up to half a second of a processor."""
MOST_ECHOED = 65_536
"""Tokens of prompts that a reply tells logprobs of, over all its choices: some 120 MB of the gateway's memory while it
is written, and a second or two for which it does nothing else."""
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
    quota: Quota = NO_QUOTA
    """The tenant's."""
    priority: Priority = Priority.INTERACTIVE
    prediction: Prediction | None = None
    prompt_logprobs: int | None = None
    """So many alternatives are told for each token of the prompts; None: nothing is told of those."""
    kept: int | None = None
    """Of each prompt's choices so many are told, the likeliest; None: all are."""
    tool_use: ToolUse | None = None
    """How calls of tools are read, where the answer may hold some."""
    details: bool = False
    """The reply tells what speculation did round by round."""

    @property
    def sessions(self) -> int:
        return len(self.prompts) * self.choices

    @property
    def choices_field(self) -> str:
        """Which field asks for more than one choice."""
        if self.choices == 1 and len(self.prompts) > 1:
            return self.prompt_field
        return "n" if self.kept is None else "best_of"

    @property
    def prompt_tokens(self) -> int:
        """Each prompt once, however many choices it has."""
        return sum(map(len, self.prompts))


def read_chat(request: ChatRequest, tokenizer: Tokenizer, *, chance: int) -> Ask:
    """`chance` is a seed for a request that names none, or `DRAWN`."""
    tool_use = _read_tool_use(request, tokenizer)
    return Ask(
        model=request.model,
        prompts=(_read_messages(request, tokenizer, tool_use),),
        prompt_field="messages",
        choices=request.choices,
        parameters=_read_parameters(request, tokenizer, chance, tool_use),
        tool_use=tool_use,
        stop=tuple(request.stop or ()),
        max_tokens=request.max_completion_tokens or request.max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        wish=_read_wish(request),
        details=request.speculation.details,
        user=request.user,
        ignore_eos=bool(request.ignore_eos),
        priority=Priority.BATCH if request.service_tier == "flex" else Priority.INTERACTIVE,
        prediction=_read_prediction(request, tokenizer),
    )


def read_completion(request: CompletionRequest, tokenizer: Tokenizer, *, chance: int) -> Ask:
    """`chance` is a seed for a request that names none, or `DRAWN`."""
    if request.max_tokens == 0:
        _refuse_to_say_nothing(request)
    choices, kept = request.best_of or request.choices, request.choices
    chooses = kept < choices
    prompts = tuple(_read_prompt(prompt, tokenizer) for prompt in request.prompt)
    if request.echo and request.logprobs is not None:
        _refuse_long_echo(kept * sum(map(len, prompts)))
    return Ask(
        model=request.model,
        prompts=prompts,
        prompt_field="prompt",
        choices=choices,
        kept=kept if chooses else None,
        parameters=_read_parameters(request, tokenizer, chance),
        stop=tuple(request.stop or ()),
        max_tokens=COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=0 if chooses and request.logprobs is None else request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        wish=_read_wish(request),
        details=request.speculation.details,
        user=request.user,
        ignore_eos=bool(request.ignore_eos),
        priority=Priority.BATCH if request.service_tier == "flex" else Priority.INTERACTIVE,
        prediction=_read_prediction(request, tokenizer),
    )


def _refuse_to_say_nothing(request: CompletionRequest) -> None:
    """Of a request for no tokens: it has to ask for something else."""
    if not request.echo:
        raise BadRequest(
            "max_tokens is 0, which leaves nothing to tell but an echo of the prompt: ask for echo, or for more tokens",
            parameter="max_tokens",
        )
    if request.best_of is not None:
        raise BadRequest(
            f"best_of is {request.best_of}, to choose among answers, and max_tokens is 0, which asks for none: leave"
            " one out",
            parameter="best_of",
        )


def _refuse_long_echo(tokens: int) -> None:
    """`tokens` of prompts, over all choices."""
    if tokens > MOST_ECHOED:
        raise BadRequest(
            f"echo with logprobs would tell of {tokens} tokens of prompts over all choices; at most {MOST_ECHOED} are"
            " told: ask for fewer choices, or send fewer or shorter prompts at a time",
            parameter="echo",
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
        _check_prompt(prompt, ask.prompt_field, target, least=0 if ask.max_tokens == 0 else 1)


def _check_prompt(prompt: tuple[TokenId, ...], field: str, target: Capabilities, *, least: int) -> None:
    """`least` is the length of the shortest answer."""
    if not prompt:
        raise BadRequest(f"{field} is empty; at least one token is needed", parameter=field)
    if len(prompt) + least > target.max_length:
        raise BadRequest(
            f"{field} has {len(prompt)} tokens; the model holds {target.max_length} with the answer: shorten it",
            parameter=field,
        )
    strange = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if strange is not None:
        raise BadRequest(f"{field} holds token {strange}; ids go up to {target.vocab_size - 1}", parameter=field)


def _read_messages(request: ChatRequest, tokenizer: Tokenizer, tool_use: ToolUse | None) -> tuple[TokenId, ...]:
    tools = [tool.as_told() for tool in request.tools or () if tool_use is not None]
    prompt = tokenizer.encode_chat([message.as_told() for message in request.messages], tools)
    prelude = "" if tool_use is None else tool_use.prelude
    return prompt + tokenizer.continuation(prelude) if prelude else prompt


def _read_tool_use(request: ChatRequest, tokenizer: Tokenizer) -> ToolUse | None:
    """Raises BadRequest where the model cannot have tools, or they are none."""
    tools, choice = request.tools or [], request.tool_choice or FREE
    about_tools = next((index for index, told in enumerate(request.messages) if told.is_about_tools), None)
    if tokenizer.tool_format is None and (tools or about_tools is not None):
        field = "tools" if tools else f"messages[{about_tools}]"
        raise NotSupported(
            f"{field}: this model's chat template takes no tools, or shows no form of calls that is known here"
            " (Hermes, Llama 3, Mistral): leave them out",
            parameter=field,
        )
    refuse_bad_tools(tools)
    names = frozenset(tool.function.name for tool in tools)
    if choice.forced and not names:
        raise BadRequest("tool_choice asks for a call and there are no tools: give some", parameter="tool_choice")
    if choice.function is not None and choice.function.name not in names:
        raise BadRequest(
            f"tool_choice names {choice.function.name!r}, which is none of the tools: {', '.join(sorted(names))}",
            parameter="tool_choice.function.name",
        )
    if not tools or choice.type == "none":
        return None
    assert tokenizer.tool_format is not None, "tools without a format were refused"
    most = 1 if request.parallel_tool_calls is False else None
    return ToolUse(tokenizer.tool_format, names, forced=choice.forced, most=most)


def _read_prompt(prompt: object, tokenizer: Tokenizer) -> tuple[TokenId, ...]:
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    assert isinstance(prompt, list)
    return tuple(prompt)


def _read_parameters(
    request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, chance: int, tool_use: ToolUse | None = None
) -> SamplingParameters:
    min_tokens, defaults = request.min_tokens or 0, tokenizer.defaults
    return SamplingParameters(
        seed=(chance if request.seed is None or request.seed == DRAWN else request.seed) % SEEDS,
        temperature=_chosen(request.temperature, defaults.temperature),
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        top_p=_chosen(request.top_p, defaults.top_p),
        min_p=_chosen(request.min_p, defaults.min_p),
        logit_bias=_read_bias(request.logit_bias or {}),
        grammar=_read_grammar(request, tokenizer, tool_use),
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


def _read_grammar(
    request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, tool_use: ToolUse | None
) -> Grammar | None:
    """Raises BadRequest for a grammar that does not compile, or that no answer of this model could keep to."""
    grammar, parameter = _asked_grammar(request)
    if grammar is not None and tool_use is not None:
        raise BadRequest(
            f"{parameter} would keep the model from calling tools: leave one out, or say tool_choice none",
            parameter=parameter,
        )
    if isinstance(request, ChatRequest) and tool_use is not None:
        grammar, parameter = _calls_grammar(request, tool_use)
    if grammar is None:
        return None
    if not tokenizer.end_tokens:
        raise NotSupported(f"{parameter} needs an end token; this model names none: leave it out", parameter=parameter)
    if request.ignore_eos:
        raise BadRequest(
            f"ignore_eos goes on behind an end token, where {parameter} admits nothing: leave one out",
            parameter="ignore_eos",
        )
    refuse_bad_grammar(grammar, parameter=parameter)
    return grammar


def _calls_grammar(request: ChatRequest, tool_use: ToolUse) -> tuple[Grammar | None, str]:
    """What holds calls to schemas, and the path of the field that asks for it; None: the model writes as it likes."""
    if tool_use.forced:
        return call_grammar(_callable_tools(request), tool_use.format), "tool_choice"
    return free_calls_grammar(request.tools or (), tool_use.format, most=tool_use.most)


def _callable_tools(request: ChatRequest) -> dict[int, Tool]:
    """Those that may be called, by their numbers in the request."""
    choice = request.tool_choice or FREE
    return {index: tool for index, tool in enumerate(request.tools or ()) if choice.allows(tool.function.name)}


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


def _read_prediction(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> Prediction | None:
    if request.prediction is None:
        return None
    try:
        ids = tokenizer.continuation(request.prediction.content)
    except BadRequest as error:
        raise BadRequest(f"prediction.content: {error}", parameter="prediction.content") from error
    if len(ids) > LONGEST_PREDICTION:
        raise BadRequest(
            f"prediction.content has {len(ids)} tokens; at most {LONGEST_PREDICTION} are read: shorten it",
            parameter="prediction.content",
        )
    return prediction_of(ids)


def _read_wish(request: ChatRequest | CompletionRequest) -> OwnWish:
    wish = request.speculation
    return OwnWish(
        off=wish.off,
        min_draft_tokens=wish.minDraftTokens,
        max_draft_tokens=wish.maxDraftTokens,
        verification=wish.verification,
        predicts=request.prediction is not None,
    )
