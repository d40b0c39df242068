"""Coupled: every order of the perturbed scores at every position gives the text of K = 0, whatever is proposed."""

from collections.abc import Sequence
from functools import partial
from itertools import permutations, product

import pytest
from tests.laws.enumeration import Prefix

from tandem_runtime.domain.errors import NothingAdmitted
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.trees import Guesses, Walked, verify_coupled_tree
from tandem_runtime.domain.verification import verify_coupled

Order = tuple[TokenId, ...]
"""The tokens of one position by their perturbed scores, the highest first."""


def choice(orders: Sequence[Order], prefix: Prefix) -> TokenId:
    """The first token of the position's order that the prefix allows: a grammar forbids some, so that a choice after a
    wrong guess differs from the one after the right one. Every law's support is such a set."""
    forbidden = sum(prefix) % len(orders[0])
    return next(token for token in orders[len(prefix)] if token != forbidden)


def plain_text(orders: Sequence[Order], length: int) -> Prefix:
    ids: Prefix = ()
    while len(ids) < length:
        ids = (*ids, choice(orders, ids))
    return ids


def coupled_round(orders: Sequence[Order], before: Prefix, proposed: Prefix) -> Prefix:
    choices = [choice(orders, before + proposed[:count]) for count in range(len(proposed) + 1)]
    verified = verify_coupled(proposed, choices)
    return (*before, *proposed[: verified.accepted], verified.token)


def all_orders(vocab: int, positions: int) -> list[tuple[Order, ...]]:
    return list(product(permutations(range(vocab)), repeat=positions))


@pytest.mark.parametrize(("vocab", "k"), [(2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (4, 1)])
def test_every_order_gives_the_plain_text_whatever_is_proposed(vocab: int, k: int) -> None:
    for orders in all_orders(vocab, k + 1):
        plain = plain_text(orders, k + 1)
        for proposed in product(range(vocab), repeat=k):
            emitted = coupled_round(orders, (), proposed)
            assert emitted == plain[: len(emitted)]


def test_every_outcome_of_every_order_of_four_tokens_gives_the_plain_text() -> None:
    # Of an order only the token that is chosen matters, so all choices along a proposal cover all orders: V = K = 4.
    for choices in product(range(4), repeat=5):
        for proposed in product(range(4), repeat=4):
            verified = verify_coupled(proposed, choices)
            emitted = (*proposed[: verified.accepted], verified.token)
            assert emitted == choices[: len(emitted)]


@pytest.mark.parametrize(("vocab", "length"), [(2, 4), (3, 3)])
def test_rounds_of_changing_length_give_the_plain_text(vocab: int, length: int) -> None:
    for orders in all_orders(vocab, length):
        plain = plain_text(orders, length)
        for guessed in product(range(vocab), repeat=length - 1):
            ids: Prefix = ()
            while len(ids) < length:
                ids = coupled_round(orders, ids, guessed[len(ids) : length - 1][: 1 + len(ids) % 2])
            assert ids == plain


def trees(vocab: int, depth: int) -> list[Guesses]:
    """Every set of guesses of the depth, in one order."""
    if depth == 0:
        return [Guesses()]
    found = []
    for kept in product([False, True], repeat=vocab):
        tokens = tuple(token for token in range(vocab) if kept[token])
        for after in product(trees(vocab, depth - 1), repeat=len(tokens)):
            found.append(Guesses(tokens, after))
    return found


@pytest.mark.parametrize(("vocab", "depth"), [(2, 1), (2, 2), (3, 1)])
def test_every_tree_of_guesses_gives_the_plain_text(vocab: int, depth: int) -> None:
    for orders in all_orders(vocab, depth + 1):
        plain = plain_text(orders, depth + 1)
        for tree in trees(vocab, depth):
            walked = verify_coupled_tree(tree, partial(choice, orders))
            emitted = (*walked.path, walked.token)
            assert emitted == plain[: len(emitted)]


def test_a_tree_that_holds_the_targets_choices_is_walked_to_its_end() -> None:
    deep = Guesses((4, 7), (Guesses(), Guesses((1, 2), (Guesses(), Guesses()))))
    walked = verify_coupled_tree(deep, lambda prefix: (7, 2, 5)[len(prefix)])
    assert (walked.path, walked.token) == ((7, 2), 5)


def test_a_walk_ends_before_a_place_without_a_choice() -> None:
    tree = Guesses((4, 7), (Guesses(), Guesses((1, 2), (Guesses(), Guesses((5,), (Guesses(),))))))

    def choice(prefix: Prefix, *, length: int) -> TokenId:
        if len(prefix) >= length:
            raise NothingAdmitted("the rules leave no token here")
        return (7, 2, 5)[len(prefix)]

    assert verify_coupled_tree(tree, partial(choice, length=2)) == Walked((7,), 2)
    assert verify_coupled_tree(tree, partial(choice, length=1)) == Walked((), 7)
    with pytest.raises(NothingAdmitted):
        verify_coupled_tree(tree, partial(choice, length=0))


@pytest.mark.exactness
@pytest.mark.parametrize(("vocab", "k"), [(3, 3), (3, 4), (4, 2)])
def test_every_order_gives_the_plain_text_on_the_whole_grid(vocab: int, k: int) -> None:
    for orders in all_orders(vocab, k + 1):
        plain = plain_text(orders, k + 1)
        for proposed in product(range(vocab), repeat=k):
            emitted = coupled_round(orders, (), proposed)
            assert emitted == plain[: len(emitted)]
