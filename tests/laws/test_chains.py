"""Rejection and block: the emitted law equals the target's, exactly, whatever the draft is."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import (
    PROCESSORS,
    Rule,
    accepted_on_average,
    emitted,
    emitted_law,
    ending_after,
    model,
    processed,
    up_to_an_end,
)

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.sampling import Distribution
from tandem_runtime.domain.tokens import SamplingParameters
from tandem_runtime.domain.verification import verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]

PAIRS = [
    pytest.param(model((1, 2)), model((2, 1)), 2, id="thirds swapped"),
    pytest.param(model((1, 2, 3), (3, 3, 0)), model((2, 2, 2), (0, 3, 3)), 3, id="zero mass on each side"),
    pytest.param(model((0, 4), (3, 1)), model((4, 0), (1, 3)), 4, id="disjoint supports"),
    pytest.param(model((1, 1, 2)), model((1, 1, 2)), 3, id="equal laws"),
    pytest.param(model((1, 1, 1, 1), (2, 2, 0, 0)), model((0, 4, 0, 0), (1, 0, 0, 0)), 4, id="one-hot draft"),
    pytest.param(model((4, 0, 0)), model((1, 2, 1), (0, 2, 2)), 4, id="greedy target"),
    pytest.param(model((1, 2, 1), (2, 0, 2)), model((2, 2, 0)), 0, id="nothing proposed"),
    pytest.param(model((1, 0, 2, 1), (2, 1, 1, 0)), model((2, 1, 0, 1), (0, 1, 3, 0)), 3, id="four tokens"),
    pytest.param(model((5, 2), (1, 6), (3, 4)), model((1, 1), (6, 1)), 4, id="two tokens, K = 4"),
    pytest.param(model((4, 1, 2), (1, 1, 3)), model((2, 0, 3), (4, 0, 1)), 2, id="a share that shows in a residual"),
    pytest.param(
        ending_after(model((1, 2, 3), (3, 1, 2)), (0,), (2, 1), (1, 0, 2)),
        model((2, 2, 1), (1, 3, 1)),
        3,
        id="a law that ends after some prefixes",
    ),
    pytest.param(
        ending_after(model((2, 3), (4, 1)), (0,), (1, 1), (1, 0, 0), (1, 0, 1)),
        model((3, 2), (1, 3)),
        4,
        id="a law that always ends",
    ),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("target", "draft", "k"), PAIRS)
def test_the_targets_law_is_emitted_exactly(rule: Rule, target: Model, draft: Model, k: int) -> None:
    assert emitted_law(rule, target, draft, k=k) == plain_law(target, length=k + 1)


RAW, GUESSED = model((1, 2, 3, 2), (4, 1, 2, 1), (0, 3, 2, 3)), model((3, 2, 2, 1), (1, 3, 0, 4))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("both", [True, False], ids=["on both sides", "on the target alone"])
def test_processors_are_part_of_the_law(rule: Rule, name: str, both: bool) -> None:
    target = PROCESSORS[name](RAW)
    draft = PROCESSORS[name](GUESSED) if both else GUESSED
    assert emitted_law(rule, target, draft, k=2) == plain_law(target, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_cut_to_its_likeliest_tokens_keeps_the_law(rule: Rule) -> None:
    cut = processed(GUESSED, SamplingParameters(seed=0, top_k=2))
    assert emitted_law(rule, RAW, cut, k=3) == plain_law(RAW, length=4)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_stops_behind_an_end_token_keeps_the_law(rule: Rule) -> None:
    found = emitted_law(rule, RAW, GUESSED, k=3, goes_on=up_to_an_end)
    assert found == plain_law(RAW, length=4)


def weights(vocab: int, total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """`vocab` weights that add up to `total`, zeros included."""
    cuts = st.lists(st.integers(0, total), min_size=vocab - 1, max_size=vocab - 1).map(sorted)
    return cuts.map(lambda cut: tuple(high - low for low, high in zip([0, *cut], [*cut, total], strict=True)))


def models(vocab: int) -> st.SearchStrategy[Model]:
    return st.lists(weights(vocab, 5), min_size=1, max_size=3).map(lambda rows: model(*rows))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Model, Model, int]:
    vocab = draw(st.integers(2, 3))
    return draw(models(vocab)), draw(models(vocab)), draw(st.integers(0, 3 if vocab == 2 else 2))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30, deadline=None)
@given(pair=pairs())
def test_the_targets_law_is_emitted_for_any_pair_of_models(rule: Rule, pair: tuple[Model, Model, int]) -> None:
    target, draft, k = pair
    assert emitted_law(rule, target, draft, k=k) == plain_law(target, length=k + 1)


# Rounds in a row ------------------------------------------------------------------------------------------------------


def text(numbers: Numbers, rule: Rule, target: Model, draft: Model, length: int) -> Prefix:
    """Rounds with K = 2 until there are `length` tokens."""
    ids: Prefix = ()
    while len(ids) < length:
        ids += emitted(numbers, rule, target, draft, k=min(2, length - 1 - len(ids)), before=ids)
    return ids


@pytest.mark.parametrize("rule", RULES)
def test_rounds_in_a_row_keep_the_law(rule: Rule) -> None:
    target, draft = model((1, 2), (3, 1)), model((2, 1), (1, 1))
    found = law_of_process(lambda numbers: text(numbers, rule, target, draft, 4))
    assert continued(found, target, length=4) == plain_law(target, length=4)


class OfPositions(Numbers):
    """Numbers named by the position that they are about, so that two rounds that come to it read the same one."""

    def __init__(self, numbers: Numbers, name: tuple[object, ...] = ()) -> None:
        self._wrapped, self._name = numbers, name

    def __call__(self, *name: object) -> Fraction:
        kind, offset, index = name
        assert isinstance(offset, int)
        assert isinstance(index, int)
        return self._wrapped(kind, offset + index)  # type: ignore[return-value]


def test_a_block_needs_numbers_of_its_own_and_rejection_does_not() -> None:
    # A block looks at numbers and tokens beyond what it accepts; if the next round finds them again, the law is lost.
    target, draft = model((1, 2), (3, 1)), model((2, 1), (1, 1))

    def found(rule: Rule) -> dict[Prefix, Fraction]:
        law = law_of_process(lambda numbers: text(OfPositions(numbers), rule, target, draft, 4))
        return continued(law, target, length=4)

    assert found(verify_rejection) == plain_law(target, length=4)
    assert found(verify_block) != plain_law(target, length=4)


# How many stand -------------------------------------------------------------------------------------------------------

THIRDS, SWAPPED = model((1, 2)), model((2, 1))


@pytest.mark.parametrize(("rule", "expected"), [(verify_rejection, Fraction(10, 9)), (verify_block, Fraction(11, 9))])
def test_swapped_thirds_accept_ten_ninths_one_by_one_and_eleven_ninths_as_a_block(
    rule: Rule, expected: Fraction
) -> None:
    # Constants of Sun et al. 2024: p = (1/3, 2/3), q = (2/3, 1/3), K = 2.
    assert accepted_on_average(rule, THIRDS, SWAPPED, k=2) == expected


@settings(max_examples=30, deadline=None)
@given(pair=pairs())
def test_a_block_never_accepts_fewer_on_average(pair: tuple[Model, Model, int]) -> None:
    target, draft, k = pair
    as_block = accepted_on_average(verify_block, target, draft, k=k)
    one_by_one = accepted_on_average(verify_rejection, target, draft, k=k)
    assert as_block >= one_by_one
    assert k > 1 or as_block == one_by_one


def test_one_position_is_accepted_with_the_overlap_of_the_laws() -> None:
    p, q = model((1, 2, 3)), model((2, 2, 2))
    overlap = sum((min(Fraction(p(())[token]), Fraction(q(())[token])) for token in range(3)), Fraction(0))
    assert accepted_on_average(verify_rejection, p, q, k=1) == overlap == Fraction(5, 6)


# Larger grids ---------------------------------------------------------------------------------------------------------

ROWS: dict[int, Sequence[Sequence[int]]] = {
    2: ((1, 2), (5, 1), (0, 3)),
    3: ((1, 2, 4), (3, 0, 2), (1, 1, 1)),
    4: ((1, 2, 3, 1), (0, 4, 1, 2), (2, 2, 1, 2)),
}


@pytest.mark.exactness
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", range(5))
@pytest.mark.parametrize("vocab", ROWS)
@pytest.mark.parametrize("name", ["none", *PROCESSORS])
def test_the_targets_law_is_emitted_on_the_whole_grid(rule: Rule, vocab: int, k: int, name: str) -> None:
    raw, guessed = model(*ROWS[vocab]), model(*ROWS[vocab][::-1])
    target = PROCESSORS[name](raw) if name in PROCESSORS else raw
    assert emitted_law(rule, target, guessed, k=k) == plain_law(target, length=k + 1)


def test_the_draws_of_a_zero_mass_token_are_never_emitted() -> None:
    target, draft = model((1, 0, 1)), model((0, 1, 0))
    law: Distribution = target(())
    assert emitted_law(verify_block, target, draft, k=2).keys() == {(a, b, c) for a in law for b in law for c in law}
