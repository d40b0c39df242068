"""Wrong rules, seen in shipped samplers or near to them: the enumeration must see every one, or it proves little."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from tests.laws.enumeration import plain_law
from tests.laws.rounds import Rule, emitted_law, model

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.sampling import Distribution, draw
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.verification import Chance, Verified, residual, verify_rejection

# Chosen so that all of them show: of 28 random pairs of this size, most hide one.
TARGET, DRAFT = model((4, 1, 2), (1, 1, 3)), model((2, 0, 3), (4, 0, 1))


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


def with_a_uniform_law_declared(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return verify_rejection(ids, [{token: Fraction(1, 3) for token in range(3)}] * len(q), p, chance)


def first_failure_ends_the_block(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    """A block's thresholds, but judged one by one: seen in a shipped port."""
    for count in range(1, len(ids) + 1):
        alone = verify_block(ids[:count], q[:count], p[: count + 1], chance)
        if alone.accepted < count:
            return verify_block(ids[: count - 1], q[: count - 1], p[:count], chance)
    return verify_block(ids, q, p, chance)


def one_number_for_the_block(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return verify_block(ids, q, p, Chance([chance.accept[0]] * len(ids), chance.follow))


def residual_without_the_share(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    found = verify_block(ids, q, p, chance)
    if found.accepted == len(ids):
        return found
    at = found.accepted
    left = {token: p[at][token] - q[at].get(token, 0) for token in p[at] if p[at][token] > q[at].get(token, 0)}
    return Verified(at, draw(left or p[at], chance.follow[at]))


def acceptance_number_for_what_follows(
    ids: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    return verify_block(ids, q, p, Chance(chance.accept, chance.accept))


@pytest.mark.parametrize(
    "wrong",
    [
        with_raw_target_after_a_rejection,
        with_acceptance_by_the_targets_probability,
        with_the_bonus_from_the_last_proposed_position,
        with_one_number_for_acceptance_and_residual,
        with_any_match_accepted,
        with_a_uniform_law_declared,
        first_failure_ends_the_block,
        one_number_for_the_block,
        residual_without_the_share,
        acceptance_number_for_what_follows,
    ],
)
def test_the_enumeration_sees_a_wrong_rule(wrong: Rule) -> None:
    assert emitted_law(wrong, TARGET, DRAFT, k=2) != plain_law(TARGET, length=3)


@pytest.mark.parametrize("right", [verify_rejection, verify_block])
def test_the_enumeration_passes_the_right_rules_on_the_same_models(right: Rule) -> None:
    assert emitted_law(right, TARGET, DRAFT, k=2) == plain_law(TARGET, length=3)
