"""The online check: which answers are replayed, and what a replay proves."""

from dataclasses import replace

import pytest

from tandem_runtime.domain.errors import StaleOffset
from tandem_runtime.domain.policy import ExactnessPolicy
from tandem_runtime.domain.replay import Replay, Result, Tally, is_comparable, is_sampled
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    Priority,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verdict,
    Verification,
)

LIFE = Incarnation("life")
ASKED = OpenSession(
    session=SessionId("s-0"),
    prompt=(1, 2),
    output=(),
    parameters=SamplingParameters(seed=7, temperature=1.0),
    verification=Verification.COUPLED,
    max_tokens=90,
    logprobs=3,
)
ANSWER = tuple(range(40))


def tell(replay: Replay, said: tuple[TokenId, ...]) -> None:
    for offset, token in enumerate(said, start=replay.equal):
        replay.told(Verdict(offset, offset, 0, token))


def test_a_replay_asks_for_the_same_answer_without_speculation_and_without_logprobs() -> None:
    replay = Replay(ASKED, ANSWER)
    again = replace(ASKED, session=SessionId("s-0-replay"), max_tokens=40, logprobs=None, priority=Priority.BACKGROUND)
    assert replay.opening() == again
    assert replay.run(LIFE) == RunRounds(SessionId("s-0-replay"), LIFE, 0, 0, 16)
    assert (replay.tokens, replay.over) == (42, False)


def test_a_replay_that_gave_way_goes_on_from_the_tokens_found_equal() -> None:
    replay = Replay(ASKED, ANSWER)
    tell(replay, ANSWER[:30])
    assert replay.opening().output == ANSWER[:30]
    assert replay.run(LIFE) == RunRounds(SessionId("s-0-replay"), LIFE, 30, 30, 10)
    tell(replay, ANSWER[30:])
    assert (replay.equal, replay.over, replay.result("Bitwise")) == (40, True, Result.EQUAL)


@pytest.mark.parametrize("position", [0, 1, 17, 39])
def test_the_first_difference_ends_a_replay_and_is_its_position(position: int) -> None:
    replay = Replay(ASKED, ANSWER)
    tell(replay, (*ANSWER[:position], 99))
    assert (replay.equal, replay.over) == (position, True)
    assert [replay.result(told) for told in ("Bitwise", "NearTie")] == [Result.DIFFERENT, Result.UNCERTAIN]
    with pytest.raises(StaleOffset):
        tell(replay, ANSWER[position : position + 1])


@pytest.mark.parametrize("verdict", [Verdict(0, 1, 0, 0), Verdict(0, 0, 1, 0)])
def test_a_verdict_on_another_place_proves_nothing(verdict: Verdict) -> None:
    replay = Replay(ASKED, ANSWER)
    with pytest.raises(StaleOffset, match="offset 0"):
        replay.told(verdict)
    assert (replay.equal, replay.over) == (0, False)


@pytest.mark.parametrize(
    ("verification", "temperature", "comparable"),
    [
        (Verification.COUPLED, 0.0, True),
        (Verification.COUPLED, 1.5, True),
        (Verification.REJECTION, 0.0, True),
        (Verification.REJECTION, 0.3, False),
    ],
)
def test_only_answers_whose_ids_are_promised_are_compared(
    verification: Verification, temperature: float, comparable: bool
) -> None:
    asked = replace(ASKED, verification=verification, parameters=SamplingParameters(7, temperature=temperature))
    assert is_comparable(asked) is comparable


def test_every_verification_but_coupled_is_compared_at_temperature_zero_alone() -> None:
    for verification in set(Verification) - {Verification.COUPLED}:
        assert not is_comparable(replace(ASKED, verification=verification))


@pytest.mark.parametrize("basis_points", [0, 100, 2500, 10_000])
def test_the_share_that_is_sampled_is_the_policys(basis_points: int) -> None:
    policy = ExactnessPolicy(basis_points)
    count = sum(is_sampled(SessionId(f"cmpl-{number}-0"), policy) for number in range(20_000))
    error = 4 * (20_000 * basis_points / 1e4 * (1 - basis_points / 1e4)) ** 0.5
    assert abs(count - 2 * basis_points) <= error


def test_a_tally_counts_each_result_by_its_name() -> None:
    tally = Tally()
    for times, result in enumerate(Result, start=1):
        for _ in range(times):
            tally.add(result)
    assert tally == Tally(equal=1, different=2, uncertain=3, skipped=4, dropped=5, failed=6)
