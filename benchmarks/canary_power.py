"""Measures how often an equal canary is refused, and how soon a worse one is: `make bench NAME=canary_power`.

Refuses to know gateways and clusters: time is virtual. The evidence (`domain.evidence`) and the checks
(`domain.health`) are the product's own, looked at every 30 s over the default steps that serve somebody, with the
default analysis; then with three segments and a bound on stutter besides, where a part of the traffic decodes plainly.

The traffic is meant to mislead (`canary_traffic`). Two tests that people write first are shown the same: a z test at
the same confidence that is asked at every look, and the product's own interval over sums that are pooled over the
weights.

Runs depend on their seed alone, so they are shared out to as many processes as there are cores.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from benchmarks.canary_traffic import CANARY, LOOK_SECONDS, SEGMENTS, SLOT_SECONDS, STABLE, TARGET, Drop, Traffic
from benchmarks.record import record
from tandem_operator.domain import evidence, health
from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import Estimate, combine, difference, half_width, ratio
from tandem_operator.domain.record import EPOCH
from tandem_operator.domain.samples import Stratum
from tandem_operator.domain.spec import DEFAULT_STEPS, Analysis, InterTokenGate, SegmentGate
from tandem_runtime.engines.cores import allowed_cores

SEED, RUNS, POWER_RUNS = 17, 2000, 400
DEADLINE_SECONDS = 14_400
ENOUGH = 2000
"""Requests of the canary within which a drop must be found."""
STEPS = tuple(step for step in DEFAULT_STEPS if not step.shadow)
RULES = Analysis()
GATES = tuple(SegmentGate(name=name) for name in SEGMENTS)
IN_PARTS = Analysis(segments=GATES, inter_token_latency=InterTokenGate(max_p99_increase_basis_points=2500))
DROP = RULES.acceptance.max_drop_basis_points / 10_000
WORSE_IN = "hot"
SEGMENT_DROP = 1.5 * GATES[0].max_drop_basis_points / 10_000
"""In a seventh of the traffic, so that the whole hardly tells."""
FAR = 2**32
"""Where the seeds of worse canaries begin, downwards."""


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
class Naive:
    """What the two tests that people write first have said so far; nobody asks them where there are parts."""

    asked: bool
    z: bool = False
    pooled: bool = False

    def look(self, known: Evidence, alpha: float) -> None:
        if self.asked:
            self.z = self.z or z_test_fails(known)
            self.pooled = self.pooled or pooled_fails(known, alpha)


def watch(seed: int, *, drop: Drop | None = None, rules: Analysis = RULES, most_requests: int | None = None) -> Run:
    """One canary from its first step to its end."""
    in_parts = bool(rules.segments)
    traffic, step, since = Traffic(seed, drop=drop or Drop(), in_parts=in_parts), 0, 0
    known, naive = evidence.begin(CANARY, STABLE, since=1, now=EPOCH), Naive(asked=not in_parts)
    for look in range(1, DEADLINE_SECONDS // LOOK_SECONDS + 1):
        second, policy, percent = look * LOOK_SECONDS, step + 1, STEPS[step].percent
        traffic.pass_time(second - LOOK_SECONDS, policy, percent)
        known = added(known, traffic, second, policy, rules)
        asked = question(known, step, rules)
        results = health.assess(asked)
        naive.look(known, asked.alpha)
        failed = tuple(each.name for each in results if each.verdict is CheckVerdict.FAIL)
        requests = asked_of(known)
        if failed or (most_requests is not None and requests >= most_requests):
            return Run(Ending.FAILED if failed else Ending.EXPIRED, failed, requests, look, naive.z, naive.pooled)
        if health.worst(results) is CheckVerdict.PASS and second - since >= STEPS[step].hold_seconds:
            step, since = step + 1, second
            if step == len(STEPS):
                return Run(Ending.PROMOTED, (), requests, look, naive.z, naive.pooled)
    return Run(Ending.EXPIRED, (), asked_of(known), DEADLINE_SECONDS // LOOK_SECONDS, naive.z, naive.pooled)


def added(known: Evidence, traffic: Traffic, second: int, policy: int, rules: Analysis) -> Evidence:
    more = rules.inter_token_latency.max_p99_increase_basis_points
    return evidence.add(
        known,
        traffic.scrape(second, policy),
        gateways=["gateway"],
        slot_seconds=SLOT_SECONDS,
        stretch_factor=None if more is None else 1 + more / 10_000,
    )


def question(known: Evidence | None, step: int, rules: Analysis = RULES) -> health.Question:
    decides = STEPS[step].percent >= 50
    return health.Question(analysis=rules, evidence=known, target=TARGET, floor_decides=decides)


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


@dataclass(frozen=True, slots=True)
class Runs:
    """Canaries that equal stable and that accept less, by the default rules and in parts."""

    equal: list[Run]
    worse: list[Run]
    equal_in_parts: list[Run]
    worse_in_one: list[Run]


def figures_of(runs: Runs) -> Mapping[str, float]:
    equal, parts = runs.equal, runs.equal_in_parts
    return {
        **_refusals("", equal, RULES),
        "naive_abort_rate": sum(run.naive for run in equal) / len(equal),
        "pooled_abort_rate": sum(run.pooled for run in equal) / len(equal),
        **_power("drop_5", runs.worse, "acceptanceDrop"),
        **_refusals("parts_", parts, IN_PARTS),
        **_power("segment_drop", runs.worse_in_one, "segments"),
    }


def _refusals(prefix: str, equal: list[Run], rules: Analysis) -> Mapping[str, float]:
    failed = [run for run in equal if run.ending is Ending.FAILED]
    passed = [run.requests for run in equal if run.ending is Ending.PROMOTED]
    asked = question(None, 0, rules)
    names = sorted({check.name for check in health.CHECKS if check.part and check.is_wanted(asked)})
    by_check = {f"{prefix}false_{name}": sum(name in run.failed for run in equal) / len(equal) for name in names}
    return {
        f"{prefix}equal_runs": len(equal),
        f"{prefix}false_abort_rate": len(failed) / len(equal),
        f"{prefix}false_abort_upper": upper_bound(len(failed), len(equal)),
        f"{prefix}promoted_rate": len(passed) / len(equal),
        f"{prefix}requests_to_promotion_median": statistics.median(passed) if passed else math.inf,
        **by_check,
    }


def _power(what: str, worse: list[Run], check: str) -> Mapping[str, float]:
    found = [run.requests for run in worse if check in run.failed and run.requests <= ENOUGH]
    return {
        f"power_{what}_at_2000": len(found) / len(worse),
        f"requests_to_{what}_median": statistics.median(found) if found else math.inf,
        f"requests_to_{what}_p90": statistics.quantiles(found, n=10)[-1] if len(found) > 1 else math.inf,
    }


def _plain(runs: list[Run]) -> list[list[object]]:
    return [[str(run.ending), list(run.failed), run.requests, run.looks, run.naive, run.pooled] for run in runs]


def all_runs(count: int, power: int, processes: int) -> Runs:
    """Of equal ones in parts half as many, which take twice as long."""
    equal, worse = range(SEED, SEED + count), range(FAR - SEED, FAR - SEED - power, -1)
    less = {"drop": Drop(DROP), "most_requests": ENOUGH + 1}
    less_in_one = {"drop": Drop(segment=WORSE_IN, more=SEGMENT_DROP), "most_requests": ENOUGH + 1}
    with ProcessPoolExecutor(processes) as pool:
        kinds = [
            pool.map(partial(watch, **more), seeds, chunksize=5)
            for more, seeds in (
                ({}, equal),
                (less, worse),
                ({"rules": IN_PARTS}, equal[: max(count // 2, 1)]),
                ({"rules": IN_PARTS, **less_in_one}, worse),
            )
        ]
        return Runs(*(list(kind) for kind in kinds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, help="canaries that equal stable; half as many in parts")
    parser.add_argument("--power-runs", type=int, default=POWER_RUNS, help="canaries that accept less, of each kind")
    parser.add_argument("--processes", type=int, default=allowed_cores(), help="that share the runs (default: cores)")
    parser.add_argument("--dry", action="store_true", help="print without writing the result")
    given = parser.parse_args()
    runs = all_runs(given.runs, given.power_runs, given.processes)
    figures = figures_of(runs)
    for name, value in figures.items():
        print(f"{name:36} {value:.4f}")
    if not given.dry:
        columns = ["ending", "failed", "canary requests", "looks", "naive z failed", "pooled failed"]
        kinds = {name: _plain(getattr(runs, name)) for name in Runs.__slots__}
        record("canary_power", seed=SEED, figures=figures, samples={"columns": columns, **kinds})


if __name__ == "__main__":
    main()
