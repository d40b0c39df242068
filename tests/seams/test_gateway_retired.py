"""A revision that ends while an answer of it is open: whether it goes on proposing is what gateways were told last."""

from dataclasses import replace

from tests.seams.gateway_peers import Running, always, running_gateway
from tests.seams.test_gateway_sessions import LONG, slowly

from tandem_runtime.domain.policy import PairRevision, RevisionName
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.local import LOCAL_DRAFT, LOCAL_TARGET

CANARY = PairRevision(RevisionName("canary"), LOCAL_TARGET, LOCAL_DRAFT, 100)
STABLE = PairRevision(RevisionName("stable"), LOCAL_TARGET, None, 100)
QUIET = replace(CANARY, weight=0, speculate=False)


def proposed(running: Running) -> int:
    return sum(stratum["proposed"] for stratum in running.gateway.evidence()["strata"])


async def proposed_by(*policies: tuple[PairRevision, ...]) -> list[int]:
    """The proposed tokens when each policy comes, 20 pieces of one answer apart, and at its end."""
    found, later = list[int](), list(policies)
    async with running_gateway(slowly(chain_logits), chain_logits, speculation=always(2)) as running:
        running.put_policy(revisions=(CANARY,))
        pieces = 0
        async for _ in running.stream(**LONG):
            pieces += 1
            if pieces % 20 == 0 and later:
                found.append(proposed(running))
                running.put_policy(revisions=later.pop(0))
        return [*found, proposed(running)]


async def test_an_answer_that_was_told_not_to_speculate_does_not_begin_again_when_its_revision_is_gone() -> None:
    first, second, last = await proposed_by((QUIET, STABLE), (STABLE,))
    assert first > 0
    assert second - first <= 4  # a round that was on its way
    assert last == second


async def test_an_answer_of_a_revision_that_a_promotion_replaced_goes_on_with_its_draft() -> None:
    first, last = await proposed_by((STABLE,))
    assert last > first + 20
