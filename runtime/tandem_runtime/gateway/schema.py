"""Knows the shapes of OpenAI's completion requests, and what becomes of every field of them.

Refuses to know tokens, models and sessions.

A field of OpenAI's API has one of three fates, and none is silence. *Honoured*: it shapes the answer. *Refused*: it
would shape the answer and does not do so here, so any value but its neutral one is a 400 that names it (`REFUSED`).
*Accepted without effect*: it never shapes an answer, being a note for the provider's own books or a hint about caching
(`NOTES`). Any other field is a 400 too: a misspelt `temperature` must not be served at temperature 1.

`speculation` is our extension, in requests and in replies. `top_k`, `min_p` and what stands behind `repetition_penalty`
are vLLM's, by its names.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tandem_runtime.domain.tokens import Verification
from tandem_runtime.gateway.structured import ResponseFormat, StructuredOutputs

MOST_CHOICES = 16
"""Each choice is a session of its own; a request may not fill a gateway alone."""
MOST_STOPS = 16
MOST_PROMPTS = 64
MOST_BAD_WORDS = 256
LONGEST_PROPOSAL = 64

NOTES = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",  # says how tools are called; without tools it says nothing
    }
)
REFUSED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),  # and `flex`, which is honoured
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the answer and do not here, each with the values that ask for nothing; null is one too."""


class SpeculationWish(BaseModel):
    """`speculation` in a request: switches it off or narrows the deployment's bounds for this request alone."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    off: bool = False
    minDraftTokens: int | None = Field(default=None, ge=1, le=LONGEST_PROPOSAL)  # noqa: N815 (the API's own spelling)
    maxDraftTokens: int | None = Field(default=None, ge=1, le=LONGEST_PROPOSAL)  # noqa: N815 (likewise)
    verification: Annotated[Verification | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.minDraftTokens and self.maxDraftTokens and self.minDraftTokens > self.maxDraftTokens:
            raise ValueError("minDraftTokens must not be above maxDraftTokens")
        return self


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool = False
    include_obfuscation: bool = False
    """Pads chunks against traffic analysis where a provider does so; without padding there is nothing to leave out."""


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _many_prompts(value: object) -> object:
    """OpenAI's four shapes of a prompt as one: a list whose items are texts or lists of token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return [value]
    if isinstance(value, list) and all(_is_prompt(item) for item in value):
        return value
    raise ValueError("a text, a list of texts, a list of token ids or a list of such lists is needed")


def _is_prompt(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and all(type(token) is int for token in item))


def _plain_message(value: object) -> object:
    """Text parts joined; anything but text is refused by name, since the model would never see it."""
    if not isinstance(value, dict):
        raise ValueError("a message is an object with `role` and `content`")
    content = value.get("content")
    if not isinstance(content, list):
        return value
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('only parts of the form {"type": "text", "text": "..."} are served')
    return {**value, "content": "".join(part["text"] for part in content)}


class Message(BaseModel):
    """One turn of a chat. Tool turns are refused with the tools themselves."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = None


Stops: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(_one_or_many), Field(max_length=MOST_STOPS)
]
Prompts: TypeAlias = Annotated[list[Any], BeforeValidator(_many_prompts), Field(min_length=1, max_length=MOST_PROMPTS)]


class _Common(BaseModel):
    """What both endpoints take."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: Stops = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    response_format: ResponseFormat | None = None
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, allow_inf_nan=False)
    min_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    bad_words: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, max_length=MOST_BAD_WORDS)
    allowed_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1)
    structured_outputs: StructuredOutputs | None = None
    service_tier: Literal["flex"] | None = None
    """The answer may take longer: what is more urgent goes first."""
    user: str | None = None
    speculation: SpeculationWish = SpeculationWish()

    @model_validator(mode="before")
    @classmethod
    def _every_field_has_a_fate(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            raise ValueError("the body must be a JSON object")
        return {name: value for name, value in fields.items() if not _is_silent(name, value, known=cls.model_fields)}

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def _is_silent(name: str, value: object, *, known: Mapping[str, object]) -> bool:
    """Whether a field asks for nothing: a note, a refused field at its neutral value, or a null of a known name."""
    if name in REFUSED and (value is None or value in REFUSED[name]):
        return True
    return (value is None and name != "model") if name in known else name in NOTES


class CompletionRequest(_Common):
    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=5)


class ChatRequest(_Common):
    messages: list[Annotated[Message, BeforeValidator(_plain_message)]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self
