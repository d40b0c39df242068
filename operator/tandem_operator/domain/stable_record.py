"""Knows what stable did before a canary took the place of its pods, as far as evidence tells.

Refuses to know thresholds and verdicts (`health`).
"""

from collections.abc import Mapping

from tandem_operator.domain.accepted import hardly_proposes
from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import SlotSums, error_evidence
from tandem_operator.domain.samples import Arm, Stratum


def served(evidence: Evidence, *, until: int | None) -> Stratum | None:
    """All that stable served, before the policy `until` took its pods; None where that is nothing."""
    strata = evidence.strata(evidence.stable)
    return total_of(held for policy, held in strata.items() if until is None or policy < until)


def slots(evidence: Evidence, target: str) -> tuple[Mapping[int, SlotSums], Mapping[int, SlotSums]]:
    """On and off slots of the strata in which stable spoke and served alone."""
    spoke = evidence.strata(evidence.stable).keys() - silent_policies(evidence)
    alone = spoke - {policy for policy, held in evidence.strata(evidence.canary).items() if held.requests}
    on, off = (evidence.arm(target, arm) for arm in (Arm.BESIDE, Arm.OFF))
    return {policy: on[policy] for policy in on.keys() & alone}, {policy: off[policy] for policy in off.keys() & alone}


def silent_policies(evidence: Evidence) -> set[int]:
    """The strata in which stable decoded as good as plainly."""
    return {policy for policy, held in evidence.strata(evidence.stable).items() if hardly_proposes(held)}


def error_ratios(canary: Stratum, stable: Stratum) -> tuple[float, ...]:
    """The likelihood ratios where stable's record came first: its rate is known as well as that many errors tell.

    That record is the prior of the rate (Gamma(e, n) of e errors in n requests), and one error more than it had keeps
    a record without any from calling the first error proof. Unlike a comparison at the same time it does not take out
    an outage.
    """
    return error_evidence(canary.errors, stable.errors + 1, canary.requests / (canary.requests + stable.requests))
