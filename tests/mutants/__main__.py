"""Knows the command that plants every fault and prints which test sees it: `make mutants`.

    python -m tests.mutants                   all, two at a time
    python -m tests.mutants --only "cache"    those whose name holds the text

Exits 1 if one survives, if an entry no longer fits the source, or if a test fails without any fault.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.fault import PROOFS, Fault
from tests.mutants.generated import generated
from tests.mutants.harness import PACKAGE, Outcome, first_failure, planted_copy, tried
from tests.mutants.named import NAMED

AT_ONCE = 2


def _row(outcome: Outcome) -> str:
    killer = outcome.killed_by or "SURVIVED"
    return f"{outcome.fault.name:<60} {outcome.seconds:6.1f} s  {killer.removeprefix('tests/')}"


def _without_fault() -> str | None:
    with planted_copy(None) as folder:
        return first_failure(folder, PROOFS)


def _report(faults: list[Fault]) -> list[Outcome]:
    outcomes = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for outcome in pool.map(tried, faults):
            print(_row(outcome), flush=True)
            outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument(
        "--only", default="", help="only faults whose name holds this text; skips the run without fault"
    )
    options = parser.parse_args()
    began = time.monotonic()
    broken = None if options.only else _without_fault()
    if broken is not None:
        print(f"{broken} fails without any fault; mend that first")
        return 1
    outcomes = _report([fault for fault in (*NAMED, *generated(PACKAGE)) if options.only in fault.name])
    survivors = [outcome for outcome in outcomes if outcome.killed_by is None]
    print(f"{len(outcomes)} faults, {len(survivors)} survivors, {time.monotonic() - began:.0f} s")
    return 1 if survivors or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
