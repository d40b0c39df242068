"""Measures how often an equal canary is refused, and how soon a worse one is: `make bench NAME=canary_power`.

Refuses to know gateways and clusters: time is virtual. The evidence (`domain.evidence`) and the checks
(`domain.health`) are the product's own, looked at every 30 s over the default steps that serve somebody, with the
default analysis.

The traffic is meant to mislead. Sessions are sticky and differ in acceptance and in waiting; answers have heavy-tailed
lengths; the load swings, and acceptance falls by 20 points while the weights rise from 10 to 50 %; the canary examines
a quarter more tokens for the same text, as a larger K does; outages make both err; a pod's speed wanders from slot to
slot with an autocorrelation of .4. Two tests that people write first are shown the same traffic: a z test at the same
confidence that is asked at every look, and the product's own interval over sums that are pooled over the weights.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import record
from tandem_operator.domain import evidence, health
from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import Estimate, combine, difference, half_width, ratio
from tandem_operator.domain.record import EPOCH
from tandem_operator.domain.samples import BUCKETS, Arm, Buckets, Document, FirstTokens, Scrape, Slot, Stratum
from tandem_operator.domain.spec import DEFAULT_STEPS, Analysis
from tandem_runtime.domain.evidence import FIRST_TOKEN_EDGES_MILLISECONDS

SEED, RUNS, POWER_RUNS = 17, 2000, 400
LOOK_SECONDS, DEADLINE_SECONDS = 30, 14_400
RATE = 8.0
"""Requests per second, in the mean."""
SESSIONS, REQUESTS_OF_A_SESSION = 400, 5
FALL, FALL_SECONDS = 0.2, 1800
OFF, SLOT_SECONDS, PODS = 0.2, 20, 2
ENOUGH = 2000
"""Requests of the canary within which a drop must be found."""
CANARY, STABLE, TARGET = "canary", "stable", "t"
STEPS = tuple(step for step in DEFAULT_STEPS if not step.shadow)
RULES = Analysis()

Numbers = NDArray[np.float64]


class Ending(StrEnum):
    PROMOTED = "promoted"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(slots=True)
class Run:
    """What became of one canary; `requests` are its own, with proposals, when it ended."""

    ending: Ending
    failed: tuple[str, ...]
    requests: int
    looks: int
    naive: bool
    pooled: bool


@dataclass(slots=True)
class Counts:
    """What a gateway counts of one revision under one policy."""

    requests: int = 0
    errors: int = 0
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros((3, BUCKETS), np.int64))
    waits: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((len(FIRST_TOKEN_EDGES_MILLISECONDS) + 1, BUCKETS), np.int64)
    )

    def stratum(self, policy: int, revision: str) -> Stratum:
        accepted, examined, asked = (tuple(row.tolist()) for row in self.rows)
        bins = {str(index): tuple(row.tolist()) for index, row in enumerate(self.waits) if row.any()}
        return Stratum(
            policy=policy,
            revision=revision,
            requests=self.requests,
            errors=self.errors,
            acceptance=Buckets(accepted, examined, asked),
            first_token=FirstTokens(FIRST_TOKEN_EDGES_MILLISECONDS, bins),
        )


class Sessions:
    """Who asks: each with a place among the weights, a bucket, and its own acceptance and patience."""

    def __init__(self, chance: np.random.Generator) -> None:
        self.chance = chance
        self.place, self.acceptance, self.wait = (np.zeros(SESSIONS) for _ in range(3))
        self.bucket = np.zeros(SESSIONS, np.int64)
        self.renew(np.arange(SESSIONS))

    def renew(self, which: NDArray[np.int64]) -> None:
        self.place[which] = self.chance.random(len(which))
        self.bucket[which] = self.chance.integers(BUCKETS, size=len(which))
        self.acceptance[which] = self.chance.normal(0, 0.1, len(which))
        self.wait[which] = self.chance.normal(0, 0.4, len(which))


class Traffic:
    """One gateway and what passes through it."""

    def __init__(self, seed: int, *, drop: float) -> None:
        self.chance = np.random.default_rng(seed)
        self.drop = drop
        self.sessions = Sessions(self.chance)
        self.phase = self.chance.uniform(0, 2 * math.pi)
        self.counts: dict[tuple[int, str], Counts] = {}
        self.told: dict[tuple[int, str], Stratum] = {}
        self.slots: list[Slot] = []
        self.pace = np.zeros(PODS)

    def pass_time(self, second: int, policy: int, percent: int) -> None:
        """The requests and slots of the look's span that begins at `second`."""
        load = 1 + 0.5 * math.sin(2 * math.pi * second / 3000 + self.phase)
        asked = int(self.chance.poisson(RATE * LOOK_SECONDS * load))
        who = self.chance.integers(SESSIONS, size=asked)
        is_canary = self.sessions.place[who] < percent / 100
        outage = self.chance.random() < 0.02
        for name, chosen in ((CANARY, who[is_canary]), (STABLE, who[~is_canary])):
            self._serve(self.counts.setdefault((policy, name), Counts()), name, chosen, second, load, outage)
        self.sessions.renew(np.unique(who[self.chance.random(asked) < 1 / REQUESTS_OF_A_SESSION]))
        self._close_slots(second, policy, percent, load)

    def _serve(self, counts: Counts, name: str, who: NDArray[np.int64], second: int, load: float, outage: bool) -> None:
        count, bucket = len(who), self.sessions.bucket[who]
        counts.requests += count
        counts.errors += int(self.chance.binomial(count, 0.03 if outage else 0.001))
        logs = math.log(100) + load + self.sessions.wait[who] + self.chance.normal(0, 0.5, count)
        np.add.at(counts.waits, (np.searchsorted(FIRST_TOKEN_EDGES_MILLISECONDS, np.exp(logs)), bucket), 1)
        length = np.minimum(20 * (self.chance.pareto(1.5, count) + 1), 2000)
        examined = np.ceil(length * (1.25 if name == CANARY else 1.0)).astype(np.int64)
        level = 0.8 - FALL * min(1.0, second / FALL_SECONDS) - (self.drop if name == CANARY else 0.0)
        accepted = self.chance.binomial(examined, np.clip(level + self.sessions.acceptance[who], 0.02, 0.98))
        on = self.chance.random(count) >= OFF
        sums = (accepted, examined, np.ones(count))
        counts.rows += np.array([np.bincount(bucket[on], values[on], BUCKETS) for values in sums]).astype(np.int64)

    def _close_slots(self, second: int, policy: int, percent: int, load: float) -> None:
        for slot in range(-(-second // SLOT_SECONDS), -(-(second + LOOK_SECONDS) // SLOT_SECONDS)):
            self.pace = 0.4 * self.pace + math.sqrt(1 - 0.16) * self.chance.normal(0, 0.1, PODS)
            for pod in range(PODS):
                self._close_slot(f"pod-{pod}", slot, (policy, percent, load * math.exp(self.pace[pod])))

    def _close_slot(self, pod: str, slot: int, how: tuple[int, int, float]) -> None:
        policy, percent, pace = how
        arm = Arm.OFF if self.chance.random() < OFF else Arm.ON
        for name, share in ((CANARY, percent / 100), (STABLE, 1 - percent / 100)):
            tokens = int(self.chance.poisson(2000 * share)) + 1
            speed = 1.4 if arm is Arm.ON else 1.0
            spent = round(tokens * 20 * pace * math.exp(self.chance.normal(0, 0.05)) / speed) + 1
            held = Slot(
                pod=pod,
                target=TARGET,
                slot=slot,
                arm=arm,
                policy=policy,
                revision=name,
                tokens=tokens,
                milliseconds=spent,
            )
            self.slots.append(held)

    def scrape(self, second: int, policy: int) -> Scrape:
        for key, counts in self.counts.items():
            if key[0] == policy or key not in self.told:
                self.told[key] = counts.stratum(*key)
        self.slots = self.slots[-40:]  # older ones were read
        document = Document(boot="b", policy=policy, strata=tuple(self.told.values()), slots=tuple(self.slots))
        return Scrape(EPOCH + timedelta(seconds=second), {"gateway": document})


def watch(seed: int, *, drop: float = 0.0, most_requests: int | None = None) -> Run:
    """One canary from its first step to its end."""
    traffic, step, since = Traffic(seed, drop=drop), 0, 0
    known = evidence.begin(CANARY, STABLE, since=1, now=EPOCH)
    naive = pooled = False
    for look in range(1, DEADLINE_SECONDS // LOOK_SECONDS + 1):
        second, policy, percent = look * LOOK_SECONDS, step + 1, STEPS[step].percent
        traffic.pass_time(second - LOOK_SECONDS, policy, percent)
        known = evidence.add(known, traffic.scrape(second, policy), gateways=["gateway"], slot_seconds=SLOT_SECONDS)
        results = health.assess(question(known, step))
        naive, pooled = naive or z_test_fails(known), pooled or pooled_fails(known, question(known, step).alpha)
        failed = tuple(each.name for each in results if each.verdict is CheckVerdict.FAIL)
        requests = asked_of(known)
        if failed or (most_requests is not None and requests >= most_requests):
            return Run(Ending.FAILED if failed else Ending.EXPIRED, failed, requests, look, naive, pooled)
        if health.worst(results) is CheckVerdict.PASS and second - since >= STEPS[step].hold_seconds:
            step, since = step + 1, second
            if step == len(STEPS):
                return Run(Ending.PROMOTED, (), requests, look, naive, pooled)
    return Run(Ending.EXPIRED, (), asked_of(known), DEADLINE_SECONDS // LOOK_SECONDS, naive, pooled)


def question(known: Evidence, step: int) -> health.Question:
    decides = STEPS[step].percent >= 50
    return health.Question(analysis=RULES, evidence=known, target=TARGET, floor_decides=decides)


def asked_of(known: Evidence) -> int:
    held = (stratum.acceptance for stratum in known.strata(CANARY).values())
    return sum(sum(each.requests) for each in held if each is not None)


def _drops(known: Evidence) -> Iterator[Estimate]:
    """Of each stratum."""
    canary, stable = known.strata(CANARY), known.strata(STABLE)
    for policy in canary.keys() & stable.keys():
        estimates = [_ratio_of([strata[policy]]) for strata in (canary, stable)]
        if estimates[0] is not None and estimates[1] is not None:
            yield difference(estimates[0], estimates[1])


def _ratio_of(strata: list[Stratum]) -> Estimate | None:
    total = total_of(strata)
    known = None if total is None else total.acceptance
    return None if known is None else ratio(known.accepted, known.examined)


def z_test_fails(known: Evidence) -> bool:
    """A drop that is significant at the same confidence, as if this were the only look."""
    estimate = combine(_drops(known)) if asked_of(known) >= RULES.min_requests else None
    z = statistics.NormalDist().inv_cdf(RULES.confidence_basis_points / 10_000)
    return estimate is not None and estimate.value + z * estimate.error < 0


def pooled_fails(known: Evidence, alpha: float) -> bool:
    """The product's own rule, over sums of all weights together."""
    margin = RULES.acceptance.max_drop_basis_points / 10_000
    parts = [_ratio_of(list(known.strata(name).values())) for name in (CANARY, STABLE)]
    if parts[0] is None or parts[1] is None or asked_of(known) < RULES.min_requests:
        return False
    drop = difference(parts[0], parts[1])
    h = half_width(drop, margin, alpha)
    return drop.value + h < 0 and drop.value - h <= -margin


def upper_bound(hits: int, runs: int) -> float:
    """The exact one-sided 95 % bound of a share (Clopper and Pearson 1934)."""
    low, high = hits / runs, 1 - 1e-12
    for _ in range(60):
        middle = (low + high) / 2
        fewer = math.fsum(math.exp(_log_chance(k, runs, middle)) for k in range(hits + 1))
        low, high = (middle, high) if fewer > 0.05 else (low, middle)
    return high


def _log_chance(hits: int, runs: int, share: float) -> float:
    ways = math.lgamma(runs + 1) - math.lgamma(hits + 1) - math.lgamma(runs - hits + 1)
    return ways + hits * math.log(share) + (runs - hits) * math.log1p(-share)


def figures_of(equal: list[Run], worse: list[Run]) -> Mapping[str, float]:
    failed = [run for run in equal if run.ending is Ending.FAILED]
    found = [run.requests for run in worse if "acceptanceDrop" in run.failed and run.requests <= ENOUGH]
    passed = [run.requests for run in equal if run.ending is Ending.PROMOTED]
    asked = health.Question(analysis=RULES, evidence=None, target=TARGET)
    names = sorted({check.name for check in health.CHECKS if check.by_chance and check.is_wanted(asked)})
    return {
        "equal_runs": len(equal),
        "false_abort_rate": len(failed) / len(equal),
        "false_abort_upper": upper_bound(len(failed), len(equal)),
        "naive_abort_rate": sum(run.naive for run in equal) / len(equal),
        "pooled_abort_rate": sum(run.pooled for run in equal) / len(equal),
        "promoted_rate": len(passed) / len(equal),
        "requests_to_promotion_median": statistics.median(passed) if passed else math.inf,
        "power_drop_5_at_2000": len(found) / len(worse),
        "requests_to_drop_5_median": statistics.median(found) if found else math.inf,
        "requests_to_drop_5_p90": statistics.quantiles(found, n=10)[-1] if len(found) > 1 else math.inf,
        **{f"false_{name}": sum(name in run.failed for run in equal) / len(equal) for name in names},
    }


def _plain(runs: list[Run]) -> list[list[object]]:
    return [[str(run.ending), list(run.failed), run.requests, run.looks, run.naive, run.pooled] for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="canaries that equal stable")
    parser.add_argument("--power-runs", type=int, default=POWER_RUNS, help="canaries that accept 5 points less")
    parser.add_argument("--dry", action="store_true", help="print without writing the result")
    given = parser.parse_args()
    margin = RULES.acceptance.max_drop_basis_points / 10_000
    equal = [watch(SEED + run) for run in range(given.runs)]
    worse = [watch(-SEED - run + 2**32, drop=margin, most_requests=ENOUGH + 1) for run in range(given.power_runs)]
    figures = figures_of(equal, worse)
    for name, value in figures.items():
        print(f"{name:32} {value:.4f}")
    if not given.dry:
        columns = ["ending", "failed", "canary requests", "looks", "naive z failed", "pooled failed"]
        record(
            "canary_power",
            seed=SEED,
            figures=figures,
            samples={"columns": columns, "equal": _plain(equal), "worse": _plain(worse)},
        )


if __name__ == "__main__":
    main()
