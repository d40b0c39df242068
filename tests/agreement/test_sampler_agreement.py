"""The fast sampler equals the plain reference of the domain on random inputs."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain import noise, sampling, verification
from tandem_runtime.domain.errors import NotANumber
from tandem_runtime.domain.noise import Salt
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, Verification
from tandem_runtime.engines import noise_words, rejection, sampler

WORDS = st.integers(0, 2**64 - 1)
LOGITS = st.one_of(st.integers(-4, 4).map(float), st.floats(-30, 30), st.just(-math.inf))


@st.composite
def rows(draw: st.DrawFn, *, count: int = 1) -> list[list[float]]:
    """`count` rows of one vocabulary, ties and forbidden tokens included, none forbidden whole."""
    vocab = draw(st.integers(2, 90))
    row = st.lists(LOGITS, min_size=vocab, max_size=vocab).filter(lambda row: max(row) > -math.inf)
    return draw(st.lists(row, min_size=count, max_size=count))


@st.composite
def parameters(draw: st.DrawFn, *, vocab: int) -> SamplingParameters:
    bias = draw(st.dictionaries(st.integers(0, vocab - 1), st.floats(-50, 50), max_size=3))
    return SamplingParameters(
        seed=draw(WORDS),
        choice=draw(st.integers(0, 7)),
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 1000])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.05])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.4, 1.0])),
        logit_bias=tuple(sorted(bias.items())),
    )


@given(seed=WORDS, choice=st.integers(0, 2**32 - 1), position=st.integers(0, 10**6), vocab=st.integers(1, 300))
def test_noise_integers_are_equal_bit_for_bit(seed: int, choice: int, position: int, vocab: int) -> None:
    for salt in Salt:
        position_key = noise.key(seed, choice, salt, position)
        fast = noise_words.noise_bits(position_key, np.arange(vocab), vocab_size=vocab)
        assert fast.tolist() == [noise.bits(position_key, token) for token in range(vocab)]


@given(st.data())
def test_the_law_after_all_processors_is_the_reference_law(data: st.DataObject) -> None:
    [row] = data.draw(rows())
    given_parameters = data.draw(parameters(vocab=len(row)))
    fast = sampler.distribution(np.array(row), given_parameters)
    plain = sampling.distribution(row, given_parameters)
    assert fast.ids.tolist() == list(plain)
    assert fast.probabilities == pytest.approx(list(plain.values()), rel=1e-9)


LEVEL = np.random.default_rng(5).uniform(-1, 1, 24).round(1).tolist()
"""A row in which no token has most of the mass, so that every filter takes something from what the others left."""


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_every_filter_sees_what_the_ones_before_it_left(temperature: float) -> None:
    for top_k, top_p, min_p in product((0, 1, 2, 5, 12, 24), (0.05, 0.3, 0.5, 0.8, 0.95, 1.0), (0.0, 0.3, 0.7, 1.0)):
        asked = SamplingParameters(seed=0, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        fast, plain = sampler.distribution(np.array(LEVEL), asked), sampling.distribution(LEVEL, asked)
        assert fast.ids.tolist() == list(plain), asked
        assert fast.probabilities == pytest.approx(list(plain.values()), rel=1e-9)


@given(st.data(), st.integers(0, 1000))
def test_the_coupled_choice_is_the_reference_choice(data: st.DataObject, position: int) -> None:
    [row] = data.draw(rows())
    given_parameters = data.draw(parameters(vocab=len(row)))
    fast = sampler.coupled_choice(np.array(row), given_parameters, position)
    assert fast == sampling.coupled_choice(row, given_parameters, position)


@given(
    st.data(), st.integers(8, 1000), st.integers(0, 8), st.sampled_from([Verification.REJECTION, Verification.BLOCK])
)
def test_a_draft_draws_from_the_law_that_it_sends(
    data: st.DataObject, position: int, ahead: int, mode: Verification
) -> None:
    [row] = data.draw(rows())
    asked = data.draw(parameters(vocab=len(row)))
    token, sent = sampler.guess(np.array(row), asked, verification=mode, position=position, ahead=ahead)
    assert sent is not None
    assert len(sent.ids) <= sampler.SPARSE
    u = verification.round_uniform(asked, Salt.DRAFT, position - ahead, ahead)
    assert token == sampling.draw(dict(sorted(zip(sent.ids, sent.probabilities, strict=True))), u)
    likeliest = sampling.rank(sampling.distribution(row, asked))[: sampler.SPARSE]
    total = sum(weight for _, weight in likeliest)
    assert verification.law_of(sent) == pytest.approx(
        {token: weight / total for token, weight in likeliest}, rel=1e-6, abs=1e-37
    )


@pytest.mark.parametrize("mode", [Verification.REJECTION, Verification.BLOCK])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_a_draft_draws_from_the_law_that_it_sends_wherever_u_falls(mode: Verification, temperature: float) -> None:
    asked = SamplingParameters(seed=0, temperature=temperature)
    for position in range(200):
        token, sent = sampler.guess(np.array(LEVEL), asked, verification=mode, position=position)
        assert sent is not None
        u = verification.round_uniform(asked, Salt.DRAFT, position, 0)
        assert token == sampling.draw(dict(zip(sent.ids, sent.probabilities, strict=True)), u), position


@given(st.data(), st.integers(0, 1000))
def test_a_coupled_draft_that_can_perturb_all_tokens_makes_the_target_choice(
    data: st.DataObject, position: int
) -> None:
    [row] = data.draw(rows())
    asked = data.draw(parameters(vocab=len(row)))
    token, sent = sampler.guess(np.array(row), asked, verification=Verification.COUPLED, position=position)
    assert sent is None
    assert token == sampling.coupled_choice(row, asked, position)


@given(st.data())
def test_logprobs_are_those_of_the_raw_logits(data: st.DataObject) -> None:
    [row] = data.draw(rows())
    token = data.draw(st.integers(0, len(row) - 1))
    told = sampler.report_logprob(np.array(row), token, alternatives=3)
    total = math.log(sum(math.exp(logit) for logit in row))
    ranked = sorted(range(len(row)), key=lambda other: (-row[other], other))
    assert told.logprob == pytest.approx(row[token] - total, abs=1e-9)
    assert [other for other, _ in told.top] == ranked[:3]
    assert [value for _, value in told.top] == pytest.approx([row[other] - total for other in ranked[:3]], abs=1e-9)


@pytest.mark.parametrize(
    "row", [[0.0, math.nan, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3], ids=["NaN", "+inf", "nothing"]
)
@pytest.mark.parametrize("mode", list(Verification))
def test_a_row_without_a_law_is_refused_by_both(row: Sequence[float], mode: Verification) -> None:
    asked = SamplingParameters(seed=1)
    with pytest.raises(NotANumber):
        sampling.distribution(row, asked)
    with pytest.raises(NotANumber):
        rejection.verify(np.array([row]), Proposal(), asked, verification=mode, offset=0)
    with pytest.raises(NotANumber):
        sampler.guess(np.array(row), asked, verification=mode, position=0)


def test_a_coupled_draft_guesses_what_its_target_would_choose_from_the_same_row() -> None:
    row = np.random.default_rng(3).permutation(np.arange(12_000)) / 1000
    asked = SamplingParameters(seed=4, temperature=1.0)
    for position in range(10):
        token, q = sampler.guess(row, asked, verification=Verification.COUPLED, position=position)
        assert (token, q) == (sampling.coupled_choice(row.tolist(), asked, position), None)


def test_float32_rows_are_judged_in_float64() -> None:
    row = np.random.default_rng(3).normal(0, 3, 500).astype(np.float32)
    asked = SamplingParameters(seed=4, temperature=0.7)
    for position in range(50):
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)
