"""The fast verifier equals the plain reference on random inputs: all modes, ragged rounds, dtypes, rows without law."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain import sampling, verification
from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.errors import BadRequest, NotANumber, TandemError
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, SparseRow, TokenId, Verification
from tandem_runtime.domain.verification import Verified
from tandem_runtime.engines import rejection
from tandem_runtime.ports import Logits

RULES = {Verification.REJECTION: verification.verify_rejection, Verification.BLOCK: verify_block}


DTYPES: dict[str, Callable[[Logits], Logits]] = {
    "float64": lambda rows: rows,
    "float32": lambda rows: rows.astype(np.float32),
    "float16": lambda rows: rows.astype(np.float16),
    "bfloat16": lambda rows: torch.tensor(rows).to(torch.bfloat16).to(torch.float32).numpy(),
}
"""What an engine hands over; bfloat16 has no numpy type, and goes by float32 with its own rounding."""


@dataclass(frozen=True)
class Round:
    """One session's part of a step. `rows` [K + 1, vocab]; K differs from session to session."""

    rows: Logits
    proposal: Proposal
    parameters: SamplingParameters
    mode: Verification
    offset: int


def of_reference(round: Round) -> Verified:
    rows = [list(map(float, row)) for row in round.rows]
    asked, offset = round.parameters, round.offset
    ids, q = round.proposal.ids, [verification.law_of(row) for row in round.proposal.q or ()]

    def judge(k: int) -> Verified:
        if round.mode is Verification.COUPLED:
            choices = Lazily(lambda at: sampling.coupled_choice(rows[at], asked, offset + at), k + 1)
            return verification.verify_coupled(ids[:k], choices)
        laws = Lazily(lambda at: sampling.distribution(rows[at], asked), k + 1)
        return RULES[round.mode](ids[:k], q[:k], laws, verification.keyed_chance(asked, offset, k))

    return verification.judged_to_the_last_law(ids, judge, lambda at: all(x < math.inf for x in rows[at]))


class Lazily(Sequence):  # type: ignore[type-arg]  # holds whatever its maker gives
    """Made when looked at, so that a row without a law that is not looked at does no harm."""

    def __init__(self, make: Callable[[int], object], length: int) -> None:
        self._make, self._length = make, length

    def __getitem__(self, at: int) -> object:  # type: ignore[override]  # no slice is ever taken
        return self._make(at)

    def __len__(self) -> int:
        return self._length


def of_engine(round: Round) -> Verified:
    return rejection.verify(round.rows, round.proposal, round.parameters, verification=round.mode, offset=round.offset)


def outcome(verify: Callable[[Round], Verified], round: Round) -> Verified | type[TandemError]:
    try:
        return verify(round)
    except TandemError as refused:
        return type(refused)


@st.composite
def parameters(draw: st.DrawFn, *, vocab: int) -> SamplingParameters:
    bias = draw(st.dictionaries(st.integers(0, vocab - 1), st.floats(-50, 50), max_size=3))
    return SamplingParameters(
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 7)),
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 1000])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.05])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.4, 1.0])),
        logit_bias=tuple(sorted(bias.items())),
    )


@st.composite
def sparse_rows(draw: st.DrawFn, *, vocab: int) -> SparseRow:
    """q over a few tokens in any order, as the wire carries it; sometimes one-hot."""
    ids = draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6, unique=True))
    weights = draw(st.lists(st.floats(0.01, 1), min_size=len(ids), max_size=len(ids)))
    return SparseRow(tuple(ids), tuple(float(np.float32(weight / sum(weights))) for weight in weights))


def random_rows(seed: int, count: int, vocab: int) -> Logits:
    """Rows with ties, wide, narrow and level ones, and forbidden tokens; none is forbidden whole. Drawn here and not
    number by number, which would take most of the test's time."""
    chance = np.random.default_rng(seed)
    wide, narrow = chance.uniform(-30, 30, (count, vocab)), chance.integers(-4, 5, (count, vocab)).astype(np.float64)
    rows = np.where(chance.random((count, 1)) < 0.5, wide, narrow)
    rows[chance.random((count, vocab)) < 0.2] = -math.inf
    rows[np.arange(count), chance.integers(0, vocab, count)] = 1.0
    level = chance.random(count) < 0.3
    rows[level] = chance.uniform(-1, 1, (int(level.sum()), vocab))
    return rows


@st.composite
def rounds(draw: st.DrawFn, *, mode: Verification, vocab: int) -> Round:
    k = draw(st.integers(0, 5))
    rows = random_rows(draw(st.integers(0, 2**32 - 1)), k + 1, vocab)
    rows = DTYPES[draw(st.sampled_from(sorted(DTYPES)))](rows)
    asked, offset = draw(parameters(vocab=vocab)), draw(st.integers(0, 1000))
    if mode is Verification.COUPLED:
        choices = [sampling.coupled_choice(list(map(float, row)), asked, offset + at) for at, row in enumerate(rows)]
        ids: list[TokenId] = [draw(st.sampled_from([choice, 0, 1])) for choice in choices[:k]]
        return Round(rows, Proposal(tuple(ids)), asked, mode, offset)
    q = [draw(draft_rows(rows[at], asked)) for at in range(k)]
    ids = [draw(st.sampled_from(row.ids)) for row in q]
    return Round(rows, Proposal(tuple(ids), tuple(q)), asked, mode, offset)


@st.composite
def draft_rows(draw: st.DrawFn, row: Sequence[float], asked: SamplingParameters) -> SparseRow:
    """What a draft may have drawn from: the target's law, something near it, or anything."""
    match draw(st.sampled_from(["near", "skewed", "any"])):
        case "near":
            return near(row, asked)
        case "skewed":
            return skewed(row, asked, draw(st.integers(0, 2**32 - 1)))
    return draw(sparse_rows(vocab=len(row)))


def skewed(row: Sequence[float], asked: SamplingParameters, seed: int) -> SparseRow:
    """The target's law without its filters, each weight changed by up to four times: much of it stands, much is
    rejected, and what is left over for the token that follows depends on all of q."""
    unfiltered = replace(asked, temperature=asked.temperature or 1.0, top_k=0, top_p=1.0, min_p=0.0)
    law = sampling.distribution(list(map(float, row)), unfiltered)
    factors = np.exp(np.random.default_rng(seed).uniform(-1.4, 1.4, len(law)))
    weights = {token: mass * factor for (token, mass), factor in zip(law.items(), factors.tolist(), strict=True)}
    total = sum(weights.values())
    sent = {token: float(np.float32(weight / total)) for token, weight in weights.items()}
    kept = {token: mass for token, mass in sent.items() if mass > 0}
    return SparseRow(tuple(kept), tuple(kept.values()))


def near(row: Sequence[float], asked: SamplingParameters) -> SparseRow:
    """The target's own law, as the wire would carry it: every token then stands, or nearly."""
    law = sampling.distribution(list(map(float, row)), asked)
    sent = {token: float(np.float32(mass)) for token, mass in law.items()}
    kept = {token: mass for token, mass in sent.items() if mass > 0}
    return SparseRow(tuple(kept), tuple(kept.values()))


@pytest.mark.parametrize("mode", list(Verification))
@given(data=st.data())
def test_the_verdicts_of_a_ragged_batch_are_the_reference_verdicts(mode: Verification, data: st.DataObject) -> None:
    vocab = data.draw(st.integers(2, 60))
    batch = data.draw(st.lists(rounds(mode=mode, vocab=vocab), min_size=1, max_size=4))
    for round in batch:
        judged, expected = of_engine(round), of_reference(round)
        assert judged == expected
        assert judged.credits == pytest.approx(expected.credits, abs=1e-9)


@pytest.mark.parametrize("mode", list(Verification))
@given(data=st.data(), bad=st.sampled_from([math.nan, math.inf]), at=st.integers(0, 5))
def test_a_row_without_a_law_fails_both_or_neither(
    mode: Verification, data: st.DataObject, bad: float, at: int
) -> None:
    round = data.draw(rounds(mode=mode, vocab=5))
    round.rows[min(at, len(round.rows) - 1), 2] = bad
    assert outcome(of_engine, round) == outcome(of_reference, round)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", list(Verification))
def test_a_row_behind_a_token_that_cannot_stand_may_be_no_law(mode: Verification, temperature: float) -> None:
    asked = SamplingParameters(seed=1, temperature=temperature)
    rows = np.array([[0.0, 9.0, -math.inf], [math.nan] * 3])
    certain = tuple(SparseRow((token,), (1.0,)) for token in (2,))
    verdict = rejection.verify(rows, Proposal((2,), certain), asked, verification=mode, offset=0)
    assert (verdict.accepted, verdict.token in (0, 1)) == (0, True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("place", [1, 2, 3, 4])
@pytest.mark.parametrize("lawless", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_law_ends_the_round_at_the_token_before(
    mode: Verification, temperature: float, place: int, lawless: float
) -> None:
    """Plain decoding says the tokens before that place, then fails: by a round they come, and the next one fails."""
    ids, forced = (1, 2, 0, 1), np.full((5, 3), -math.inf)
    forced[np.arange(4), ids] = 9.0
    forced[4] = 0.0
    forced[place] = lawless
    proposal = Proposal(ids, tuple(SparseRow((token,), (1.0,)) for token in ids))
    asked = SamplingParameters(seed=1, temperature=temperature)
    verdict = rejection.verify(forced, proposal, asked, verification=mode, offset=0)
    assert verdict == Verified(place - 1, ids[place - 1])
    with pytest.raises(NotANumber):
        rejection.verify(forced[place : place + 1], Proposal(), asked, verification=mode, offset=place)


@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("row", [[0.0, math.nan, 1.0], [math.inf, 0.0, 1.0], [-math.inf] * 3], ids=str)
def test_a_first_row_without_a_law_is_refused(row: Sequence[float], mode: Verification) -> None:
    with pytest.raises(NotANumber):
        rejection.verify(np.array([row]), Proposal(), SamplingParameters(seed=1), verification=mode, offset=0)


CERTAIN = SparseRow((0,), (1.0,))


@pytest.mark.parametrize("mode", [Verification.REJECTION, Verification.BLOCK])
@pytest.mark.parametrize(
    ("ids", "q"),
    [
        ((0,), None),
        ((0,), ()),
        ((0,), (CERTAIN, CERTAIN)),
        ((0,), (SparseRow((1,), (1.0,)),)),
        ((0,), (SparseRow((0, 1), (0.0, 1.0)),)),
        ((0,), (SparseRow((0, 1), (0.5, 0.4)),)),
        ((0,), (SparseRow((0, 1), (0.5,)),)),
        ((0,), (SparseRow((0, 1), (math.nan, 1.0)),)),
    ],
)
def test_a_proposal_without_its_own_law_is_refused(
    mode: Verification, ids: tuple[TokenId, ...], q: tuple[SparseRow, ...] | None
) -> None:
    with pytest.raises(BadRequest) as refusal:
        rejection.verify(np.zeros((2, 3)), Proposal(ids, q), SamplingParameters(seed=1), verification=mode, offset=0)
    assert str(refusal.value.parameter).startswith("proposal.q")


@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize(("token", "rows"), [(3, 2), (-1, 2), (0, 1), (0, 3)])
def test_an_id_beyond_the_vocabulary_and_rows_that_do_not_fit_are_refused(
    mode: Verification, token: TokenId, rows: int
) -> None:
    proposal = Proposal((token,), (SparseRow((token,), (1.0,)),))
    with pytest.raises(BadRequest):
        rejection.verify(np.zeros((rows, 3)), proposal, SamplingParameters(seed=1), verification=mode, offset=0)
