"""Target, draft and gateway as three processes by the page's own commands, whose files change while they serve."""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "without-a-cluster.md").read_text()
SLOW = ("--pace", "h100-70b")
"""So that an answer lasts while files change."""
LONG: dict[str, Any] = {
    "model": "chat",
    "prompt": "The list is",
    "max_tokens": 400,
    "temperature": 0,
    "ignore_eos": True,
}
WHOLE_SECONDS = 90


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command_of(role: str) -> list[str]:
    """The page's command for that role, as this environment runs it."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [line for line in "".join(blocks).splitlines() if f"tandem-runtime {role} " in line]
    return [sys.executable, "-m", "tandem_runtime.main", *shlex.split(found)[1:]]


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WHOLE_SECONDS
    while not condition():
        assert time.monotonic() < ends, "it never came to pass"
        time.sleep(0.05)


@dataclass
class Site:
    """Processes and files of one machine."""

    folder: Path
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    peers: list[dict[str, str]] = field(default_factory=list)

    def start(self, name: str, *options: str) -> dict[str, str]:
        """A role by the page's command, elsewhere than there; how the file of peers names it."""
        role, port = name.rstrip("0123456789"), free_port()
        self._run(name, *command_of(role), "--port", str(port), "--admin-port", "0", *options)
        shown = next(
            each for each in yaml.safe_load(PAGE.split("```yaml")[1].split("```")[0])["peers"] if each["role"] == role
        )
        return {**shown, "address": f"127.0.0.1:{port}"}

    def serve(self) -> None:
        files = ("--peers", str(self.folder / "peers.yaml"), "--policy", str(self.folder / "policy.json"))
        ports = ("--port", str(self.port), "--admin-port", str(self.admin))
        self._run("gateway", *command_of("gateway"), *files, *ports)

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def tell(self, *peers: dict[str, str]) -> None:
        (self.folder / "peers.yaml").write_text(yaml.safe_dump({"peers": list(peers)}))

    def order(self, **changes: Any) -> None:
        example = json.loads((ROOT / "examples" / "peers" / "policy.json").read_text())
        (self.folder / "policy.json").write_text(json.dumps({**example, **changes}))

    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()

    def evidence(self) -> dict[str, Any]:
        try:
            return dict(httpx.get(f"http://127.0.0.1:{self.admin}/internal/evidence").json())
        except httpx.TransportError:
            return {"admitted": {}}

    def admits(self, targets: int, drafts: int) -> bool:
        admitted = self.evidence()["admitted"]
        return bool(admitted == {"targets": {"tiny": targets}, "drafts": {"tiny-good": drafts}})

    def complete(self, **fields: Any) -> dict[str, Any]:
        reply = httpx.post(
            f"http://127.0.0.1:{self.port}/v1/completions", json={**LONG, **fields}, timeout=WHOLE_SECONDS
        )
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        for process in site.processes.values():
            process.kill()
            process.wait()


def test_three_processes_serve_and_their_files_change_under_open_answers(site: Site) -> None:
    first, second, draft = site.start("target1", *SLOW), site.start("target2", *SLOW), site.start("draft")
    site.order()
    site.tell(first, draft)
    site.serve()
    until(lambda: site.admits(1, 1))
    plain = site.complete(speculation={"off": True})["choices"][0]["text"]
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(site.complete, speculation={"off": off}) for off in (True, False)]
        time.sleep(0.3)  # they have begun on the first
        site.tell(second, draft)
        until(lambda: "target-tiny@" + second["address"] in site.log())
        site.order(number=2)
        until(lambda: site.evidence()["policy"] == 2)
        assert not answers[0].done()
        assert f"pod target-tiny@{first['address']} left" not in site.log()  # it drains
        texts = [each.result() for each in answers]
        assert [each["choices"][0]["text"] for each in texts] == [plain, plain]
        assert sum(each["speculation"]["accepted"] for each in texts) > 0
        until(lambda: f"pod target-tiny@{first['address']} left" in site.log())
        assert site.processes["target1"].poll() is None

        (site.folder / "peers.yaml").write_text("peers: [{role: judge, hash: tiny, address: 'a:1'}]")
        until(lambda: "peers[0].role is 'judge'; target or draft is needed" in site.log())
        assert site.complete(max_tokens=4)["usage"]["completion_tokens"] == 4
        site.tell(first, second, draft)
        until(lambda: site.admits(2, 1))
        answers = [threads.submit(site.complete) for _ in range(4)]
        time.sleep(0.3)
        site.processes["target2"].kill()
        assert [each.result()["choices"][0]["text"] for each in answers] == [plain] * 4


def test_the_pages_peers_are_those_of_the_example_file() -> None:
    shown = PAGE.split("```yaml")[1].split("```")[0]
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "peers" / "peers.yaml").read_text())
    assert "--peers examples/peers/peers.yaml" in PAGE


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "either --deployment and --namespace are needed, or --peers and, if wanted, --policy"),
        (("--deployment", "a"), "either --deployment and --namespace are needed"),
        (("--deployment", "a", "--namespace", "b", "--policy", "c"), "either --deployment and --namespace are needed"),
        (("--deployment", "a", "--peers", "c"), "--peers c is for where there is no cluster"),
        (("--peers", "missing.yaml", "--tokenizer", "examples/pairs/target"), "missing.yaml cannot be read"),
    ],
)
def test_a_gateway_is_told_of_a_cluster_or_of_files(options: tuple[str, ...], says: str) -> None:
    command = [sys.executable, "-m", "tandem_runtime.main", "gateway", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, says in ended.stderr) == (1, True), ended.stderr
