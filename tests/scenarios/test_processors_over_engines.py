"""Request parameters hold at every position, whatever the draft proposes and however many tokens at a time."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from tandem_runtime.domain.cells import Lookahead
from tandem_runtime.domain.commands import Emit, Finish, Request
from tandem_runtime.domain.errors import BadRequest, NothingAdmitted
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import (
    FinishReason,
    Incarnation,
    Round,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
)
from tandem_runtime.driver import Engines, generate
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import TargetEngine
from tandem_runtime.testing import constant, reciting

FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))
KS = [OFF, *(Bounds(k, k, Mode.ALWAYS) for k in (1, 2, 4, 8))]
EVERY_WAY = [(bounds, verification) for bounds in KS for verification in Verification]
GREEDY = SamplingParameters(seed=1, temperature=0.0)


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass
class Kept:
    rounds: list[Round] = field(default_factory=list)

    def round(self, round: Round) -> None:
        self.rounds.append(round)


@dataclass(frozen=True, slots=True)
class Answer:
    ids: tuple[TokenId, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class Pair:
    target: Script
    draft: Script
    facts: EngineFacts = FACTS


def asks(
    parameters: SamplingParameters,
    *,
    max_tokens: int,
    end_tokens: Sequence[TokenId] = (),
    verification: Verification = Verification.COUPLED,
) -> Request:
    return Request(
        session=SessionId(f"{parameters.seed}-{parameters.grammar is None}"),
        prompt=(0,),
        parameters=parameters,
        verification=verification,
        endings=Endings(max_tokens, frozenset(end_tokens)),
        decode=lambda ids: "".join(map(str, ids)),
        target_length=4096,
        draft_length=4096,
    )


async def answers(pair: Pair, requests: Sequence[Request], bounds: Bounds) -> tuple[list[Answer | Exception], int]:
    """What each of the requests, served together, came to; and how many tokens were proposed."""
    observer, room = Kept(), len(requests)
    with (
        BatchedTarget(ScriptedModel(pair.target, max_sessions=room), pair.facts, clock=SystemClock()) as target,
        BatchedDraft(ScriptedModel(pair.draft, max_sessions=room), pair.facts, clock=SystemClock()) as drafter,
    ):

        async def nobody() -> TargetEngine:
            raise AssertionError("no target is lost here")

        async def answer(request: Request) -> Answer:
            items = generate(
                Session(request),
                engines=Engines(target, drafter, nobody),
                lookahead=Lookahead(),
                allowance=lambda: bounds,
                observer=observer,
                clock=SystemClock(),
            )
            ids: list[TokenId] = []
            async with aclosing(items) as stream:
                async for item in stream:
                    if isinstance(item, Finish):
                        return Answer(tuple(ids), item)
                    assert isinstance(item, Emit)
                    ids += item.tokens
            raise AssertionError("a stream ends by a Finish")

        found = await asyncio.gather(*map(answer, requests), return_exceptions=True)
    told: list[Answer | Exception] = []
    for each in found:
        assert isinstance(each, Answer | Exception)
        told.append(each)
    return told, sum(round.proposed for round in observer.rounds)


async def answer_of(pair: Pair, request: Request, bounds: Bounds) -> Answer:
    ([answer], proposed) = await answers(pair, [request], bounds)
    assert isinstance(answer, Answer), answer
    assert (proposed > 0) is (bounds is not OFF)
    return answer


LOGS_C03 = [-0.6931471805599453, -1.2039728043259361, -1.6094379124341003]  # the logarithms of .5, .3, .2
MINDS_OTHERWISE = [-1.6094379124341003, -1.6094379124341003, -0.5108256237659907]  # of .2, .2, .6


@pytest.mark.parametrize(("bounds", "verification"), EVERY_WAY, ids=str)
@pytest.mark.parametrize("changes", [{"min_p": 0.5}, {"logit_bias": ((2, -100.0),)}], ids=str)
async def test_a_request_parameter_holds_at_every_position(
    bounds: Bounds, verification: Verification, changes: dict[str, object]
) -> None:
    """C03 (vLLM #42744): min-p and bias once reached the bonus token only."""
    pair = Pair(constant(LOGS_C03), constant(MINDS_OTHERWISE))
    requests = [
        asks(
            replace(SamplingParameters(seed=seed), **changes),  # type: ignore[arg-type]  # a row names real fields
            max_tokens=64,
            verification=verification,
        )
        for seed in range(16)
    ]
    found, proposed = await answers(pair, requests, bounds)
    assert [answer for answer in found if not isinstance(answer, Answer)] == []
    counts = Counter(token for answer in found if isinstance(answer, Answer) for token in answer.ids)
    assert set(counts) == {0, 1}
    assert counts.total() == 16 * 64
    # 1024 draws at .625: five standard errors are .076.
    assert abs(counts[0] / counts.total() - 0.625) < 0.076
    assert (proposed > 0) is (bounds is not OFF)


A_OR_B = Pair(constant([3.0, 2.5, -10.0]), constant([9.0, 0.0, 0.0]))


@pytest.mark.parametrize(("bounds", "verification"), EVERY_WAY, ids=str)
async def test_penalties_count_tokens_and_never_rounds(bounds: Bounds, verification: Verification) -> None:
    """C04 (SGLang PR 33643): the better the draft, the weaker the penalty once was."""
    asked = replace(GREEDY, frequency_penalty=1.0)
    answer = await answer_of(A_OR_B, asks(asked, max_tokens=12, verification=verification), bounds)
    assert answer.ids == (0, 1) * 6


REPEATS: list[tuple[dict[str, object], tuple[TokenId, ...]]] = [
    # 0 is the prompt. Logits 3, 2.5, -10.
    ({"repetition_penalty": 2.0}, (1, 0, 0, 0, 0, 0)),
    ({"presence_penalty": 1.0}, (0, 1, 0, 0, 0, 0)),
    ({"bad_words": ((0, 0), (1, 1))}, (0, 1, 0, 1, 0, 1)),
    ({"bad_words": ((0, 0, 0),)}, (0, 0, 1, 0, 0, 1)),
    ({"allowed_tokens": (1, 2)}, (1, 1, 1, 1, 1, 1)),
    ({"bad_words": ((0,),)}, (1, 1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize(("changes", "expected"), REPEATS, ids=str)
@pytest.mark.parametrize(("bounds", "verification"), EVERY_WAY, ids=str)
async def test_every_rule_gives_the_same_greedy_ids_for_every_k(
    bounds: Bounds, verification: Verification, changes: dict[str, object], expected: tuple[TokenId, ...]
) -> None:
    asked = replace(GREEDY, **changes)  # type: ignore[arg-type]  # a row names real fields
    answer = await answer_of(A_OR_B, asks(asked, max_tokens=6, verification=verification), bounds)
    assert answer.ids == expected


@pytest.mark.parametrize(("bounds", "verification"), EVERY_WAY, ids=str)
async def test_min_tokens_counts_tokens_and_never_rounds(bounds: Bounds, verification: Verification) -> None:
    """C04: five A, then the end token, which counts as a token of the completion."""
    end, a = 1, 0
    asked = replace(GREEDY, min_tokens=5, end_tokens=(end,))
    pair = Pair(constant([3.0, 5.0, -10.0]), constant([9.0, 0.0, 0.0]))
    request = asks(asked, max_tokens=64, end_tokens=(end,), verification=verification)
    answer = await answer_of(pair, request, bounds)
    assert answer.ids == (a,) * 5 + (end,)
    assert answer.finish.reason is FinishReason.STOP
    assert answer.finish.counts.completion_tokens == 6


@pytest.mark.parametrize("bounds", KS[1:], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.5])
async def test_coupled_samples_under_all_rules_are_those_of_plain_decoding(bounds: Bounds, temperature: float) -> None:
    logits = [0.5, 0.3, 0.1, 0.0, -0.2, -0.4]
    pair = Pair(constant(logits), reciting((3, 1, 4), width=6))
    requests = [
        asks(
            SamplingParameters(
                seed=seed,
                temperature=temperature,
                top_k=5,
                top_p=0.95,
                min_p=0.01,
                logit_bias=((1, 0.5),),
                allowed_tokens=(0, 1, 2, 3, 4),
                bad_words=((2, 2), (4, 0)),
                min_tokens=6,
                end_tokens=(3,),
                repetition_penalty=1.2,
                frequency_penalty=0.3,
                presence_penalty=-0.2,
            ),
            max_tokens=24,
            end_tokens=(3,),
        )
        for seed in range(20)
    ]
    plain, _ = await answers(pair, requests, OFF)
    found, proposed = await answers(pair, requests, bounds)
    assert [answer.ids for answer in found if isinstance(answer, Answer)] == [
        answer.ids for answer in plain if isinstance(answer, Answer)
    ]
    assert proposed > 0
    assert all(isinstance(answer, Answer) for answer in plain)


async def test_rules_that_leave_no_token_fail_their_own_request_and_no_other() -> None:
    pair = Pair(constant([1.0, 0.0]), constant([1.0, 0.0]))
    blocked = replace(GREEDY, seed=2, bad_words=((0, 0), (0, 1)))
    found, _ = await answers(pair, [asks(blocked, max_tokens=4), asks(GREEDY, max_tokens=4)], KS[3])
    failed, served = found
    assert isinstance(failed, NothingAdmitted)
    assert failed.parameter == "bad_words"
    assert isinstance(served, Answer)
    assert served.ids == (0, 0, 0, 0)


async def test_parameters_that_the_target_cannot_follow_are_refused_at_its_door() -> None:
    found, _ = await answers(A_OR_B, [asks(replace(GREEDY, allowed_tokens=(7,)), max_tokens=4)], OFF)
    assert isinstance(found[0], BadRequest)
    assert found[0].parameter == "allowed_token_ids"
