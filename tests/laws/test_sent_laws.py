"""What a draft sends is what it drew from: cut to the likeliest, rounded to float32, one-hot. Exact laws."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import Rule, emitted_law, model

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.sampling import Distribution, draw
from tandem_runtime.domain.tokens import Proposal, SparseRow, TokenId
from tandem_runtime.domain.verification import Chance, admissible, law_of, verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]
TARGET = model((1, 2, 3), (4, 1, 2))


def row_sent(weights: Sequence[int], *, top: int) -> SparseRow:
    """The `top` likeliest, renormalised in float64, rounded to float32: what travels, as exact fractions."""
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))[:top]
    kept = np.array([weights[token] for token in ranked], np.float64)
    rounded = (kept / kept.sum()).astype(np.float32)
    return SparseRow(tuple(ranked), tuple(Fraction(float(value)) for value in rounded))  # type: ignore[misc]


def sent_model(top: int) -> Model:
    rows = [row_sent((3, 7, 3), top=top), row_sent((1, 1, 11), top=top)]
    return lambda prefix: dict(sorted(zip(rows[len(prefix) % 2].ids, rows[len(prefix) % 2].probabilities, strict=True)))


def emitted_by(rule: Rule, weights: Model, declared: Model, *, k: int) -> dict[Prefix, Fraction]:
    """The law when ids are drawn in proportion to `weights`, as `draw` does, and judged by `declared`."""

    def process(numbers: Numbers) -> Prefix:
        ids: Prefix = ()
        while len(ids) < k:
            ids = (*ids, draw(weights(ids), numbers("draft", len(ids))))
        q = [declared(ids[:count]) for count in range(k)]
        p = [TARGET(ids[:count]) for count in range(k + 1)]
        verified = rule(ids, q, p, Chance(numbers.all_of("accept"), numbers.all_of("follow")))
        return (*ids[: verified.accepted], verified.token)

    return continued(law_of_process(process), TARGET, length=k + 1)


def as_law(weights: Model) -> Model:
    """What the verifier makes of the row that came."""
    return lambda prefix: law_of(SparseRow(tuple(weights(prefix)), tuple(weights(prefix).values())))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("top", [1, 2, 3])
def test_rows_rounded_for_the_wire_keep_the_law(rule: Rule, top: int) -> None:
    weights = sent_model(top)
    assert emitted_by(rule, weights, as_law(weights), k=2) == plain_law(TARGET, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_rounded_rows_taken_as_they_are_would_not(rule: Rule) -> None:
    weights = sent_model(2)
    assert any(sum(weights((0,) * count).values()) != 1 for count in range(2))
    assert emitted_by(rule, weights, weights, k=2) != plain_law(TARGET, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_a_row_as_it_was_before_it_was_cut_would_not(rule: Rule) -> None:
    assert emitted_by(rule, sent_model(2), sent_model(3), k=1) != plain_law(TARGET, length=2)


@pytest.mark.parametrize("rule", RULES)
def test_a_chosen_continuation_is_a_one_hot_law(rule: Rule) -> None:
    # An n-gram draft: what it proposes is certain, so it stands with p(x), and the residual is p without x.
    chosen: Model = lambda prefix: {(len(prefix) + sum(prefix)) % 3: Fraction(1)}  # noqa: E731  # a model is a function
    assert emitted_law(rule, TARGET, chosen, k=3) == plain_law(TARGET, length=4)


# A draft with a wider vocabulary --------------------------------------------------------------------------------------

WIDE = model((1, 1, 1, 1), (2, 1, 1, 0))
"""Knows token 3, which the target does not."""


def judged_after(cut_by_draw: bool, rule: Rule, *, k: int) -> dict[Prefix, Fraction]:
    def process(numbers: Numbers) -> Prefix:
        ids: Prefix = ()
        while len(ids) < k:
            ids = (*ids, draw(WIDE(ids), numbers("draft", len(ids))))
        laws = [WIDE(ids[:count]) for count in range(k)]
        kept = cut_at_the_drawn_id(ids) if cut_by_draw else admitted(ids, laws)
        p = [TARGET(ids[:count]) for count in range(kept + 1)]
        verified = rule(ids[:kept], laws[:kept], p, Chance(numbers.all_of("accept"), numbers.all_of("follow")))
        return (*ids[: verified.accepted], verified.token)

    return continued(law_of_process(process), TARGET, length=k + 1)


def admitted(ids: Sequence[TokenId], laws: Sequence[Distribution]) -> int:
    rows = tuple(SparseRow(tuple(law), tuple(map(float, law.values()))) for law in laws)
    return len(admissible(Proposal(tuple(ids), rows), vocab_size=3).ids)


def cut_at_the_drawn_id(ids: Sequence[TokenId]) -> int:
    return next((at for at, token in enumerate(ids) if token >= 3), len(ids))


@pytest.mark.parametrize("rule", RULES)
def test_a_proposal_cut_by_what_could_have_been_drawn_keeps_the_law(rule: Rule) -> None:
    assert judged_after(False, rule, k=2) == plain_law(TARGET, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_a_proposal_cut_by_what_was_drawn_would_not(rule: Rule) -> None:
    assert judged_after(True, rule, k=2) != plain_law(TARGET, length=3)
