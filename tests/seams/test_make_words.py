"""What `make` says to a person whose machine or words do not fit; the environment is taken as made."""

import os
import subprocess
from pathlib import Path

import pytest
from examples.demo.stage import PAIRS, PAIRS_FOLDER

ROOT = Path(__file__).parents[2]
BENCHMARKS = (
    "canary_power",
    "capacity",
    "controller",
    "controller_cost",
    "coupled_verify",
    "disable_latency",
    "drafters",
    "early_stop",
    "edits",
    "engine_cpu",
    "engine_profile",
    "fairness",
    "gateway_load",
    "gathering",
    "never_worse",
    "off_overhead",
    "operator_look",
    "operator_scale",
    "page",
    "pair_speed",
    "plots",
    "quantised_draft",
    "record_traces",
    "rig_overlap",
    "rig_sequential",
    "rig_twin",
    "role_tls",
    "rollback_latency",
    "rpc",
    "segments",
    "smollm2",
    "verify_budget",
    "verify_cost",
)
INSTALLED = ("--old-file", ".venv/.installed")


def make(*words: str) -> tuple[int, str]:
    """As a person would type it, though a make may have started these tests and left its own flags about."""
    fresh = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "--no-print-directory", *words], cwd=ROOT, env=fresh, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["", "unheard-of"])
def test_a_benchmark_that_is_not_there_is_answered_with_those_that_are(name: str) -> None:
    status, said = make(*INSTALLED, "bench", f"NAME={name}")
    assert status == 2
    assert said.splitlines()[0] == (
        f"NAME='{name}' is no benchmark; give one: make bench NAME=..., of {' '.join(BENCHMARKS)}"
    )


def test_a_benchmark_that_is_there_is_run() -> None:
    status, said = make(*INSTALLED, "--dry-run", "bench", "NAME=pair_speed")
    assert (status, said.splitlines()[-1]) == (0, ".venv/bin/python -m benchmarks.pair_speed")


def test_a_python_that_is_not_there_is_named_before_anything_is_made(tmp_path: Path) -> None:
    status, said = make("setup", "PYTHON=python-unheard-of", f"VENV={tmp_path / 'made'}")
    assert status == 2
    assert said.splitlines()[0] == (
        "Tandem needs Python 3.11 or newer, and there is no command 'python-unheard-of' here; set PYTHON=... to one"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python-of-old"
    old.write_text(f'#!/bin/sh\nexec {ROOT}/.venv/bin/python -c "import sys; sys.version_info = (3, 9, 0); $2"\n')
    old.chmod(0o755)
    status, said = make("setup", f"PYTHON={old}", f"VENV={tmp_path / 'made'}")
    assert status == 2
    assert said.splitlines()[0] == f"Tandem needs Python 3.11 or newer, and {old} is 3.9; set PYTHON=... to one"
    assert list(tmp_path.iterdir()) == [old]


def test_the_dev_cluster_shows_its_pods_the_trained_pair_where_the_examples_and_the_demo_look_for_it() -> None:
    status, said = make(*INSTALLED, "--dry-run", "cluster-up")
    assert (status, said.splitlines()[-1]) == (
        0,
        f".venv/bin/python -m tandem_devcluster up --folder {PAIRS}={PAIRS_FOLDER}",
    )
