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

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict  # which pydantic can describe

from tandem_runtime.domain.tokens import Verification
from tandem_runtime.gateway.structured import ResponseFormat, StructuredOutputs
from tandem_runtime.gateway.tools import MOST_TOOLS, Tool, ToolCall, ToolChoice, choice_of_word

MOST_CHOICES = 16
"""Each choice is a session of its own; a request may not fill a gateway alone."""
MOST_STOPS = 16
MOST_PROMPTS = 64
MOST_BAD_WORDS = 256
LONGEST_PROPOSAL = 64

NOTES = frozenset(
    {
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",  # at the older endpoint, which has no tools
    }
)
REFUSED: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the answer and do not here, each with the values that ask for nothing; null is one too."""


ABSENT_PARTS = ("annotations", "audio", "function_call", "refusal")
"""Of a message. A reply has them at null, and comes back as it was in the next request."""


class SpeculationWish(BaseModel):
    """`speculation` in a request: switches it off or narrows the deployment's bounds for this request alone."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    off: bool = False
    minDraftTokens: int | None = Field(default=None, ge=1, le=LONGEST_PROPOSAL)  # noqa: N815 (the API's own spelling)
    maxDraftTokens: int | None = Field(default=None, ge=1, le=LONGEST_PROPOSAL)  # noqa: N815 (likewise)
    verification: Annotated[Verification | None, Field(strict=False)] = None
    details: bool = False

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
    """Without what a reply's message has and a turn need not; a call says all where there are no words."""
    if not isinstance(value, dict):
        raise ValueError("a message is an object with `role` and `content`")
    told = {name: part for name, part in value.items() if name not in ABSENT_PARTS or part not in (None, [])}
    if told.get("tool_calls") and told.get("content") is None:
        told["content"] = ""
    return told


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


def _joined_text(content: object) -> object:
    """A list of text parts as one text; what is no list stays as it is. Anything but text is refused by name, since the
    model would never see it."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('only parts of the form {"type": "text", "text": "..."} are served')
    return "".join(part["text"] for part in content)


Words: TypeAlias = Annotated[str, BeforeValidator(_joined_text, json_schema_input_type=str | list[TextPart])]


class Message(BaseModel):
    """One turn of a chat; `content` is empty where a call says all."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Words
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _fields_of_its_role(self) -> Self:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls belong to the assistant's messages")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id belongs to each message of the role tool, and to no other")
        return self

    @property
    def is_about_tools(self) -> bool:
        return bool(self.tool_calls) or self.role == "tool"

    def as_told(self) -> dict[str, object]:
        """As a chat template takes it."""
        told: dict[str, object] = self.model_dump(exclude_none=True, exclude={"tool_calls"})
        return told | ({"tool_calls": [call.as_told() for call in self.tool_calls]} if self.tool_calls else {})


class PredictedOutput(BaseModel):
    """`prediction`: what the answer will be like. It makes proposals, and never changes the answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["content"]
    content: Words


Stops: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1)]] | None,
    BeforeValidator(_one_or_many, json_schema_input_type=str | list[str] | None),
    Field(max_length=MOST_STOPS),
]
ChoiceShape: TypeAlias = Literal["none", "auto", "required"] | ToolChoice | None
_TEXT = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
Prompts: TypeAlias = Annotated[
    list[Any],
    BeforeValidator(_many_prompts),
    Field(min_length=1, max_length=MOST_PROMPTS),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                _IDS,
                {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1, "maxItems": MOST_PROMPTS},
            ]
        }
    ),
]


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
    service_tier: Literal["auto", "default", "flex"] | None = None
    """`flex`: the answer may take longer, and what is more urgent goes first."""
    user: str | None = None
    prediction: PredictedOutput | None = None
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
    if name in known:
        return value is None and name != "model"
    return name in NOTES or (name in REFUSED and (value is None or value in REFUSED[name]))


class CompletionRequest(_Common):
    prompt: Prompts
    max_tokens: int | None = Field(default=None, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1, le=MOST_CHOICES)

    @model_validator(mode="after")
    def _best_of_several(self) -> Self:
        best_of = self.best_of or self.choices
        if best_of < self.choices:
            raise ValueError(f"best_of must not be below n, which is {self.choices}")
        if best_of > self.choices and self.stream:
            raise ValueError("best_of above n cannot be streamed, since only the end shows which are best")
        return self


class ChatRequest(_Common):
    messages: list[Annotated[Message, BeforeValidator(_plain_message)]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[Tool] | None = Field(default=None, max_length=MOST_TOOLS)
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(choice_of_word, json_schema_input_type=ChoiceShape)] = (
        None
    )
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self
