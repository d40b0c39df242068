"""The fast sampler equals the plain reference of the domain on random inputs."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain import noise, sampling, verification
from tandem_runtime.domain.errors import BadRequest, NotANumber
from tandem_runtime.domain.noise import Salt
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, SparseRow, Verification
from tandem_runtime.engines import rejection, sampler

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
        fast = sampler.noise_bits(position_key, np.arange(vocab), vocab_size=vocab)
        assert fast.tolist() == [noise.bits(position_key, token) for token in range(vocab)]


@given(st.data())
def test_the_law_after_all_processors_is_the_reference_law(data: st.DataObject) -> None:
    [row] = data.draw(rows())
    given_parameters = data.draw(parameters(vocab=len(row)))
    fast = sampler.distribution(np.array(row), given_parameters)
    plain = sampling.distribution(row, given_parameters)
    assert fast.ids.tolist() == list(plain)
    assert fast.probabilities == pytest.approx(list(plain.values()), rel=1e-9)


@given(st.data(), st.integers(0, 1000))
def test_the_coupled_choice_is_the_reference_choice(data: st.DataObject, position: int) -> None:
    [row] = data.draw(rows())
    given_parameters = data.draw(parameters(vocab=len(row)))
    fast = sampler.coupled_choice(np.array(row), given_parameters, position)
    assert fast == sampling.coupled_choice(row, given_parameters, position)


@given(st.data(), st.integers(0, 1000))
def test_a_coupled_verdict_is_the_reference_verdict(data: st.DataObject, offset: int) -> None:
    table = data.draw(rows(count=4))
    given_parameters = data.draw(parameters(vocab=len(table[0])))
    choices = [sampling.coupled_choice(row, given_parameters, offset + i) for i, row in enumerate(table)]
    proposed = [data.draw(st.sampled_from([choice, 0, 1])) for choice in choices[:3]]
    fast = rejection.verify(
        np.array(table),
        Proposal(tuple(proposed)),
        given_parameters,
        verification=Verification.COUPLED,
        offset=offset,
    )
    assert fast == verification.verify_coupled(proposed, choices)


@given(st.data(), st.integers(0, 1000))
def test_a_rejection_verdict_is_the_reference_verdict(data: st.DataObject, offset: int) -> None:
    table = data.draw(rows(count=4))
    given_parameters = data.draw(parameters(vocab=len(table[0])))
    q = [data.draw(sparse_rows(vocab=len(table[0]))) for _ in range(3)]
    proposed = [data.draw(st.sampled_from(row.ids)) for row in q]
    fast = rejection.verify(
        np.array(table),
        Proposal(tuple(proposed), tuple(q)),
        given_parameters,
        verification=Verification.REJECTION,
        offset=offset,
    )
    assert fast == verification.verify_rejection(
        proposed,
        [verification.law_of(row) for row in q],
        [sampling.distribution(row, given_parameters) for row in table],
        verification.keyed_chance(given_parameters, offset, 3),
    )


@st.composite
def sparse_rows(draw: st.DrawFn, *, vocab: int) -> SparseRow:
    """q over a few tokens in any order, one perhaps outside the vocabulary."""
    ids = draw(st.lists(st.integers(0, vocab), min_size=1, max_size=6, unique=True))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(ids), max_size=len(ids)))
    return SparseRow(tuple(ids), tuple(weight / sum(weights) for weight in weights))


@given(st.data(), st.integers(0, 1000))
def test_a_draft_draws_from_the_law_that_it_sends(data: st.DataObject, position: int) -> None:
    [row] = data.draw(rows())
    asked = data.draw(parameters(vocab=len(row)))
    token, sent = sampler.guess(np.array(row), asked, verification=Verification.REJECTION, position=position)
    assert sent is not None
    assert len(sent.ids) <= sampler.SPARSE
    u = noise.uniform_at(asked.seed, asked.choice, Salt.DRAFT, position)
    assert token == sampling.draw(verification.law_of(sent), u)
    likeliest = sampling.rank(sampling.distribution(row, asked))[: sampler.SPARSE]
    total = sum(weight for _, weight in likeliest)
    assert verification.law_of(sent) == pytest.approx(
        {token: weight / total for token, weight in likeliest}, rel=1e-6, abs=1e-37
    )


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_behind_the_first_rejection_may_be_no_law(temperature: float) -> None:
    parameters = SamplingParameters(seed=1, temperature=temperature)
    rows = np.array([[0.0, 9.0, -9.0], [math.nan] * 3])
    verdict = rejection.verify(rows, Proposal((2,)), parameters, verification=Verification.COUPLED, offset=0)
    assert (verdict.accepted, verdict.token) == (0, 1)
    with pytest.raises(NotANumber):
        rejection.verify(rows, Proposal((1,)), parameters, verification=Verification.COUPLED, offset=0)


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


@pytest.mark.parametrize("q", [None, (), (SparseRow((1,), (1.0,)),), (SparseRow((0, 1), (0.0, 1.0)),)])
def test_a_proposal_without_its_own_probability_is_refused(q: tuple[SparseRow, ...] | None) -> None:
    with pytest.raises(BadRequest) as refusal:
        rejection.verify(
            np.zeros((2, 3)),
            Proposal((0,), q),
            SamplingParameters(seed=1),
            verification=Verification.REJECTION,
            offset=0,
        )
    assert refusal.value.parameter is not None
    assert refusal.value.parameter.startswith("proposal.q")


def test_a_coupled_draft_of_a_large_vocabulary_perturbs_its_likeliest_tokens() -> None:
    row = np.random.default_rng(3).permutation(np.arange(3 * sampler.PERTURBED)) / 1000
    asked = SamplingParameters(seed=4, temperature=1.0)
    kept = np.where(row >= np.sort(row)[-sampler.PERTURBED], row, -math.inf)
    for position in range(10):
        token, _ = sampler.guess(row, asked, verification=Verification.COUPLED, position=position)
        assert token == sampling.coupled_choice(kept.tolist(), asked, position)


def test_float32_rows_are_judged_in_float64() -> None:
    row = np.random.default_rng(3).normal(0, 3, 500).astype(np.float32)
    asked = SamplingParameters(seed=4, temperature=0.7)
    for position in range(50):
        assert sampler.coupled_choice(row, asked, position) == sampling.coupled_choice(row.tolist(), asked, position)
