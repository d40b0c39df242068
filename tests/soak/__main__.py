"""Knows the command of the soak: `make soak MINUTES=10`, or

    python -m tests.soak --minutes 10 --seed 5

Callers of all kinds keep asking two gateways for texts while drafts, targets and gateways are killed, frozen, drained
and started again. Every answer is the one that is given when nothing breaks, or a failure with its type; at the end no
engine holds a session. Exits 1 and prints what was otherwise; the logs of all processes then stay where it says.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of callers and faults (default %(default)s)")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="tandem-soak-"))
    report = asyncio.run(soak(place, seconds=60 * options.minutes, seed=options.seed))
    print(report)
    if not report.is_clean:
        print(f"logs in {place}")
        return 1
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
