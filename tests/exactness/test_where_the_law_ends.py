"""Where a request's rules leave no token, the tokens before that place come and the request fails there, whatever is
proposed: at every place of a proposal, for every K, by every rule, on both sides of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from tests.exactness.drafters import Guess, GuessingDraft
from tests.exactness.loops import PATIENT, Answer, Question, Stage, answer_of, exactly, nobody, off, stage_of

from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import FinishReason, SamplingParameters, TokenId, Verification
from tandem_runtime.driver import Engines
from tandem_runtime.testing import reciting

WIDTH = 12
SAID = tuple(range(1, 11))
"""What the target says behind its prompt when no rule keeps it from it: every token once."""
KS = range(1, 9)
PLACES = range(9)
"""How many tokens come before the place at which the rules leave none."""


def ending_after(count: int, *, temperature: float = 0.0, seed: int = 1) -> SamplingParameters:
    """Rules under which nothing may follow the first `count` tokens of `SAID`; with 0, nothing may be said at all."""
    if count == 0:
        return SamplingParameters(
            seed=seed, temperature=temperature, allowed_tokens=(0,), min_tokens=1, end_tokens=(0,)
        )
    last = SAID[count - 1]
    words = tuple((last, after) for after in range(WIDTH))
    return SamplingParameters(seed=seed, temperature=temperature, bad_words=words)


def question(parameters: SamplingParameters, verification: Verification = Verification.COUPLED) -> Question:
    return Question((0,), parameters, Endings(len(SAID)), verification, logprobs=1)


def beyond_all_rules(output: Sequence[TokenId], k: int, _chance: Random) -> list[TokenId]:
    """What the target would say if there were no rules."""
    return list(SAID[len(output) : len(output) + k])


def wrong_at_the_end(output: Sequence[TokenId], k: int, chance: Random) -> list[TokenId]:
    """The same but for its last guess."""
    return [*beyond_all_rules(output, k, chance)[:-1], WIDTH - 1]


GUESSES: dict[str, Guess] = {"beyond all rules": beyond_all_rules, "wrong at the end": wrong_at_the_end}


def engines(stage: Stage, guess: Guess) -> Engines:
    return Engines(stage.targets[0], GuessingDraft(guess, Random(1)), nobody, PATIENT)


async def plain_answer(stage: Stage, asked: Question) -> Answer:
    answer, _ = await answer_of(asked, "plain", stage.engines, off())
    return answer


@pytest.mark.parametrize("place", PLACES)
async def test_every_guess_gives_the_text_of_plain_decoding_up_to_where_the_rules_end_it(place: int) -> None:
    asked = question(ending_after(place))
    async with stage_of(reciting(SAID, width=WIDTH)) as stage:
        plain = await plain_answer(stage, asked)
        found = {
            (name, k): (await answer_of(asked, f"{name} {k}", engines(stage, guess), exactly(k)))[0]
            for name, guess in GUESSES.items()
            for k in KS
        }
    assert plain.tokens == SAID[:place]
    assert len(plain.logprobs) == place
    assert "left no token that may follow" in plain.reason
    assert {case: answer for case, answer in found.items() if answer != plain} == {}


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("place", PLACES)
async def test_a_draft_under_the_same_rules_gives_it_too_by_every_rule(place: int, verification: Verification) -> None:
    """At temperature 0 every rule promises the text. One draft agrees with the target, one is unrelated."""
    asked = question(ending_after(place), verification)
    backwards = reciting(SAID[::-1], width=WIDTH)
    for draft in (reciting(SAID, width=WIDTH), backwards):
        async with stage_of(reciting(SAID, width=WIDTH), draft) as stage:
            plain = await plain_answer(stage, asked)
            found = {k: (await answer_of(asked, f"{k}", stage.engines, exactly(k)))[0] for k in KS}
        assert plain.tokens == SAID[:place]
        assert {k: answer for k, answer in found.items() if answer != plain} == {}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
async def test_coupled_samples_end_where_plain_decoding_ends(temperature: float) -> None:
    """Three tokens of twelve end the text, so that it ends at another place of a proposal with every seed."""
    words = tuple((last, after) for last in (2, 5, 7) for after in range(WIDTH))
    asked = [question(SamplingParameters(seed=seed, temperature=temperature, bad_words=words)) for seed in range(12)]
    level = [0.1 * token for token in range(WIDTH)]
    async with stage_of(lambda _: level, lambda _: level[::-1]) as stage:
        plain = [await plain_answer(stage, one) for one in asked]
        for k in KS:
            found = [(await answer_of(one, f"{k}", stage.engines, exactly(k)))[0] for one in asked]
            assert found == plain
    assert len({len(answer.tokens) for answer in plain}) > 3
    assert {isinstance(answer.reason, FinishReason) for answer in plain} >= {False}


@pytest.mark.parametrize("verification", list(Verification))
async def test_an_ending_before_that_place_is_an_ending(verification: Verification) -> None:
    """The end token itself leads to nothing under these rules; plain decoding never comes to ask."""
    asked = replace(question(ending_after(4), verification), endings=Endings(10, end_tokens=frozenset({SAID[3]})))
    async with stage_of(reciting(SAID, width=WIDTH), reciting(SAID, width=WIDTH)) as stage:
        plain = await plain_answer(stage, asked)
        found = [(await answer_of(asked, f"{k}", stage.engines, exactly(k)))[0] for k in KS]
    assert (plain.tokens, plain.reason) == (SAID[:4], FinishReason.STOP)
    assert found == [plain] * len(KS)
