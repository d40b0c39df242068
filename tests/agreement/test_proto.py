"""The committed message classes are what the committed verify.proto generates."""

from pathlib import Path

import pytest
from grpc_tools import protoc  # type: ignore[import-untyped]  # the package ships no types

RUNTIME = Path(__file__).parents[2] / "runtime"
WIRE = RUNTIME / "tandem_runtime" / "wire"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    arguments = ["protoc", f"-I{RUNTIME}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main([*arguments, str(WIRE / "verify.proto")]) == 0
    return out / "tandem_runtime" / "wire"


@pytest.mark.parametrize("name", ["verify_pb2.py", "verify_pb2.pyi", "verify_pb2_grpc.py"])
def test_generating_again_gives_the_same_bytes(generated: Path, name: str) -> None:
    assert (generated / name).read_bytes() == (WIRE / name).read_bytes(), "run `make proto` and commit the result"
