"""The rules one by one: what stands, what is refused, what has no mass. Their laws are proved in tests/laws."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log, sqrt
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.block import success, verify_block
from tandem_runtime.domain.candidates import verify_candidates, without_replacement
from tandem_runtime.domain.errors import BadRequest, NotANumber
from tandem_runtime.domain.noise import Salt
from tandem_runtime.domain.sampling import Distribution, coupled_choice, distribution, draw
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, SparseRow, TokenId, Verification
from tandem_runtime.domain.trees import Guesses
from tandem_runtime.domain.verification import (
    Chance,
    Verified,
    admissible,
    keyed_chance,
    law_of,
    refuse_bad_proposal,
    refuse_bad_row,
    residual,
    round_uniform,
    verify_coupled,
    verify_rejection,
)

Prefix: TypeAlias = tuple[TokenId, ...]
Rule: TypeAlias = Callable[[Sequence[TokenId], Sequence[Distribution], Sequence[Distribution], Chance], Verified]


@pytest.mark.parametrize(
    ("proposed", "choices", "expected"),
    [
        ((), (4,), Verified(0, 4)),
        ((5,), (4, 9), Verified(0, 4)),
        ((5, 3, 9), (5, 3, 1, 2), Verified(2, 1)),
        ((5, 3, 1), (5, 3, 1, 2), Verified(3, 2)),
        ((0, 3, 1), (5, 3, 1, 2), Verified(0, 5)),
    ],
)
def test_coupled_accepts_up_to_the_first_difference(proposed: Prefix, choices: Prefix, expected: Verified) -> None:
    assert verify_coupled(proposed, choices) == expected


@given(st.lists(st.integers(0, 3), max_size=8), st.data())
def test_coupled_emits_the_targets_own_choices_whatever_is_proposed(choices: list[int], data: st.DataObject) -> None:
    proposed = data.draw(st.lists(st.integers(0, 3), min_size=len(choices), max_size=len(choices)))
    verified = verify_coupled(proposed, [*choices, 9])
    emitted = [*proposed[: verified.accepted], verified.token]
    assert emitted == [*choices, 9][: len(emitted)]


RULES = [verify_rejection, verify_block]
HALF = {0: 0.5, 1: 0.5}
NAN, INF = float("nan"), float("inf")


def test_equal_laws_up_to_rounding_leave_no_residual_and_fall_back_to_the_target() -> None:
    p = {0: 0.25, 1: 0.75}
    assert residual(p, {0: 0.25 + 1e-17, 1: 0.75}) == p
    assert residual(p, {0: 0.125, 1: 0.75}, share=0.5) == p


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("u", [2**-53, 0.5, 1 - 2**-53])
def test_equal_laws_accept_everything_whatever_the_chance(rule: Rule, u: float) -> None:
    assert rule([0, 1], [HALF] * 2, [HALF] * 3, Chance([u] * 2, [0.75] * 3)) == Verified(2, 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_token_that_the_target_excludes_never_stands(rule: Rule) -> None:
    p = [{1: 1.0}, {0: 1.0}, {0: 1.0}]
    assert rule([0, 0], [HALF] * 2, p, Chance([2**-53] * 2, [2**-53] * 3)) == Verified(0, 1)


@pytest.mark.parametrize("rule", RULES)
def test_a_law_behind_a_token_without_a_chance_is_not_looked_at(rule: Rule) -> None:
    p = [{1: 1.0}, {0: NAN}, {}]
    assert rule([0, 0], [HALF] * 2, p, Chance([2**-53] * 2, [2**-53] * 3)) == Verified(0, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("law", [{}, {0: NAN, 1: 0.5}, {0: INF}, {0: 1.5, 1: -0.5}], ids=str)
def test_a_target_without_a_law_is_refused(rule: Rule, law: Distribution) -> None:
    with pytest.raises(NotANumber, match="position 1 of the proposal"):
        rule([0], [HALF], [HALF, law], Chance([2**-53], [0.5, 0.5]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row", [{}, {1: 0.0}, {1: NAN}], ids=str)
def test_a_token_that_its_own_law_excludes_is_refused(rule: Rule, row: Distribution) -> None:
    with pytest.raises(BadRequest, match="token 1 was proposed at position 0") as refusal:
        rule([1], [row], [HALF] * 2, Chance([0.5], [0.5, 0.5]))
    assert refusal.value.parameter == "proposal.q[0]"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("rows", "laws", "parameter"),
    [(0, 2, "proposal.q"), (2, 2, "proposal.q"), (1, 1, "proposal.ids"), (1, 3, "proposal.ids")],
)
def test_lengths_that_disagree_are_refused(rule: Rule, rows: int, laws: int, parameter: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        rule([0], [HALF] * rows, [HALF] * laws, Chance([0.5], [0.5, 0.5]))
    assert refusal.value.parameter == parameter


def test_coupled_needs_one_choice_more_than_guesses() -> None:
    with pytest.raises(BadRequest, match="2 ids is judged by 3 rows of the target, and 2 are here"):
        verify_coupled([1, 2], [1, 2])


def test_a_later_success_rescues_an_earlier_failure_in_a_block() -> None:
    # w_1 = 1/2 and w_2 = min(1, 1/2 * 2) = 1: the first token alone would fall, with the second it stands for sure.
    p = [{0: 0.25, 1: 0.75}, {0: 1.0}, {1: 1.0}]
    chance = Chance([0.99, 0.99], [0.5] * 3)
    assert verify_block([0, 0], [HALF] * 2, p, chance) == Verified(2, 1)
    assert verify_rejection([0, 0], [HALF] * 2, p, chance) == Verified(0, 1)


def test_a_row_of_the_wire_becomes_a_law_in_order_of_ids_that_adds_up_to_one() -> None:
    assert list(law_of(SparseRow((7, 2), (0.25, 0.75))).items()) == [(2, 0.75), (7, 0.25)]
    assert law_of(SparseRow((7, 2), (0.5, 0.25))) == {2: 0.25 / 0.75, 7: 0.5 / 0.75}


def test_no_number_of_chance_is_used_in_two_rounds_or_twice_in_one() -> None:
    parameters = SamplingParameters(seed=3)
    rounds = [keyed_chance(parameters, offset, 4) for offset in (10, 11, 12, 15)]
    numbers = [u for chance in rounds for u in (*chance.accept, *chance.follow)]
    assert len(numbers) == len(set(numbers)) == 4 * 9
    assert keyed_chance(parameters, 10, 2).accept == rounds[0].accept[:2]


def row(*probabilities: float) -> SparseRow:
    return SparseRow(tuple(range(len(probabilities))), probabilities)


@pytest.mark.parametrize(
    ("proposal", "parameter", "value"),
    [
        (Proposal((3,), (row(1.0),)), "proposal.ids[0]", "3"),
        (Proposal((0, -1), (row(1.0), row(1.0))), "proposal.ids[1]", "-1"),
        (Proposal((0,)), "proposal.q", "0 rows for 1"),
        (Proposal((0,), (row(1.0), row(1.0))), "proposal.q", "2 rows for 1"),
        (Proposal((), (row(1.0),)), "proposal.q", "1 rows for 0"),
        (Proposal((0,), (row(0.5, 0.25),)), "proposal.q[0]", "0.75"),
        (Proposal((0,), (row(0.75, 0.5),)), "proposal.q[0]", "1.25"),
        (Proposal((0,), (row(),)), "proposal.q[0]", "adds up to 0"),
        (Proposal((0,), (row(NAN, 1.0),)), "proposal.q[0]", "nan"),
        (Proposal((0,), (row(INF),)), "proposal.q[0]", "inf"),
        (Proposal((0,), (row(1.5, -0.5),)), "proposal.q[0]", "1.5"),
        (Proposal((0,), (row(1.0005, -0.0005),)), "proposal.q[0]", "-0.0005"),
        (Proposal((0,), (SparseRow((0, 0), (0.5, 0.5)),)), "proposal.q[0]", "twice"),
        (Proposal((0,), (SparseRow((0, 1), (1.0,)),)), "proposal.q[0]", "2 ids but 1"),
        (Proposal((0,), (row(0.0, 1.0),)), "proposal.q[0]", "token 0"),
        (Proposal((0, 2), (row(1.0), row(0.5, 0.5))), "proposal.q[1]", "token 2"),
    ],
    ids=str,
)
def test_a_proposal_that_nobody_can_have_drawn_is_refused(proposal: Proposal, parameter: str, value: str) -> None:
    for verification in (Verification.REJECTION, Verification.BLOCK):
        with pytest.raises(BadRequest, match=re.escape(value)) as refusal:
            refuse_bad_proposal(proposal, verification, vocab_size=3)
        assert refusal.value.parameter == parameter


def test_a_coupled_proposal_is_refused_for_its_ids_alone() -> None:
    refuse_bad_proposal(Proposal((0, 2)), Verification.COUPLED, vocab_size=3)
    refuse_bad_proposal(Proposal((0,), (row(0.1),)), Verification.COUPLED, vocab_size=3)
    with pytest.raises(BadRequest, match="0 to 2"):
        refuse_bad_proposal(Proposal((0, 3)), Verification.COUPLED, vocab_size=3)


def test_rounding_is_no_reason_to_refuse_a_row() -> None:
    thirds = np.array([1, 1, 1], np.float64) / 3
    for kind in (np.float16, np.float32):
        refuse_bad_row(row(*thirds.astype(kind).tolist()), "q")


@pytest.mark.parametrize(
    ("proposal", "kept"),
    [
        (Proposal((0, 3, 1)), 1),
        (Proposal((0, 1)), 2),
        (Proposal((0, 1), (row(0.5, 0.5), row(0.0, 0.5, 0.0, 0.5))), 1),
        (Proposal((3,), (SparseRow((3,), (1.0,)),)), 0),
        (Proposal((-1,)), 0),
    ],
    ids=str,
)
def test_a_proposal_is_cut_where_an_id_beyond_the_vocabulary_could_have_come(proposal: Proposal, kept: int) -> None:
    cut = admissible(proposal, vocab_size=3)
    assert cut.ids == proposal.ids[:kept]
    assert cut.q == (None if proposal.q is None else proposal.q[:kept])


@pytest.mark.parametrize("laws", [0, 2])
def test_candidates_and_laws_of_different_numbers_are_refused(laws: int) -> None:
    with pytest.raises(BadRequest, match="one law per candidate"):
        verify_candidates([0], [HALF] * laws, HALF, Chance([0.5], [0.5]))


def test_a_candidate_drawn_twice_without_replacement_is_refused() -> None:
    one = {0: 1.0}
    with pytest.raises(BadRequest, match="token 0 was proposed at position 1"):
        verify_candidates([0, 0], without_replacement(one, [0, 0]), {1: 1.0}, Chance([0.5, 0.5], [0.5]))


def test_candidates_for_a_target_without_a_law_are_refused() -> None:
    with pytest.raises(NotANumber):
        verify_candidates([0], [HALF], {0: NAN}, Chance([0.5], [0.5]))


def test_a_tree_without_a_subtree_for_each_candidate_is_refused() -> None:
    with pytest.raises(BadRequest, match="2 candidates came with 1 trees"):
        Guesses((0, 1), (Guesses(),))


REQUESTS = 20_000
P, Q = (0.3, 0.4, 0.2, 0.1), (0.4, 0.3, 0.2, 0.1)


LOGITS, GUESSES = [log(p) for p in P], [log(q) for q in Q]


def coupled_first(wanted: SamplingParameters) -> TokenId:
    proposed = [coupled_choice(GUESSES, wanted, 0)]
    verified = verify_coupled(proposed, [coupled_choice(LOGITS, wanted, 0), 0])
    return (*proposed[: verified.accepted], verified.token)[0]


def drawn_first(
    rule: Rule, wanted: SamplingParameters, drawn: Distribution, declared: Distribution, p: Distribution
) -> TokenId:
    proposed = [draw(drawn, round_uniform(wanted, Salt.DRAFT, 0, at)) for at in range(2)]
    verified = rule(proposed, [declared] * 2, [p] * 3, keyed_chance(wanted, 0, 2))
    return (*proposed[: verified.accepted], verified.token)[0]


OF_MODE = {Verification.REJECTION: verify_rejection, Verification.BLOCK: verify_block}
CUTS = [SamplingParameters(0, top_k=2), SamplingParameters(0, top_p=0.65)]


def within_four_errors(count: int) -> bool:
    return abs(count / REQUESTS - 3 / 7) < 4 * sqrt(12 / 49 / REQUESTS)


@pytest.mark.parametrize("cut", CUTS, ids=["top_k", "top_p"])
@pytest.mark.parametrize("mode", list(Verification))
def test_tokens_are_drawn_and_judged_from_the_same_distributions(cut: SamplingParameters, mode: Verification) -> None:
    """Case C02 (transformers #47932): judged by the raw q, the frequencies would be swapped."""
    q, p = distribution(GUESSES, cut), distribution(LOGITS, cut)
    requests = [replace(cut, seed=seed) for seed in range(REQUESTS)]
    rule = OF_MODE.get(mode)
    tokens = [coupled_first(one) if rule is None else drawn_first(rule, one, q, q, p) for one in requests]
    assert within_four_errors(tokens.count(0))
    assert set(tokens) == {0, 1}


def test_the_frequencies_see_a_draft_that_declares_its_unfiltered_law() -> None:
    q, p = distribution(GUESSES, CUTS[0]), distribution(LOGITS, CUTS[0])
    requests = [replace(CUTS[0], seed=seed) for seed in range(REQUESTS)]
    assert not within_four_errors(
        [drawn_first(verify_rejection, one, q, dict(enumerate(Q)), p) for one in requests].count(0)
    )


def test_a_block_stands_for_certain_where_all_its_worth_is_there_and_next_to_nothing_is_left() -> None:
    assert success(1e-17, 1.0) == 1.0
    assert success(0.0, 1.0) == 0
