"""A target that judges only a beginning of a proposal keeps the law, if what it leaves out hangs on no drawn token."""

from collections.abc import Sequence

import pytest
from tests.laws.enumeration import Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import Kept, Rule, emitted, model, up_to_an_end, up_to_k

from tandem_runtime.domain.batching import Claim
from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.budget import Offer, StepSeconds, kept_slots
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.verification import verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]
TARGET, DRAFT = model((4, 1, 2), (1, 1, 3)), model((2, 0, 3), (4, 0, 1))
K, LENGTH = 2, 3
SECONDS = StepSeconds(1.0, 1.0)
HOPES: dict[TokenId, tuple[float, ...]] = {0: (0.1, 0.01), 1: (0.8, 0.3), 2: (1.0, 0.9)}
"""A belief that follows the last token that was emitted, as a belief learnt from the text does."""


def by_belief(before: Prefix, ids: Prefix) -> int:
    """The product's own rule, beside another session of the tenant that has a guess of its own."""
    believed = HOPES[before[-1]] if before else (0.9, 0.8)
    beside = Offer(Claim(), 1, (0.5,) * (1 + len(before) % 2))
    return kept_slots([Offer(Claim(), 1, believed[: len(ids)]), beside], SECONDS)[0]


def by_the_drawn_token(before: Prefix, ids: Prefix) -> int:
    """A rule that nobody may have: it looks at what the target is going to think of the guesses."""
    chances = [float(TARGET(before + ids[:count]).get(token, 0)) for count, token in enumerate(ids)]
    return next((count for count, chance in enumerate(chances) if chance < 0.3), len(ids))


def text(numbers: Numbers, rule: Rule, *, kept: Kept, ends: bool) -> Prefix:
    """Rounds one behind the other; each begins with other beliefs."""
    ids: Prefix = ()
    goes_on = up_to_an_end if ends else up_to_k
    while len(ids) < LENGTH:
        ids += emitted(numbers, rule, TARGET, DRAFT, k=K, before=ids, goes_on=goes_on, kept=kept)
    return ids[:LENGTH]


def law(rule: Rule, *, kept: Kept, ends: bool = False) -> dict[Prefix, object]:
    whole = law_of_process(lambda numbers: text(numbers, rule, kept=kept, ends=ends))
    return dict(continued(whole, TARGET, length=LENGTH))


def test_the_beliefs_here_cut_some_proposals_and_not_others() -> None:
    befores: Sequence[Prefix] = [(), (0,), (1,), (2,), (1, 2)]
    assert {by_belief(before, (0, 0)) for before in befores} == {0, 1, 2}


@pytest.mark.parametrize("ends", [False, True], ids=["of K", "up to an end token"])
@pytest.mark.parametrize("rule", RULES)
def test_proposals_cut_by_beliefs_keep_the_law(rule: Rule, ends: bool) -> None:
    assert law(rule, kept=by_belief, ends=ends) == plain_law(TARGET, length=LENGTH)


@pytest.mark.parametrize("rule", RULES)
def test_proposals_cut_by_what_was_drawn_would_not(rule: Rule) -> None:
    assert law(rule, kept=by_the_drawn_token) != plain_law(TARGET, length=LENGTH)
