"""Knows the shapes of OpenAI's replies, streamed and plain, with our `speculation` object beside `usage`.

Refuses to know how a reply comes about; see `present`.

Typed dictionaries, since a reply is written once and read by others: `json.dumps` is all that happens to it.
"""

from typing import (
    Literal,
    NotRequired,  # which pydantic can describe
)

from typing_extensions import TypedDict

Finish = Literal["stop", "length", "tool_calls"]


class CompletionDetails(TypedDict):
    """Of what a request's `prediction` proposed."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: NotRequired[CompletionDetails]
    """Only where the request has a `prediction`: clients bill what stands here."""


class Digests(TypedDict):
    """`draft` null: no model proposes. `adapter` null: the model alone answered."""

    target: str
    tokenizer: str
    draft: str | None
    adapter: str | None


class SpeculationDetails(TypedDict):
    """What a request may ask to be told: `kByRound` of each choice, with the version of the noise."""

    noise: int
    digests: Digests
    kByRound: list[list[int]]


class SpeculationReport(TypedDict):
    """What speculation did for this request, over all its choices; `seed` and `adapter` repeat the answer."""

    revision: str
    arm: Literal["on", "off"]
    verification: str
    seed: int
    rounds: int
    proposed: int
    accepted: int
    rejections: int
    adapter: NotRequired[str]
    """The digest of the one that answered."""
    details: NotRequired[SpeculationDetails]
    """Only where the request asks for them."""


class AlternativeLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(AlternativeLogprob):
    top_logprobs: list[AlternativeLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatLogprob]
    refusal: None


class TextLogprobs(TypedDict):
    """The older endpoint's: four lists of one length. The first token of a prompt has no logprobs."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CallOfFunction(TypedDict):
    name: str
    arguments: str


class WholeCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CallOfFunction


class CallPieceOfFunction(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallPiece(TypedDict):
    """A piece of the call of that index: the first has its id and name, all have more of the arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CallPieceOfFunction


class ChatMessage(TypedDict):
    """`content` None: calls say all."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[WholeCall]]


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[CallPiece]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class TextChoice(TypedDict):
    """A whole choice, or a piece of one, whose `finish_reason` is then null."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class _Head(TypedDict):
    id: str
    created: int
    model: str


class ChatCompletion(_Head):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    speculation: SpeculationReport


class ChatChunk(_Head):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    speculation: NotRequired[SpeculationReport]


class TextCompletion(_Head):
    """Plain answers and chunks have one shape at the older endpoint."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: NotRequired[Usage | None]
    speculation: NotRequired[SpeculationReport]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class ErrorFields(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    error: ErrorFields
