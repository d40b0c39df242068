"""Knows the command that proves drafter invariance at length: `make exactness`, or one group to reproduce a failure.

    python -m tests.exactness                         100,000 sequences on two processes
    python -m tests.exactness --sequences 5000        fewer
    python -m tests.exactness --group 17              one group, in this process

Exits 1 and prints each differing sequence with its reproduction. Refuses to know what is proven.
"""

import argparse
import asyncio
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.exactness.cases import MASTER_SEED, SEQUENCES_PER_GROUP, group_of
from tests.exactness.invariance import Tally, prove

PROCESSES = 2
REPORT_EVERY_GROUPS = 50


def proven(number: int) -> Tally:
    return asyncio.run(prove(group_of(number)))


def _all(sequences: int, began: float) -> Tally:
    tally, groups = Tally(), -(-sequences // SEQUENCES_PER_GROUP)
    with ProcessPoolExecutor(PROCESSES) as pool:
        for done, part in enumerate(pool.map(proven, range(groups), chunksize=4), start=1):
            tally.add(part)
            for mismatch in part.mismatches:
                print(mismatch, flush=True)
            if done % REPORT_EVERY_GROUPS == 0 or done == groups:
                print(f"{done} of {groups} groups, {time.monotonic() - began:.0f} s: {_summary(tally)}", flush=True)
    return tally


def _summary(tally: Tally) -> str:
    return (
        f"{tally.sequences} sequences, {tally.tokens} tokens in {tally.rounds} rounds, {tally.accepted} of "
        f"{tally.proposed} proposed tokens accepted, {sum(tally.faults.values())} faults, {tally.by_reference} plain "
        f"answers equal to the reference's, {tally.cut_off} sequences cut off by their own rules, "
        f"{len(tally.mismatches)} sequences differ"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness")
    parser.add_argument("--sequences", type=int, default=100_000, help="how many, rounded up to whole groups")
    parser.add_argument("--group", type=int, help="only this group, as a failure names it")
    options = parser.parse_args()
    print(f"master seed {MASTER_SEED}", flush=True)
    began = time.monotonic()
    if options.group is None:
        tally = _all(options.sequences, began)
    else:
        tally = proven(options.group)
        for mismatch in tally.mismatches:
            print(mismatch)
        print(_summary(tally))
    print(f"faults: {tally.faults}")
    return 1 if tally.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
