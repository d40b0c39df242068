"""Knows what a result file holds: name, moment, machine, versions, seed, flat figures, raw samples.

Refuses to know what was measured.
"""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tandem_runtime.engines.cores import allowed_cores

RESULTS = Path(__file__).with_name("results")
VECTOR_FLAGS = ("sse4", "avx", "fma", "f16c", "bmi", "amx")


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def cpu_flags() -> list[str]:
    """Those that decide how fast numbers are multiplied."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in flags if flag.startswith(VECTOR_FLAGS)]


def record(name: str, *, seed: int, figures: Mapping[str, float], samples: Mapping[str, Any]) -> Path:
    """Write `results/NAME.json`; every ratio among the figures can be recomputed from the samples."""
    path = RESULTS / f"{name}.json"
    document = {
        "name": name,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_model(),
            "cores": allowed_cores(),
            "flags": cpu_flags(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {package: version(package) for package in ("tandem", "torch", "numpy", "grpcio")},
        "seed": seed,
        "figures": figures,
        "samples": samples,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
