"""Looks as files, and the command that decides one anew."""

import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest
from tests.domain.simulated_specs import BASE, changed
from tests.domain.simulated_world import World, installed

from tandem_operator import recorder
from tandem_operator.main import main
from tandem_operator.recorder import Recorder


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def test_only_the_newest_looks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "KEPT_FILES", 3)
    world, folder = World(), tmp_path / "looks"
    folder.mkdir()
    foreign = folder / "0-not-a-look.json"
    foreign.write_text("{}")
    for _ in range(5):
        world.now += timedelta(seconds=1)
        Recorder(folder).keep(world.observed())
    assert [path.name for path in kept(folder)] == [foreign.name] + [
        f"20260301T12000{n}.000000-llm-chat.json" for n in (3, 4, 5)
    ]


def test_the_command_tells_the_decision_and_whether_it_is_the_recorded_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = installed()
    Recorder(tmp_path).keep(world.observed())
    (path,) = kept(tmp_path)
    assert main(["replay", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("llm/chat at 2026-03-01")
    assert f"revision {world.stable}: 100 %" in told
    assert told.endswith("the recorded decision\n")
    document = json.loads(path.read_text())
    document["decision"]["stable"] = "another"
    path.write_text(json.dumps(document))
    assert main(["replay", str(path)]) == 1
    assert 'decision.stable: recorded "another"' in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"nonsense", b"\xff\xfe", None])
def test_a_file_that_is_no_look_is_named(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "look.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_look_that_cannot_be_written_or_may_hold_a_secret_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    Recorder(tmp_path / "file").keep(World().observed())
    container = {"name": "engine", "env": [{"name": "HF_TOKEN", "value": "hf_abc"}]}
    secret = World(changed(BASE, target__podTemplate={"spec": {"containers": [container]}}))
    Recorder(tmp_path / "looks").keep(secret.observed())
    assert [line.partition(" ")[0] for line in caplog.messages] == ["look", "look"]
    assert "env[HF_TOKEN] holds a plain value" in caplog.messages[1]
    assert "hf_abc" not in caplog.text
    assert kept(tmp_path / "looks") == []
