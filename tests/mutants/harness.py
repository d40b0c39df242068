"""Knows how a fault is planted in a copy of the sources and which test, if any, sees it.

Refuses to touch the checkout: the package is copied to a temporary folder that stands first on the path of a process of
its own. A test that cannot even be collected is no kill, but an error of the harness.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.fault import Fault, planted

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "runtime" / "tandem_runtime"
LONGEST_SECONDS = 1800.0
"""A run that takes longer says nothing: a slow machine is no kill."""
FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class HarnessBroken(Exception):
    """The tests could not be run, so nothing is known of the fault."""


@dataclass(frozen=True)
class Outcome:
    """`killed_by` is the node id of the first test that failed, or None: the fault survived."""

    fault: Fault
    killed_by: str | None
    seconds: float


def tried(fault: Fault) -> Outcome:
    """Plant the fault, run its tests in order until one fails."""
    began = time.monotonic()
    with planted_copy(fault) as folder:
        killed_by = first_failure(folder, fault.tests)
    return Outcome(fault, killed_by, time.monotonic() - began)


@contextmanager
def planted_copy(fault: Fault | None) -> Iterator[Path]:
    """A folder to import `tandem_runtime` from, with the fault in it."""
    with tempfile.TemporaryDirectory(prefix="tandem-mutant-") as name:
        folder = Path(name)
        shutil.copytree(PACKAGE, folder / "tandem_runtime", ignore=shutil.ignore_patterns("__pycache__"))
        if fault is not None:
            source = folder / "tandem_runtime" / fault.file
            source.write_text(planted(fault, source.read_text()))
        yield folder


def first_failure(folder: Path, tests: Sequence[str]) -> str | None:
    """The first of `tests` to fail with the package in `folder`; None if all pass."""
    command = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
        *("-p", "tests.mutants.witness", "--hypothesis-seed=0", "--timeout=0", *tests),
    ]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    if ran.returncode == 0:
        return None
    failed = FAILED.search(ran.stdout)
    if ran.returncode != 1 or failed is None:
        raise HarnessBroken(f"pytest ended with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return failed.group(1)


def _environment(folder: Path) -> dict[str, str]:
    """The mutated package first on the path, one thread per process, nothing kept between runs."""
    return os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "OMP_NUM_THREADS": "1",
        "TANDEM_MUTANT_FOLDER": str(folder),
    }
