"""Knows the command that measures sampled laws at full size: the second half of `make exactness`.

    python -m tests.exactness.sampled                    a law wrong by .02 in total variation is seen
    python -m tests.exactness.sampled --distance 0.01    by .01, with four times the samples

Refuses to know laws and statistics. Exits 1 if a law is contradicted, or if a draft that lies about its law is not.
"""

import argparse
import asyncio
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.exactness.sampled_laws import controls, findings, looped_findings, setups
from tests.exactness.statistics_of_counts import FALSE_ALARM, NON_CENTRALITY, Finding, contradicted, samples_for

from tandem_runtime.domain.tokens import Verification

PROCESSES = 2
CELLS = 16
"""Of the joint law of two tokens out of four."""


def _looped(verification: Verification, *, samples: int) -> list[Finding]:
    return asyncio.run(looped_findings(verification, samples=samples))


def _measured(samples: int) -> tuple[list[Finding], list[list[Finding]]]:
    """The findings of all rules and shapes, and those of each negative control."""
    setup_findings = partial(findings, samples=samples)
    with ProcessPoolExecutor(PROCESSES) as pool:
        laws = pool.map(setup_findings, setups())
        looped = pool.map(partial(_looped, samples=samples), Verification)
        lies = pool.map(setup_findings, controls())
        honest = [finding for found in (*laws, *looped) for finding in found]
        return honest, list(lies)


def _row(finding: Finding) -> str:
    return (
        f"{finding.name:<40} chi-square {finding.statistic:10.1f} over {finding.cells:2} cells, p {finding.p_value:.2g}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness.sampled")
    parser.add_argument("--distance", type=float, default=0.02, help="the error in total variation that must be seen")
    distance = parser.parse_args().distance
    samples, began = samples_for(CELLS, distance=distance), time.monotonic()
    print(f"{samples} samples each: an error of {distance} is seen with probability .999, ", end="")
    print(f"false alarms of the whole run {FALSE_ALARM} (non-centrality {NON_CENTRALITY[32]})", flush=True)
    honest, lies = _measured(samples)
    for finding in (*honest, *(finding for found in lies for finding in found)):
        print(_row(finding))
    wrong = contradicted(honest)
    unseen = [setup for setup, found in zip(controls(), lies, strict=True) if not contradicted(found)]
    print(
        f"{len(honest)} laws, {len(wrong)} contradicted; {len(lies)} lying drafts, {len(unseen)} not found out; ",
        end="",
    )
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong or unseen else 0


if __name__ == "__main__":
    sys.exit(main())
