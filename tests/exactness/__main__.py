"""Knows the command that proves drafter invariance at length: `make exactness`, or some groups of it.

    python -m tests.exactness                                  100,000 sequences on two processes
    python -m tests.exactness --sequences 5000                 fewer
    python -m tests.exactness --groups 0-781 --processes 1     half of them, on one core
    python -m tests.exactness --groups 17                      one group, as a failure names it
    python -m tests.exactness --torch --sequences 1000         on the torch engine through real gRPC

Progress says which groups are done, in order, so that a run that was stopped goes on with the next.
Exits 1 and prints each differing sequence with its reproduction. Refuses to know what is proven.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.exactness.cases import MASTER_SEED, SEQUENCES_PER_GROUP, group_of
from tests.exactness.invariance import Tally, prove

REPORT_EVERY_SECONDS = 30.0


def proven(number: int) -> Tally:
    return asyncio.run(prove(group_of(number)))


def proven_over_torch(number: int) -> Tally:
    from tests.exactness.wired import wired  # noqa: PLC0415  # torch and gRPC, only for who asks

    return asyncio.run(prove(group_of(number), staging=wired, reference_every=None))


def groups_of(text: str) -> range:
    """`17` or `0-781`, both ends included."""
    first, _, last = text.partition("-")
    try:
        groups = range(int(first), int(last or first) + 1)
    except ValueError:
        groups = range(0)
    if not groups:
        raise argparse.ArgumentTypeError(f"{text!r} names no groups; write a number, or FIRST-LAST such as 0-781")
    return groups


def _tallies(prover: Callable[[int], Tally], groups: range, processes: int) -> Iterator[Tally]:
    """In the order of the groups."""
    if processes == 1:
        yield from map(prover, groups)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(prover, groups)


def _all(groups: range, tallies: Iterator[Tally], began: float) -> Tally:
    tally, reported = Tally(), began
    for number, part in zip(groups, tallies, strict=True):
        tally.add(part)
        for mismatch in part.mismatches:
            print(mismatch, flush=True)
        if time.monotonic() - reported >= REPORT_EVERY_SECONDS:
            reported = time.monotonic()
            print(f"groups {groups[0]}-{number} of {groups[-1]}, {reported - began:.0f} s: {_short(tally)}", flush=True)
    return tally


def _short(tally: Tally) -> str:
    return f"{tally.sequences} sequences, {len(tally.mismatches)} differ"


def _summary(tally: Tally) -> str:
    return (
        f"{tally.tokens} tokens in {tally.rounds} rounds, {tally.accepted} of {tally.proposed} proposed tokens "
        f"accepted, {tally.by_reference} plain answers equal to the reference's, {tally.cut_off} sequences cut off by "
        f"their own rules, {sum(tally.faults.values())} faults: {tally.faults}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--sequences", type=int, default=100_000, help="how many, rounded up to whole groups")
    chosen.add_argument("--groups", type=groups_of, help="only these: a number, or FIRST-LAST with both included")
    parser.add_argument("--torch", action="store_true", help="on the torch engine, through real gRPC")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    groups = options.groups or range(max(1, -(-options.sequences // SEQUENCES_PER_GROUP)))
    print(f"master seed {MASTER_SEED}, groups {groups[0]}-{groups[-1]}", flush=True)
    began = time.monotonic()
    prover = proven_over_torch if options.torch else proven
    tally = _all(groups, _tallies(prover, groups, options.processes), began)
    print(_summary(tally))
    print(f"{_short(tally)}, {time.monotonic() - began:.0f} s")
    return 1 if tally.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
