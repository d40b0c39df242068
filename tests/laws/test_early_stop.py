"""A draft that ends its proposal by its own confidence keeps the target's law; one that looks at the draw does not."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import Proposed, Rule, emitted_law, judged, model

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.sampling import draw
from tandem_runtime.domain.tokens import Stop
from tandem_runtime.domain.verification import Chance, verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]
TARGET, DRAFT = model((4, 1, 2), (1, 1, 3)), model((2, 0, 3), (4, 0, 1), (1, 5, 1))
WORTH = tuple(kind / 16 for kind in range(16))


def told(draft: Model, prefix: Prefix) -> int:
    """A confidence made of q alone, for laws that are fractions: the largest probability, in 255ths."""
    return int(255 * max(draft(prefix).values()))


def by_confidence(draft: Model, least: float) -> Proposed:
    stop = Stop(least, WORTH)
    return lambda guessed, k: (
        len(guessed) < k and not (guessed and stop.ends(told(draft, guessed[:at]) for at in range(len(guessed))))
    )


def lengths(goes_on: Proposed, *, k: int) -> set[int]:
    def process(numbers: Numbers) -> int:
        return len(judged(numbers, verify_rejection, TARGET, DRAFT, k=k, goes_on=goes_on)[0])

    return set(law_of_process(process))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("least", [0.0, 0.2, 0.4, 0.6, 1.0])
def test_the_targets_law_is_emitted_exactly_where_drafting_ends_early(rule: Rule, least: float) -> None:
    found = emitted_law(rule, TARGET, DRAFT, k=3, goes_on=by_confidence(DRAFT, least))
    assert found == plain_law(TARGET, length=4)


def test_proposals_of_different_lengths_were_among_them() -> None:
    assert lengths(by_confidence(DRAFT, 0.4), k=3) == {2, 3}
    assert lengths(by_confidence(DRAFT, 1.0), k=3) == {1}


def ended(rule: Rule, keeps: Callable[[Prefix], bool]) -> dict[Prefix, Fraction]:
    """The law when a drawn token is offered only if `keeps` says so of the guesses with it."""

    def process(numbers: Numbers) -> Prefix:
        ids: Prefix = ()
        while len(ids) < 2:
            drawn = (*ids, draw(DRAFT(ids), numbers("draft", len(ids))))
            if not keeps(drawn):
                break
            ids = drawn
        q = [DRAFT(ids[:count]) for count in range(len(ids))]
        p = [TARGET(ids[:count]) for count in range(len(ids) + 1)]
        verified = rule(ids, q, p, Chance(numbers.all_of("accept"), numbers.all_of("follow")))
        return (*ids[: verified.accepted], verified.token)

    return continued(law_of_process(process), TARGET, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_a_token_withheld_for_its_row_keeps_the_law(rule: Rule) -> None:
    assert ended(rule, lambda drawn: told(DRAFT, drawn[:-1]) > 160) == plain_law(TARGET, length=3)


@pytest.mark.parametrize("rule", RULES)
def test_a_token_withheld_for_its_own_probability_would_not(rule: Rule) -> None:
    assert ended(rule, lambda drawn: DRAFT(drawn[:-1])[drawn[-1]] > Fraction(1, 2)) != plain_law(TARGET, length=3)
