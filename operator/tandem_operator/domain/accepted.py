"""Knows what evidence says of the acceptance of a canary and of stable, and what is missing before it says anything.

Refuses to know thresholds and verdicts (`health`).
"""

from collections.abc import Callable, Iterable, Mapping

from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import Estimate, combine, difference, ratio
from tandem_operator.domain.samples import Stratum
from tandem_operator.domain.spec import Analysis
from tandem_operator.domain.verdicts import SMALLEST_SCALE

FEWEST_BUCKETS = 32
"""Below this many filled buckets a variance over buckets is not to be trusted."""
HARDLY = 0.1
"""Below this share of rounds with proposals a revision as good as decodes plainly."""

Rows = tuple[tuple[int, ...], tuple[int, ...]]
"""By bucket: what is counted, and of how many."""
Read = Callable[[Stratum], Rows]


class Accepted:
    """The acceptance of both revisions by stratum, and what is missing to speak of it."""

    def __init__(self, evidence: Evidence, analysis: Analysis, *, shadow: bool) -> None:
        self._needed = analysis.min_requests
        canary, stable = evidence.strata(evidence.canary), evidence.strata(evidence.stable)
        read = _shadow if shadow else _accepted
        self.canary = by_policy(canary, read)
        self.stable = by_policy(stable, _accepted)
        self.scale = max(analysis.acceptance.max_drop_basis_points / 10_000, SMALLEST_SCALE)
        counted, examined = sums_of(canary.values(), read)
        self.pooled = f"{counted / examined:.3f}" if examined else ""
        requests, stable_requests = requests_of(canary.values()), requests_of(stable.values())
        self.samples = f"{examined} scored tokens" if shadow else f"{requests} requests"
        self.both_samples = f"{self.samples}, stable {stable_requests} requests"
        what = "shadow" if shadow else "acceptance"
        idle = "" if shadow else _idle(canary.values())
        self.missing = "" if examined else f"the gateways hold no {what} sums of revision {evidence.canary} yet{idle}"
        self.missing_stable = (
            "" if sums_of(stable.values(), _accepted)[1] else f"no acceptance sums of revision {evidence.stable} yet"
        )
        self.short = "" if shadow else self._short(requests, evidence.canary, idle)
        self.short_stable = "" if shadow else self._short(stable_requests, evidence.stable)
        self.unfilled = (
            f"too few requests under any one policy: they fall into buckets, and {FEWEST_BUCKETS} must be filled"
        )

    @property
    def loss(self) -> Estimate | None:
        """The canary's less stable's, of strata with both."""
        shared = sorted(self.canary.keys() & self.stable.keys())
        return combine(difference(self.canary[policy], self.stable[policy]) for policy in shared)

    @property
    def loss_in_turn(self) -> Estimate | None:
        """The canary's less stable's, which proposed before it: no stratum has both."""
        after, before = combine(self.canary.values()), combine(self.stable.values())
        return None if after is None or before is None else difference(after, before)

    def _short(self, requests: int, revision: str, idle: str = "") -> str:
        has = f"revision {revision} has {requests} of the {self._needed} requests it needs"
        return "" if requests >= self._needed else f"{has}{idle}"


def _idle(strata: Iterable[Stratum]) -> str:
    """That a revision proposes so little that one may wait in vain: its runtime sees no gain, or it may not."""
    total = total_of(strata)
    if total is None or not hardly_proposes(total):
        return ""
    return f"; nothing was proposed in {1 - total.speculating / total.rounds:.0%} of its {total.rounds} rounds"


def hardly_proposes(stratum: Stratum) -> bool:
    """Whether this revision as good as decoded plainly."""
    return stratum.speculating < HARDLY * stratum.rounds


def by_policy(strata: Mapping[int, Stratum], read: Read) -> dict[int, Estimate]:
    """Estimates of the strata that have enough filled buckets."""
    found = {policy: ratio(*read(stratum)) for policy, stratum in strata.items()}
    return {policy: known for policy, known in found.items() if known is not None and known.units >= FEWEST_BUCKETS}


def _accepted(stratum: Stratum) -> Rows:
    return ((), ()) if stratum.acceptance is None else (stratum.acceptance.accepted, stratum.acceptance.examined)


def _shadow(stratum: Stratum) -> Rows:
    return ((), ()) if stratum.shadow is None else (stratum.shadow.matched, stratum.shadow.examined)


def sums_of(strata: Iterable[Stratum], read: Read) -> tuple[int, int]:
    """Both rows that `read` finds, added up over buckets and strata."""
    rows = [read(stratum) for stratum in strata]
    return sum(sum(counted) for counted, _ in rows), sum(sum(examined) for _, examined in rows)


def requests_of(strata: Iterable[Stratum]) -> int:
    """Requests that speak of acceptance: those with at least one proposal in the arm on."""
    return sum(sum(stratum.acceptance.requests) for stratum in strata if stratum.acceptance is not None)
