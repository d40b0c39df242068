from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verification(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_UNSPECIFIED: _ClassVar[Verification]
    VERIFICATION_COUPLED: _ClassVar[Verification]
    VERIFICATION_REJECTION: _ClassVar[Verification]
    VERIFICATION_BLOCK: _ClassVar[Verification]

class Determinism(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETERMINISM_UNSPECIFIED: _ClassVar[Determinism]
    DETERMINISM_BITWISE: _ClassVar[Determinism]
    DETERMINISM_NEAR_TIE: _ClassVar[Determinism]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]
    PRIORITY_BACKGROUND: _ClassVar[Priority]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    ERROR_KIND_BAD_REQUEST: _ClassVar[ErrorKind]
    ERROR_KIND_OVERLOADED: _ClassVar[ErrorKind]
    ERROR_KIND_SESSION_LOST: _ClassVar[ErrorKind]
    ERROR_KIND_STALE_OFFSET: _ClassVar[ErrorKind]
    ERROR_KIND_NOT_A_NUMBER: _ClassVar[ErrorKind]
    ERROR_KIND_INTERNAL: _ClassVar[ErrorKind]
    ERROR_KIND_CANCELLED: _ClassVar[ErrorKind]
    ERROR_KIND_NOT_LOADED: _ClassVar[ErrorKind]
    ERROR_KIND_NOT_SUPPORTED: _ClassVar[ErrorKind]

class GrammarKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAMMAR_KIND_UNSPECIFIED: _ClassVar[GrammarKind]
    GRAMMAR_KIND_JSON_SCHEMA: _ClassVar[GrammarKind]
    GRAMMAR_KIND_REGEX: _ClassVar[GrammarKind]
    GRAMMAR_KIND_CALLS: _ClassVar[GrammarKind]
    GRAMMAR_KIND_LARK: _ClassVar[GrammarKind]
VERIFICATION_UNSPECIFIED: Verification
VERIFICATION_COUPLED: Verification
VERIFICATION_REJECTION: Verification
VERIFICATION_BLOCK: Verification
DETERMINISM_UNSPECIFIED: Determinism
DETERMINISM_BITWISE: Determinism
DETERMINISM_NEAR_TIE: Determinism
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
PRIORITY_BACKGROUND: Priority
ERROR_KIND_UNSPECIFIED: ErrorKind
ERROR_KIND_BAD_REQUEST: ErrorKind
ERROR_KIND_OVERLOADED: ErrorKind
ERROR_KIND_SESSION_LOST: ErrorKind
ERROR_KIND_STALE_OFFSET: ErrorKind
ERROR_KIND_NOT_A_NUMBER: ErrorKind
ERROR_KIND_INTERNAL: ErrorKind
ERROR_KIND_CANCELLED: ErrorKind
ERROR_KIND_NOT_LOADED: ErrorKind
ERROR_KIND_NOT_SUPPORTED: ErrorKind
GRAMMAR_KIND_UNSPECIFIED: GrammarKind
GRAMMAR_KIND_JSON_SCHEMA: GrammarKind
GRAMMAR_KIND_REGEX: GrammarKind
GRAMMAR_KIND_CALLS: GrammarKind
GRAMMAR_KIND_LARK: GrammarKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("model_digest", "tokenizer_digest", "vocab_size", "max_length", "determinism", "verifications", "adapters")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DETERMINISM_FIELD_NUMBER: _ClassVar[int]
    VERIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    tokenizer_digest: str
    vocab_size: int
    max_length: int
    determinism: Determinism
    verifications: _containers.RepeatedScalarFieldContainer[Verification]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, model_digest: _Optional[str] = ..., tokenizer_digest: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_length: _Optional[int] = ..., determinism: _Optional[_Union[Determinism, str]] = ..., verifications: _Optional[_Iterable[_Union[Verification, str]]] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest", "rank", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    rank: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., rank: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Requests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    def __init__(self, requests: _Optional[_Iterable[_Union[Request, _Mapping]]] = ...) -> None: ...

class Replies(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[Reply]
    def __init__(self, replies: _Optional[_Iterable[_Union[Reply, _Mapping]]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("call", "session", "incarnation", "open", "verify", "run", "propose", "score", "cancel", "close", "read_prompt")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    READ_PROMPT_FIELD_NUMBER: _ClassVar[int]
    call: int
    session: int
    incarnation: str
    open: Open
    verify: Verify
    run: Run
    propose: Propose
    score: Score
    cancel: Cancel
    close: Close
    read_prompt: ReadPrompt
    def __init__(self, call: _Optional[int] = ..., session: _Optional[int] = ..., incarnation: _Optional[str] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., verify: _Optional[_Union[Verify, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., propose: _Optional[_Union[Propose, _Mapping]] = ..., score: _Optional[_Union[Score, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., read_prompt: _Optional[_Union[ReadPrompt, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("call", "opened", "verdict", "ended", "proposal", "scored", "failure", "prompt_read")
    CALL_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_READ_FIELD_NUMBER: _ClassVar[int]
    call: int
    opened: Opened
    verdict: Verdict
    ended: Ended
    proposal: Proposal
    scored: Scored
    failure: Failure
    prompt_read: PromptRead
    def __init__(self, call: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., scored: _Optional[_Union[Scored, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., prompt_read: _Optional[_Union[PromptRead, _Mapping]] = ...) -> None: ...

class SamplingParameters(_message.Message):
    __slots__ = ("seed", "choice", "temperature", "top_k", "top_p", "min_p", "bias_ids", "bias_values", "grammar", "allowed_tokens", "bad_words", "min_tokens", "end_tokens", "repetition_penalty", "frequency_penalty", "presence_penalty")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    seed: int
    choice: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    bias_values: _containers.RepeatedScalarFieldContainer[float]
    grammar: Grammar
    allowed_tokens: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedCompositeFieldContainer[Word]
    min_tokens: int
    end_tokens: _containers.RepeatedScalarFieldContainer[int]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    def __init__(self, seed: _Optional[int] = ..., choice: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., bias_values: _Optional[_Iterable[float]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., allowed_tokens: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., min_tokens: _Optional[int] = ..., end_tokens: _Optional[_Iterable[int]] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: GrammarKind
    text: str
    def __init__(self, kind: _Optional[_Union[GrammarKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("prompt", "output", "parameters", "verification", "max_tokens", "logprobs", "tenant", "adapter", "priority", "weight")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    parameters: SamplingParameters
    verification: Verification
    max_tokens: int
    logprobs: int
    tenant: str
    adapter: str
    priority: Priority
    weight: float
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., parameters: _Optional[_Union[SamplingParameters, _Mapping]] = ..., verification: _Optional[_Union[Verification, str]] = ..., max_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., weight: _Optional[float] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("incarnation", "cached_tokens")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    cached_tokens: int
    def __init__(self, incarnation: _Optional[str] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class SparseRow(_message.Message):
    __slots__ = ("ids", "probabilities")
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class Verify(_message.Message):
    __slots__ = ("round", "offset", "ids", "q", "survivals")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    SURVIVALS_FIELD_NUMBER: _ClassVar[int]
    round: int
    offset: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[SparseRow]
    survivals: bytes
    def __init__(self, round: _Optional[int] = ..., offset: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[SparseRow, _Mapping]]] = ..., survivals: _Optional[bytes] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("round", "offset", "max_tokens")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    round: int
    offset: int
    max_tokens: int
    def __init__(self, round: _Optional[int] = ..., offset: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("base", "committed", "k", "stop", "outlook")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    base: int
    committed: _containers.RepeatedScalarFieldContainer[int]
    k: int
    stop: Stop
    outlook: Outlook
    def __init__(self, base: _Optional[int] = ..., committed: _Optional[_Iterable[int]] = ..., k: _Optional[int] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., outlook: _Optional[_Union[Outlook, _Mapping]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("least_basis_points", "acceptance")
    LEAST_BASIS_POINTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    least_basis_points: int
    acceptance: bytes
    def __init__(self, least_basis_points: _Optional[int] = ..., acceptance: _Optional[bytes] = ...) -> None: ...

class Outlook(_message.Message):
    __slots__ = ("survivals_basis_points", "branches", "enough")
    SURVIVALS_BASIS_POINTS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    ENOUGH_FIELD_NUMBER: _ClassVar[int]
    survivals_basis_points: _containers.RepeatedScalarFieldContainer[int]
    branches: int
    enough: int
    def __init__(self, survivals_basis_points: _Optional[_Iterable[int]] = ..., branches: _Optional[int] = ..., enough: _Optional[int] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("base", "ids")
    BASE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    base: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, base: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("logprob", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class ReadPrompt(_message.Message):
    __slots__ = ("base", "count", "alternatives")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    base: int
    count: int
    alternatives: int
    def __init__(self, base: _Optional[int] = ..., count: _Optional[int] = ..., alternatives: _Optional[int] = ...) -> None: ...

class PromptRead(_message.Message):
    __slots__ = ("logprobs",)
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "offset", "accepted", "token", "logprobs", "queue_microseconds", "forward_microseconds", "kv_used_basis_points", "credits_basis_points", "rows", "unjudged", "beside")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_BASIS_POINTS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_BASIS_POINTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    UNJUDGED_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    round: int
    offset: int
    accepted: int
    token: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    queue_microseconds: int
    forward_microseconds: int
    kv_used_basis_points: int
    credits_basis_points: _containers.RepeatedScalarFieldContainer[int]
    rows: int
    unjudged: int
    beside: int
    def __init__(self, round: _Optional[int] = ..., offset: _Optional[int] = ..., accepted: _Optional[int] = ..., token: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., queue_microseconds: _Optional[int] = ..., forward_microseconds: _Optional[int] = ..., kv_used_basis_points: _Optional[int] = ..., credits_basis_points: _Optional[_Iterable[int]] = ..., rows: _Optional[int] = ..., unjudged: _Optional[int] = ..., beside: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("ids", "q", "draft_microseconds", "rows", "confidences", "ahead")
    IDS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[SparseRow]
    draft_microseconds: int
    rows: int
    confidences: bytes
    ahead: Ahead
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[SparseRow, _Mapping]]] = ..., draft_microseconds: _Optional[int] = ..., rows: _Optional[int] = ..., confidences: _Optional[bytes] = ..., ahead: _Optional[_Union[Ahead, _Mapping]] = ...) -> None: ...

class Ahead(_message.Message):
    __slots__ = ("hit", "wasted")
    HIT_FIELD_NUMBER: _ClassVar[int]
    WASTED_FIELD_NUMBER: _ClassVar[int]
    hit: bool
    wasted: int
    def __init__(self, hit: _Optional[bool] = ..., wasted: _Optional[int] = ...) -> None: ...

class Scored(_message.Message):
    __slots__ = ("matches",)
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, matches: _Optional[_Iterable[bool]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "parameter", "retry_after_seconds")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    message: str
    parameter: str
    retry_after_seconds: int
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., message: _Optional[str] = ..., parameter: _Optional[str] = ..., retry_after_seconds: _Optional[int] = ...) -> None: ...
