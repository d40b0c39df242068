"""Several candidates and trees: the emitted law equals the target's, exactly, however the draft drew them."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import PROCESSORS, emitted_law, ending_after, model

from tandem_runtime.domain.candidates import (
    Picked,
    one_hot,
    verify_candidates,
    with_replacement,
    without,
    without_replacement,
)
from tandem_runtime.domain.sampling import Distribution, draw
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.trees import Guesses, Walked, verify_tree
from tandem_runtime.domain.verification import Chance, verify_rejection

Drawing = Callable[[Distribution, Numbers, Prefix, int], tuple[tuple[TokenId, ...], tuple[Distribution, ...]]]
"""Candidates after a prefix, and the laws that they were drawn from."""


def again(q: Distribution, numbers: Numbers, prefix: Prefix, count: int) -> tuple[Prefix, tuple[Distribution, ...]]:
    tokens = tuple(draw(q, numbers("draft", prefix, i)) for i in range(count))
    return tokens, with_replacement(q, tokens)


def apart(q: Distribution, numbers: Numbers, prefix: Prefix, count: int) -> tuple[Prefix, tuple[Distribution, ...]]:
    tokens: Prefix = ()
    while len(tokens) < min(count, len(q)):
        tokens = (*tokens, draw(without(q, tokens), numbers("draft", prefix, len(tokens))))
    return tokens, without_replacement(q, tokens)


def likeliest(q: Distribution, numbers: Numbers, prefix: Prefix, count: int) -> tuple[Prefix, tuple[Distribution, ...]]:
    tokens = tuple(sorted(q, key=lambda token: (-q[token], token))[:count])
    return tokens, one_hot(tokens)


DRAWINGS = [
    pytest.param(again, id="with replacement"),
    pytest.param(apart, id="without replacement"),
    pytest.param(likeliest, id="the likeliest"),
]


def picked(numbers: Numbers, drawing: Drawing, p: Distribution, q: Distribution, count: int) -> Picked:
    tokens, laws = drawing(q, numbers, (), count)
    return verify_candidates(tokens, laws, p, Chance(numbers.all_of("accept"), numbers.all_of("follow")))


def law_picked(drawing: Drawing, p: Distribution, q: Distribution, count: int) -> dict[TokenId, Fraction]:
    law = law_of_process(lambda numbers: picked(numbers, drawing, p, q, count).token)
    return {token: mass for token, mass in law.items() if mass}


def share_standing(drawing: Drawing, p: Distribution, q: Distribution, count: int) -> Fraction:
    law = law_of_process(lambda numbers: picked(numbers, drawing, p, q, count).index is not None)
    return law.get(True, Fraction(0))


def laws(vocab: int) -> st.SearchStrategy[Distribution]:
    weights = st.lists(st.integers(0, 4), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda row: {token: Fraction(w, sum(row)) for token, w in enumerate(row) if w})


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize("count", range(4))
@settings(max_examples=25, deadline=None)
@given(p=laws(4), q=laws(4))
def test_one_of_several_candidates_has_the_targets_law(
    drawing: Drawing, count: int, p: Distribution, q: Distribution
) -> None:
    assert law_picked(drawing, p, q, count) == p


@settings(max_examples=40, deadline=None)
@given(p=laws(4), q=laws(4), count=st.integers(1, 3))
def test_candidates_without_replacement_stand_at_least_as_often(p: Distribution, q: Distribution, count: int) -> None:
    assert share_standing(apart, p, q, count) >= share_standing(again, p, q, count)


@settings(max_examples=25, deadline=None)
@given(p=laws(3), q=laws(3))
def test_another_candidate_never_lowers_the_share_that_stands(p: Distribution, q: Distribution) -> None:
    for drawing in (again, apart):
        shares = [share_standing(drawing, p, q, count) for count in range(4)]
        assert shares == sorted(shares)


def test_a_token_that_was_rejected_is_rejected_again() -> None:
    p, q = {0: Fraction(1, 4), 1: Fraction(3, 4)}, {0: Fraction(1, 2), 1: Fraction(1, 2)}
    found = verify_candidates([0, 0, 0], with_replacement(q, [0, 0, 0]), p, Chance([0.9, 0.001, 0.001], [0.001]))
    assert found == Picked(None, 1)


# Trees ----------------------------------------------------------------------------------------------------------------


def grown(numbers: Numbers, drawing: Drawing, draft: Model, shape: Sequence[int], prefix: Prefix = ()) -> Guesses:
    """A tree with `shape[d]` candidates after every prefix of d tokens."""
    if not shape:
        return Guesses()
    tokens, q = drawing(draft(prefix), numbers, prefix, shape[0])
    after = {token: grown(numbers, drawing, draft, shape[1:], (*prefix, token)) for token in tokens}
    return Guesses(tokens, tuple(after[token] for token in tokens), q)


def walked(numbers: Numbers, drawing: Drawing, target: Model, draft: Model, shape: Sequence[int]) -> Walked:
    tree = grown(numbers, drawing, draft, shape)
    depths = range(len(shape) + 1)
    chance = [Chance(numbers.all_of("accept", depth), numbers.all_of("follow", depth)) for depth in depths]
    return verify_tree(tree, target, chance)


def tree_law(drawing: Drawing, target: Model, draft: Model, shape: Sequence[int]) -> dict[Prefix, Fraction]:
    def process(numbers: Numbers) -> Prefix:
        found = walked(numbers, drawing, target, draft, shape)
        return (*found.path, found.token)

    return continued(law_of_process(process), target, length=len(shape) + 1)


SHAPES = [(), (2,), (2, 1), (1, 2), (2, 2)]
TREES = [
    pytest.param(model((1, 2), (3, 1)), model((2, 1), (1, 1)), id="two tokens"),
    pytest.param(model((1, 2), (0, 3)), model((3, 0), (1, 2)), id="zero mass"),
    pytest.param(
        ending_after(model((1, 2), (3, 1)), (0,), (1, 1)),
        model((2, 1), (1, 1)),
        id="a law that ends after some prefixes",
    ),
]


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("target", "draft"), TREES)
def test_a_walk_through_a_tree_has_the_targets_law(
    drawing: Drawing, shape: Sequence[int], target: Model, draft: Model
) -> None:
    assert tree_law(drawing, target, draft, shape) == plain_law(target, length=len(shape) + 1)


@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_walk_keeps_the_law_after_processors(drawing: Drawing, name: str) -> None:
    target, draft = PROCESSORS[name](model((1, 2, 3), (4, 1, 2))), model((2, 2, 1), (1, 3, 1))
    assert tree_law(drawing, target, draft, (2, 1)) == plain_law(target, length=3)


def test_a_chain_is_a_tree_with_one_candidate_each() -> None:
    target, draft = model((1, 2, 3), (4, 0, 2)), model((2, 2, 1), (1, 3, 1))
    for drawing in (again, apart):
        assert tree_law(drawing, target, draft, (1, 1)) == emitted_law(verify_rejection, target, draft, k=2)


@pytest.mark.exactness
@pytest.mark.parametrize("drawing", DRAWINGS)
@pytest.mark.parametrize(
    "shape", [(3,), (2, 2), (3, 1), (1, 3), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("vocab", [2, 3, 4])
def test_a_walk_has_the_targets_law_on_the_whole_grid(drawing: Drawing, shape: Sequence[int], vocab: int) -> None:
    target, draft = model((1, 2, 3, 1)[:vocab], (0, 4, 1, 2)[:vocab]), model((2, 2, 1, 2)[:vocab], (1, 1, 0, 3)[:vocab])
    assert tree_law(drawing, target, draft, shape) == plain_law(target, length=len(shape) + 1)


# Wrong rules, which the enumeration must see --------------------------------------------------------------------------


def against_the_first_law(
    candidates: Sequence[TokenId], q: Sequence[Distribution], p: Distribution, chance: Chance
) -> Picked:
    """Candidates drawn without replacement, judged as if each had been drawn from the whole of q."""
    return verify_candidates(candidates, with_replacement(q[0], candidates), p, chance)


def with_the_targets_law_at_the_end(
    candidates: Sequence[TokenId], q: Sequence[Distribution], p: Distribution, chance: Chance
) -> Picked:
    found = verify_candidates(candidates, q, p, chance)
    return found if found.index is not None else Picked(None, draw(p, chance.follow[0]))


def with_one_number_for_all(
    candidates: Sequence[TokenId], q: Sequence[Distribution], p: Distribution, chance: Chance
) -> Picked:
    return verify_candidates(candidates, q, p, Chance([chance.accept[0]] * len(candidates), chance.follow))


@pytest.mark.parametrize("wrong", [against_the_first_law, with_the_targets_law_at_the_end, with_one_number_for_all])
def test_the_enumeration_sees_a_wrong_rule_for_candidates(
    wrong: Callable[[Sequence[TokenId], Sequence[Distribution], Distribution, Chance], Picked],
) -> None:
    p = {0: Fraction(1, 12), 1: Fraction(7, 12), 2: Fraction(3, 12), 3: Fraction(1, 12)}
    q = {0: Fraction(8, 12), 1: Fraction(1, 12), 2: Fraction(2, 12), 3: Fraction(1, 12)}

    def process(numbers: Numbers) -> TokenId:
        tokens, drawn_from = apart(q, numbers, (), 2)
        return wrong(tokens, drawn_from, p, Chance(numbers.all_of("accept"), numbers.all_of("follow"))).token

    assert law_of_process(process) != p


def judged(tokens: Prefix, p: Distribution, numbers: Numbers) -> TokenId:
    chance = Chance(numbers.all_of("accept"), numbers.all_of("follow"))
    return verify_candidates(tokens, one_hot(tokens), p, chance).token


def test_the_order_of_chosen_candidates_does_not_matter_to_the_law() -> None:
    p = {0: Fraction(1, 8), 1: Fraction(2, 8), 2: Fraction(5, 8)}
    for tokens in permutations(range(3), 2):
        assert law_of_process(partial(judged, tokens, p)) == p
