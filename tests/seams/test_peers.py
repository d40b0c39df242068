"""A file that names a gateway's peers, and one with its policy: how they read, what is refused, and what stays."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from tests.seams.gateway_peers import until
from tests.seams.gateway_process import POLICY

from tandem_runtime import followed_file
from tandem_runtime.discovery import Discovery, Role
from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.policy import RoleHash
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.main import SystemClock
from tandem_runtime.peers import OnePair, PeersFile, read_peers
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.replicas import Pool
from tandem_runtime.sources import FromFiles

EXAMPLES = Path(__file__).parents[2] / "examples" / "peers"
TARGET = {"role": "target", "hash": "one", "address": "10.0.0.5:8001"}


def written(*peers: object) -> str:
    return json.dumps({"peers": list(peers)})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_file, "LOOK_SECONDS", 0.01)


def test_peers_are_read_from_yaml_and_from_json() -> None:
    target, draft = read_peers((EXAMPLES / "peers.yaml").read_text(), since=7)
    assert (target.role, target.role_hash, target.address, target.port) == (Role.TARGET, "tiny", "127.0.0.1", 8001)
    assert (draft.role, draft.role_hash, draft.port, draft.accepting) == (Role.DRAFT, "tiny-good", 8003, True)
    (six,) = read_peers(written({**TARGET, "address": "[fd00::5]:9000"}), since=7)
    assert (six.address, six.port) == ("fd00::5", 9000)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("peers: [", "is no YAML: while parsing"),
        ("", "holds None; an object with the field peers alone is needed"),
        ("peers: 3", "peers is 3; a list of at most 1024 peers is needed"),
        (written("a"), r"peers\[0\] is 'a'; an object with role, hash and address is needed"),
        (written({**TARGET, "role": "gateway"}), r"peers\[0\].role is 'gateway'; target or draft is needed"),
        (written({**TARGET, "role": ["target"]}), r"peers\[0\].role is \['target'\]; target or draft is needed"),
        (written(TARGET, {**TARGET, "hash": 12}), r"peers\[1\].hash is 12; a text .* in quotes where it looks like"),
        (written({**TARGET, "hash": "a\nb"}), r"peers\[0\].hash is 'a\\nb'; a text of 1 to 64 printable"),
        (written({**TARGET, "address": "10.0.0.5"}), r"peers\[0\].address is '10.0.0.5'; host:port, such as"),
        (written({**TARGET, "address": "a:70000"}), r"peers\[0\].address is 'a:70000'; host:port"),
        (written({"role": "target", "hash": "one"}), r"peers\[0\].address is None; host:port"),
        (written({**TARGET, "weight": 3}), r"peers\[0\].weight is 3; none of it: a peer has role, hash, address"),
        (written(TARGET, {**TARGET, "hash": "two"}), r"peers\[1\].address is that of peers\[0\]; leave one out"),
        (
            written({**TARGET, "role": "draft"}),
            "peers name no target: one at least is needed where there is no --policy",
        ),
        (
            written(TARGET, {**TARGET, "hash": "two", "address": "b:1"}),
            "peers name targets of the hashes one, two: give them one, or say by --policy which gets what",
        ),
    ],
)
def test_a_file_of_no_use_is_refused_by_field_and_value(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "peers.yaml"
    path.write_text(content)
    with pytest.raises(SettingRefused, match=rf"--peers {path}: {says}"):
        PeersFile(path, now=lambda: 0.0, pair=OnePair("chat"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is no UTF-8 at byte 0"),
        (b" " * 2**20 + b"a", "has more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "peers.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingRefused, match=f"--peers {path} {says}"):
        PeersFile(path, now=lambda: 0.0)


@pytest.mark.usefixtures("quick")
async def test_an_edit_is_taken_whole_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "peers.yaml"
    path.write_text(written(TARGET))
    peers = PeersFile(path, now=lambda: 0.0, pair=OnePair("chat"))
    snapshots = peers.follow()
    assert [pod.address for pod in await anext(snapshots)] == ["10.0.0.5"]
    assert peers.policy is not None
    coming = asyncio.ensure_future(anext(snapshots))
    for broken in (written({**TARGET, "role": "x"}), "", written({**TARGET, "hash": "two"}, TARGET)):
        path.write_text(broken)
        seen = len(caplog.records)
        await until(lambda seen=seen: len(caplog.records) > seen)  # type: ignore[misc]  # a default argument binds it
    path.unlink()
    await until(lambda: "cannot be read" in caplog.text)
    assert not coming.done()
    path.write_text(written({**TARGET, "hash": "two"}))
    assert [pod.role_hash for pod in await coming] == ["two"]
    assert (peers.policy.number, peers.policy.revisions[0].target, peers.policy.revisions[0].name) == (2, "two", "two")
    assert "peers[0].role is 'x'; target or draft is needed" in caplog.text


@asynccontextmanager
async def following(source: FromFiles) -> AsyncIterator[PolicyInForce]:
    in_force = PolicyInForce()
    discovery = Discovery(Fleet(Pool(), Pool()), tokenizer_digest="sha256:t")
    async with source.opened(in_force, discovery, clock=SystemClock()) as followings:
        tasks = [asyncio.ensure_future(each) for each in followings]
        try:
            yield in_force
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@pytest.mark.usefixtures("quick")
async def test_a_policy_file_is_followed_and_a_wrong_one_leaves_the_last_in_force(tmp_path: Path) -> None:
    peers, policy = tmp_path / "peers.yaml", tmp_path / "policy.json"
    peers.write_text(written(TARGET))
    policy.write_text(json.dumps(POLICY))
    async with following(FromFiles(peers, policy, OnePair("unused"))) as in_force:
        assert in_force.policy is not None
        assert (in_force.policy.number, in_force.policy.served_model_name) == (3, "chat")
        policy.write_text(json.dumps({**POLICY, "number": -1}))
        await until(lambda: in_force.refused is not None)
        assert "number is -1; a whole number" in str(in_force.refused)
        policy.unlink()
        await until(lambda: "cannot be read" in str(in_force.refused))
        assert in_force.policy.number == 3
        policy.write_text(json.dumps({**POLICY, "number": 4}))
        await until(lambda: in_force.policy is not None and in_force.policy.number == 4)
        assert in_force.refused is None


async def test_a_wrong_policy_file_at_the_start_is_refused_by_name(tmp_path: Path) -> None:
    peers, policy = tmp_path / "peers.yaml", tmp_path / "policy.json"
    peers.write_text(written(TARGET))
    policy.write_text(json.dumps({**POLICY, "salt": 3}))
    with pytest.raises(SettingRefused, match=f"--policy {policy}: salt is 3; a text"):
        async with following(FromFiles(peers, policy, OnePair("unused"))):
            pass


def test_the_example_files_agree_with_each_other() -> None:
    policy = json.loads((EXAMPLES / "policy.json").read_text())
    hashes = {(peer["role"], peer["hash"]) for peer in yaml.safe_load((EXAMPLES / "peers.yaml").read_text())["peers"]}
    assert hashes == {(role, RoleHash(policy["revisions"][0][role])) for role in ("target", "draft")}
