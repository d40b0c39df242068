"""The reference rules: the emitted law equals the target's, exactly, by enumeration over all chance in fractions."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from math import log, sqrt
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.sampling import Distribution, Probability, coupled_choice, distribution, draw
from tandem_runtime.domain.tokens import SamplingParameters, SparseRow, TokenId
from tandem_runtime.domain.verification import (
    Chance,
    Verified,
    keyed_chance,
    law_of,
    residual,
    verify_coupled,
    verify_rejection,
)

Prefix: TypeAlias = tuple[TokenId, ...]
Model: TypeAlias = Callable[[Prefix], Distribution]
Rule: TypeAlias = Callable[[Sequence[TokenId], Sequence[Distribution], Sequence[Distribution], Chance], Verified]


class Unread(Exception):
    """A uniform number was looked at that has no value yet."""

    def __init__(self, name: tuple[str, int]) -> None:
        super().__init__(name)
        self.name = name


class Tape(Sequence[Probability]):
    """Uniform numbers that get their values when they are looked at, so that only what matters is enumerated."""

    def __init__(self, name: str, values: dict[tuple[str, int], Fraction]) -> None:
        self._name = name
        self._values = values

    def __getitem__(self, index: int) -> Probability:  # type: ignore[override]  # no slice is ever taken
        if (self._name, index) not in self._values:
            raise Unread((self._name, index))
        return self._values[self._name, index]

    def __len__(self) -> int:
        return 99


@cache
def intervals(denominator: int) -> list[tuple[Fraction, Fraction]]:
    """(middle, length) of the intervals between all fractions with denominators up to `denominator`: a step function
    of u whose steps lie at such fractions is integrated exactly by its values at the middles."""
    steps = sorted({Fraction(a, b) for b in range(1, denominator + 1) for a in range(b + 1)})
    return [((low + high) / 2, high - low) for low, high in pairwise(steps)]


def outcomes(
    rule: Rule, ids: Prefix, q: Sequence[Distribution], p: Sequence[Distribution], denominator: int
) -> dict[Verified, Fraction]:
    """Every outcome of a rule with its probability over the uniform numbers that it looks at."""
    found: dict[Verified, Fraction] = defaultdict(Fraction)
    waiting: list[tuple[dict[tuple[str, int], Fraction], Fraction]] = [({}, Fraction(1))]
    while waiting:
        values, weight = waiting.pop()
        try:
            verified = rule(ids, q, p, Chance(Tape("accept", values), Tape("follow", values)))
        except Unread as unread:
            waiting += [({**values, unread.name: u}, weight * length) for u, length in intervals(denominator)]
        else:
            found[verified] += weight
    return found


def probability(model: Model, ids: Prefix) -> Fraction:
    """Of a sequence from the empty prefix."""
    found = Fraction(1)
    for count, token in enumerate(ids):
        found *= Fraction(model(ids[:count]).get(token, 0))
    return found


def emitted_law(
    rule: Rule, target: Model, draft: Model, *, vocab: int, k: int, denominator: int
) -> dict[Prefix, Fraction]:
    """The law of the first K + 1 tokens when one round is followed by plain decoding."""
    law: dict[Prefix, Fraction] = {}
    for ids in product(range(vocab), repeat=k):
        drawn = probability(draft, ids)
        if drawn == 0:
            continue
        q = [draft(ids[:count]) for count in range(k)]
        p = [target(ids[:count]) for count in range(k + 1)]
        for verified, weight in outcomes(rule, ids, q, p, denominator).items():
            start = (*ids[: verified.accepted], verified.token)
            for rest in product(range(vocab), repeat=k + 1 - len(start)):
                full = start + rest
                after = probability(target, full) / probability(target, start) if probability(target, start) else 0
                law[full] = law.get(full, Fraction(0)) + drawn * weight * after
    return {ids: mass for ids, mass in law.items() if mass}


def target_law(target: Model, *, vocab: int, length: int) -> dict[Prefix, Fraction]:
    law = {ids: probability(target, ids) for ids in product(range(vocab), repeat=length)}
    return {ids: mass for ids, mass in law.items() if mass}


def of_weights(*rows: tuple[int, ...]) -> Model:
    """A model whose law after a prefix is the row numbered by a hash of the prefix; weights of a row add up alike."""

    def law(prefix: Prefix) -> Distribution:
        row = rows[(len(prefix) + 2 * sum(prefix)) % len(rows)]
        return {token: Fraction(weight, sum(row)) for token, weight in enumerate(row) if weight}

    return law


PAIRS = [
    pytest.param(of_weights((1, 2)), of_weights((2, 1)), 2, 2, 3, id="thirds swapped"),
    pytest.param(
        of_weights((1, 2, 3), (3, 3, 0)), of_weights((2, 2, 2), (0, 3, 3)), 3, 2, 6, id="zero mass on each side"
    ),
    pytest.param(of_weights((0, 4), (3, 1)), of_weights((4, 0), (1, 3)), 2, 3, 4, id="disjoint supports"),
    pytest.param(of_weights((1, 1, 2)), of_weights((1, 1, 2)), 3, 2, 4, id="equal laws"),
    pytest.param(of_weights((1, 1, 1, 1), (2, 2, 0, 0)), of_weights((0, 4, 0, 0)), 4, 3, 4, id="one-hot draft"),
    pytest.param(of_weights((4, 0, 0)), of_weights((1, 2, 1), (0, 2, 2)), 3, 3, 4, id="greedy target"),
    pytest.param(of_weights((1, 2, 1), (2, 0, 2)), of_weights((2, 2, 0)), 3, 0, 4, id="nothing proposed"),
    pytest.param(
        of_weights((1, 0, 2, 1), (2, 1, 1, 0)), of_weights((2, 1, 0, 1), (0, 1, 3, 0)), 4, 2, 4, id="four tokens"
    ),
]


@pytest.mark.parametrize(("target", "draft", "vocab", "k", "denominator"), PAIRS)
def test_rejection_emits_the_targets_law_exactly(
    target: Model, draft: Model, vocab: int, k: int, denominator: int
) -> None:
    found = emitted_law(verify_rejection, target, draft, vocab=vocab, k=k, denominator=denominator)
    assert found == target_law(target, vocab=vocab, length=k + 1)


def rows_of_four() -> st.SearchStrategy[tuple[int, ...]]:
    """Three weights that add up to 4: where two cuts fall."""
    cuts = st.lists(st.integers(0, 4), min_size=2, max_size=2).map(sorted)
    return cuts.map(lambda cut: (cut[0], cut[1] - cut[0], 4 - cut[1]))


models = st.lists(rows_of_four(), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(p=models, q=models, k=st.integers(0, 2))
def test_rejection_emits_the_targets_law_for_any_pair_of_models(
    p: list[tuple[int, ...]], q: list[tuple[int, ...]], k: int
) -> None:
    target, draft = of_weights(*p), of_weights(*q)
    found = emitted_law(verify_rejection, target, draft, vocab=3, k=k, denominator=4)
    assert found == target_law(target, vocab=3, length=k + 1)


def test_rejection_accepts_ten_ninths_of_two_proposed_tokens_for_swapped_thirds() -> None:
    # A constant from Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), K = 2, token by token.
    target, draft = of_weights((1, 2)), of_weights((2, 1))
    expected = Fraction(0)
    for ids in product(range(2), repeat=2):
        q, p = [draft(()), draft(())], [target(())] * 3
        for verified, weight in outcomes(verify_rejection, ids, q, p, 3).items():
            expected += verified.accepted * weight * probability(draft, ids)
    assert expected == Fraction(10, 9)


def with_raw_target_after_a_rejection(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    for i, token in enumerate(ids):
        if chance.accept[i] * q[i][token] >= p[i].get(token, 0):
            return Verified(i, draw(p[i], chance.follow[i]))
    return Verified(len(ids), draw(p[len(ids)], chance.follow[len(ids)]))


def with_acceptance_by_the_targets_probability(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    for i, token in enumerate(ids):
        if chance.accept[i] >= p[i].get(token, 0):
            return Verified(i, draw(residual(p[i], q[i]), chance.follow[i]))
    return Verified(len(ids), draw(p[len(ids)], chance.follow[len(ids)]))


def with_the_bonus_from_the_last_proposed_position(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return verify_rejection(ids, q, [*p[:-1], p[-2]], chance)


def with_one_number_for_acceptance_and_residual(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return verify_rejection(ids, q, p, Chance(chance.accept, chance.accept))


def with_any_match_accepted(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return Verified(len(ids), draw(p[len(ids)], chance.follow[len(ids)]))


@pytest.mark.parametrize(
    "mutant",
    [
        with_raw_target_after_a_rejection,
        with_acceptance_by_the_targets_probability,
        with_the_bonus_from_the_last_proposed_position,
        with_one_number_for_acceptance_and_residual,
        with_any_match_accepted,
    ],
)
def test_the_enumeration_sees_a_wrong_rule(mutant: Rule) -> None:
    target, draft = of_weights((1, 2, 3), (3, 3, 0)), of_weights((6, 0, 0), (0, 3, 3))
    found = emitted_law(mutant, target, draft, vocab=3, k=2, denominator=6)
    assert found != target_law(target, vocab=3, length=3)


def test_the_enumeration_sees_a_draft_that_declares_another_law_than_it_drew_from() -> None:
    target, draft = of_weights((1, 2, 1)), of_weights((2, 1, 1))

    def declared_uniform(
        ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
    ) -> Verified:
        return verify_rejection(ids, [{token: Fraction(1, 3) for token in range(3)}] * len(q), p, chance)

    found = emitted_law(declared_uniform, target, draft, vocab=3, k=1, denominator=12)
    assert found != target_law(target, vocab=3, length=2)


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


def test_equal_laws_up_to_rounding_leave_no_residual_and_fall_back_to_the_target() -> None:
    p = {0: 0.25, 1: 0.75}
    assert residual(p, {0: 0.25 + 1e-17, 1: 0.75}) == p
    assert verify_rejection([0], [{0: 1.0}], [{0: 1.0}, {0: 1.0}], Chance([0.999], [0.5, 0.5])) == Verified(1, 0)


@pytest.mark.parametrize("row", [{}, {1: 0.0}, {1: float("nan")}])
def test_a_token_that_its_own_law_excludes_is_refused(row: dict[TokenId, float]) -> None:
    with pytest.raises(BadRequest, match="token 1 was proposed at position 0") as refusal:
        verify_rejection([1], [row], [{0: 0.5, 1: 0.5}] * 2, Chance([0.5], [0.5, 0.5]))
    assert refusal.value.parameter == "proposal.q[0]"


def test_a_row_of_the_wire_becomes_a_law_in_order_of_ids() -> None:
    assert list(law_of(SparseRow((7, 2), (0.25, 0.75))).items()) == [(2, 0.75), (7, 0.25)]


def test_the_chance_of_a_position_is_the_same_in_whatever_round_it_is_reached() -> None:
    parameters = SamplingParameters(seed=3)
    early, late = keyed_chance(parameters, 10, 4), keyed_chance(parameters, 12, 2)
    assert (early.accept[2:], early.follow[2:]) == (late.accept, late.follow)
    assert (len(early.accept), len(early.follow)) == (4, 5)


REQUESTS = 20_000
P, Q = (0.3, 0.4, 0.2, 0.1), (0.4, 0.3, 0.2, 0.1)


LOGITS, GUESSES = [log(p) for p in P], [log(q) for q in Q]


def coupled_first(wanted: SamplingParameters) -> TokenId:
    proposed = [coupled_choice(GUESSES, wanted, 0)]
    verified = verify_coupled(proposed, [coupled_choice(LOGITS, wanted, 0), 0])
    return (*proposed[: verified.accepted], verified.token)[0]


def rejection_first(
    wanted: SamplingParameters, drawn: Distribution, declared: Distribution, p: Distribution
) -> TokenId:
    proposed = [draw(drawn, uniform_at(wanted.seed, 0, Salt.DRAFT, 0))]
    verified = verify_rejection(proposed, [declared], [p, p], keyed_chance(wanted, 0, 1))
    return (*proposed[: verified.accepted], verified.token)[0]


CUTS = [SamplingParameters(0, top_k=2), SamplingParameters(0, top_p=0.65)]


def within_four_errors(count: int) -> bool:
    return abs(count / REQUESTS - 3 / 7) < 4 * sqrt(12 / 49 / REQUESTS)


@pytest.mark.parametrize("cut", CUTS, ids=["top_k", "top_p"])
@pytest.mark.parametrize("mode", ["Coupled", "Rejection"])
def test_tokens_are_drawn_and_judged_from_the_same_distributions(cut: SamplingParameters, mode: str) -> None:
    """Case C02 (transformers #47932): judged by the raw q, the frequencies would be swapped."""
    q, p = distribution(GUESSES, cut), distribution(LOGITS, cut)
    requests = [replace(cut, seed=seed) for seed in range(REQUESTS)]
    tokens = [coupled_first(one) if mode == "Coupled" else rejection_first(one, q, q, p) for one in requests]
    assert within_four_errors(tokens.count(0))
    assert set(tokens) == {0, 1}


def test_the_frequencies_see_a_draft_that_declares_its_unfiltered_law() -> None:
    q, p = distribution(GUESSES, CUTS[0]), distribution(LOGITS, CUTS[0])
    requests = [replace(CUTS[0], seed=seed) for seed in range(REQUESTS)]
    assert not within_four_errors([rejection_first(one, q, dict(enumerate(Q)), p) for one in requests].count(0))
