"""What a start of the torch engine takes beside its weights: nothing that it will not use."""

import subprocess
import sys
from pathlib import Path

import pytest

TARGET = Path(__file__).parents[2] / "examples" / "pairs" / "target"

LOADING = """
import sys
from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.torch_engine.engine import load_torch_model

load_torch_model(EngineOptions(model=sys.argv[1], weights=sys.argv[2], threads=1, max_sessions=1, max_length=32))
print(*sorted(name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules))
"""


@pytest.mark.parametrize("weights", ["as-is", "int4"])
def test_a_model_loads_without_torchs_compiler(weights: str) -> None:
    """Its import takes some three seconds, of every start."""
    command = [sys.executable, "-c", LOADING, str(TARGET), weights]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # our own interpreter
    assert done.stdout == "\n"
