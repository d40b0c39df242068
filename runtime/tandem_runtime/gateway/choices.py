"""Knows one choice of a request: in progress, and what is told and kept of it once it has ended.

Refuses to tell what was asked or said: a record holds no text, and no id of a prompt or an output. Together with its
prompt it repeats the choice: the noise is made of seed, choice and position alone, so what is needed beside them is the
law (models by digest, sampling parameters, verification) and, where the law is not coupled, K by round.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import TypedDict

from tandem_runtime.domain.commands import Finish, Request
from tandem_runtime.domain.noise import VERSION as NOISE
from tandem_runtime.domain.tokens import Drafter, TokenId
from tandem_runtime.gateway.replies import Digests, SpeculationDetails
from tandem_runtime.gateway.seats import Seat

RECORD_VERSION = 1
BANDS = (1, 2, 4, 8, 16, 64)
"""Rejections are counted by their position in the proposal, from 1, up to each of these."""


@dataclass(slots=True)
class Choice:
    """What it asks, where it sits, what it has said so far."""

    request: Request
    seat: Seat
    output: list[TokenId]
    finish: Finish | None = None
    spoke_at: float | None = None
    """When its first token came, by the monotonic clock."""
    ended_at: float | None = None


class Sampling(TypedDict):
    """The numbers among the parameters; the rest is in their digest alone, as it may hold words."""

    temperature: float
    topK: int
    topP: float
    minP: float
    repetitionPenalty: float
    frequencyPenalty: float
    presencePenalty: float
    minTokens: int


class Record(TypedDict):
    """One line of a file of records. Times are seconds, `began` since 1970, when the request came in."""

    version: int
    request: str
    choice: int
    tandem: str
    noise: int
    revision: str
    pod: str
    determinism: str
    digests: Digests
    drafters: list[str]
    verification: str
    seed: int
    sampling: Sampling
    parameters: str
    finish: str
    promptTokens: int
    completionTokens: int
    rounds: int
    proposed: int
    accepted: int
    kByRound: list[int]
    rejections: dict[str, int]
    began: float
    firstTokenSeconds: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Came:
    """When a request came in, by both clocks."""

    wall: float
    monotonic: float


def record_of(choice: Choice, *, request: str, revision: str, came: Came) -> Record | None:
    """What is kept of a choice; None of one that has not ended."""
    if choice.finish is None or choice.ended_at is None:
        return None
    asked, counts = choice.request, choice.finish.counts
    return {
        "version": RECORD_VERSION,
        "request": request,
        "choice": asked.parameters.choice,
        "tandem": _tandem_version(),
        "noise": NOISE,
        "revision": revision,
        "pod": choice.seat.pod,
        "determinism": choice.seat.target.determinism,
        "digests": digests_of(choice),
        "drafters": [drafter.value for drafter in choice.seat.drafters],
        "verification": asked.verification.value,
        "seed": asked.parameters.seed,
        "sampling": _sampling_of(asked),
        "parameters": parameters_digest(asked),
        "finish": choice.finish.reason.value,
        "promptTokens": counts.prompt_tokens,
        "completionTokens": counts.completion_tokens,
        "rounds": counts.rounds,
        "proposed": counts.proposed,
        "accepted": counts.accepted,
        "kByRound": list(counts.k_by_round),
        "rejections": in_bands(counts.rejected_at),
        "began": came.wall,
        "firstTokenSeconds": None if choice.spoke_at is None else choice.spoke_at - came.monotonic,
        "seconds": choice.ended_at - came.monotonic,
    }


def details_of(choices: Sequence[Choice]) -> SpeculationDetails:
    """What a reply tells on demand; of a choice that has not ended, no rounds."""
    ended = [choice.finish and choice.finish.counts.k_by_round for choice in choices]
    return {"noise": NOISE, "digests": digests_of(choices[0]), "kByRound": [list(each or ()) for each in ended]}


def digests_of(choice: Choice) -> Digests:
    """Of all that has a part in the text or its speed."""
    target, draft = choice.seat.target, choice.seat.drafters.get(Drafter.MODEL)
    return {
        "target": target.model_digest,
        "tokenizer": target.tokenizer_digest,
        "draft": None if draft is None else draft.model_digest,
        "adapter": choice.seat.adapter,
    }


def parameters_digest(request: Request) -> str:
    """Of everything that shapes the law or ends the text, but seed and choice, which a record tells."""
    parameters = asdict(replace(request.parameters, seed=0, choice=0))
    ends = request.endings
    told = [parameters, ends.max_tokens, sorted(ends.end_tokens), list(ends.stop)]
    return f"sha256:{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()}"


def in_bands(rejected_at: Sequence[int]) -> dict[str, int]:
    """How many rejections each band of positions has; `3-4` are the third and fourth of a proposal."""
    counts, first = {}, 1
    for last in BANDS:
        name = str(last) if first == last else f"{first}-{last}"
        counts[name] = sum(first <= position + 1 <= last for position in rejected_at)
        first = last + 1
    return counts


def _sampling_of(request: Request) -> Sampling:
    asked = request.parameters
    return {
        "temperature": asked.temperature,
        "topK": asked.top_k,
        "topP": asked.top_p,
        "minP": asked.min_p,
        "repetitionPenalty": asked.repetition_penalty,
        "frequencyPenalty": asked.frequency_penalty,
        "presencePenalty": asked.presence_penalty,
        "minTokens": asked.min_tokens,
    }


@cache
def _tandem_version() -> str:
    return version("tandem")
