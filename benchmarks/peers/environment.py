"""Knows how a peer comes by an environment of its own: a list of pinned packages, installed once, kept by its digest.

Refuses to know what is in it. It lies under ~/.cache/tandem/peers, so nothing of a peer enters Tandem's environment.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.lines import Absent

LISTS = Path(__file__).parent
CACHE = Path.home() / ".cache" / "tandem" / "peers"
INSTALL_SECONDS = 1200
"""vLLM comes with some 3 GB."""


def peer_python(name: str, cache: Path = CACHE) -> Path:
    """The Python of the environment of `peers/NAME.txt`, made if it is not there. Raises Absent."""
    packages = LISTS / f"{name}.txt"
    digest = hashlib.sha256(packages.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if (folder / ".installed").exists():
        return python
    print(f"==> environment for {name} in {folder} (some minutes the first time)", flush=True)
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    shutil.rmtree(folder, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--python", Path(sys.executable).resolve(), folder])
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--python", python, "-r", packages])
    (folder / ".installed").touch()
    return python


def _run(command: list[Path | str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or ["it said nothing"]
        raise Absent(f"its packages cannot be installed here: {' '.join(said[-3:])}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(f"its packages cannot be installed here: {error}") from error
