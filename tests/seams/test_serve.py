"""`tandem-runtime serve` as a person starts it: a process, its first lines, an answer, its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from tests.seams.tokenizer_folders import byte_level_folder, letters_folder

from tandem_runtime import main
from tandem_runtime.settings import read_settings

SCRIPTED = "scripted:tandem_runtime.engines.scripted:"
PAIR = ("--target", f"{SCRIPTED}chain_logits", "--draft", f"{SCRIPTED}lame_chain_logits")
TARGET = Path(__file__).parents[2] / "examples" / "pairs" / "target"
COMMAND = (sys.executable, "-m", "tandem_runtime.main")


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The first lines, once all are there, and the process, which is ended if it has not ended itself."""
    command = [*COMMAND, "serve", "--port", "0", "--admin-port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield "".join(process.stdout.readline() for _ in range(4)), process
        finally:
            if process.poll() is None:
                process.kill()


def run(command: str, *arguments: str) -> int:
    """In this process, to its end; free ports unless the arguments say otherwise."""
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--port", "0", "--admin-port", "0", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_answer_is_replayed_and_its_equality_is_in_the_metrics_and_a_record_is_kept_of_it(tmp_path: Path) -> None:
    folder = str(letters_folder(tmp_path))
    options = ("--tokenizer", folder, "--name", "chat", "--mode", "Always", "--replay-basis-points", "10000")
    records = tmp_path / "records"
    line = 'tandem_exactness_replays_total{result="equal",revision="local"} 1.0'
    with served(*PAIR, *options, "--records", str(records)) as (said, _):
        address = re.findall(r"^serving chat at (http://\S+)$", said, re.MULTILINE)[0]
        metrics = re.findall(r"^metrics at (http://\S+)$", said, re.MULTILINE)[0]
        httpx.post(f"{address}/completions", json={"model": "chat", "prompt": "b"}).raise_for_status()
        ends_at = time.monotonic() + 60
        while line not in httpx.get(metrics).text:
            assert time.monotonic() < ends_at, "the replay does not come to an end"
            time.sleep(0.05)
    (record,) = records.read_text().splitlines()
    assert sum(json.loads(record)["kByRound"]) > 0


def test_a_pair_is_served_by_one_command_and_drains_at_the_end(tmp_path: Path) -> None:
    folder = str(letters_folder(tmp_path))
    with served(*PAIR, "--tokenizer", folder, "--name", "chat", "--mode", "Always") as (said, process):
        address = re.findall(r"^serving chat at (http://\S+)$", said, re.MULTILINE)[0]
        metrics = re.findall(r"^metrics at (http://\S+)/metrics$", said, re.MULTILINE)[0]
        assert said.startswith(f"loading {PAIR[1]} and {PAIR[3]}\n")
        assert f"try: curl -N {address}/completions -H 'content-type: application/json' -d '{{" in said
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            stream = client.completions.create(model="chat", prompt="b", max_tokens=200, temperature=0, stream=True)
            text = next(iter(stream)).choices[0].text
            process.send_signal(signal.SIGTERM)
            text += "".join(piece.choices[0].text for piece in stream)
        assert process.wait(timeout=30) == 0
    assert text.startswith("fdbcdacedcfdbcda")
    assert len(text) == 200
    assert metrics


def test_the_admin_port_tells_metrics_evidence_and_readiness(tmp_path: Path) -> None:
    folder = str(letters_folder(tmp_path))
    with served(*PAIR, "--tokenizer", folder, "--name", "chat", "--off-percent", "100") as (said, _):
        api = re.findall(r"at (http://\S+)/v1$", said, re.MULTILINE)[0]
        admin = re.findall(r"at (http://\S+)/metrics$", said, re.MULTILINE)[0]
        body = {"model": "chat", "prompt": "b", "max_tokens": 8, "temperature": 0}
        reply = httpx.post(f"{api}/v1/completions", json=body).json()
        evidence = httpx.get(f"{admin}/internal/evidence").json()
        metrics = httpx.get(f"{admin}/metrics").text
        ready = [httpx.get(f"{admin}/{path}").status_code for path in ("healthz", "readyz")]
    assert reply["speculation"]["arm"] == "off"
    assert re.fullmatch(r"[0-9a-f]{32}", evidence["boot"])
    assert [(one["revision"], one["emitted"], one["proposed"]) for one in evidence["strata"]] == [("local", 8, 0)]
    assert 'tandem_output_tokens_total{arm="off",revision="local"} 8.0' in metrics
    assert ready == [200, 200]


def test_a_copy_of_the_target_with_fewer_bits_drafts_and_changes_no_text() -> None:
    asked = {"model": "target", "prompt": "Return the number of", "max_tokens": 32, "seed": 5}
    options = ("--target", str(TARGET), "--draft", str(TARGET), "--draft-weights", "int4", "--mode", "Always")
    with served(*options, "--device", "cpu", "--max-sessions", "4") as (said, _):
        address = re.findall(r"^serving target at (http://\S+)$", said, re.MULTILINE)[0]
        on, off = (
            httpx.post(f"{address}/completions", json=asked | {"speculation": {"off": off}}, timeout=60).json()
            for off in (False, True)
        )
    assert on["choices"] == off["choices"]
    assert on["speculation"]["accepted"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (PAIR, 1, "--tokenizer is missing"),
        ((*PAIR, "--tokenizer", "absent"), 1, "tokenizer.json does not exist"),
        (("--target", "absent"), 1, "absent"),
        (("--model", "nowhere"), 1, "nowhere"),
        ((*PAIR, "--tokenizer", "{letters}", "--auth-file", "absent"), 1, "--auth-file absent cannot be read"),
        ((*PAIR, "--tokenizer", "{letters}", "--min-draft-tokens", "9"), 1, "--min-draft-tokens 9"),
        ((*PAIR, "--tokenizer", "{letters}", "--max-draft-tokens", "65"), 1, "--max-draft-tokens 65 is above 64"),
        ((*PAIR, "--tokenizer", "{letters}", "--port", "{taken}"), 1, "cannot listen on 127.0.0.1:{taken}"),
        ((*PAIR, "--off-percent", "101"), 2, "'101' is no whole percentage"),
        ((*PAIR, "--replay-basis-points", "10001"), 2, "'10001' is no whole number from 0 to 10000"),
        ((*PAIR, "--drafter", "suffix"), 1, "write --drafter auto"),
        ((*PAIR[:2], "--drafter", "model"), 1, "--drafter model: --draft is missing"),
        ((*PAIR[:2], "--drafter", "tree"), 2, "invalid choice: 'tree'"),
        ((*PAIR[:2], "--drafter", "ngram", "--min-draft-tokens", "17"), 1, "above --max-draft-tokens 16"),
        ((*PAIR[:2], "--draft-weights", "int4"), 1, f"--draft is missing; --draft {PAIR[1]} drafts with a copy"),
        ((*PAIR, "--draft-weights", "int3"), 2, "invalid choice: 'int3'"),
        ((*PAIR, "--tokenizer", "{letters}", "--draft-weights", "int8"), 1, f"int8 weights: {PAIR[3]} has none"),
        ((*PAIR, "--threads", "1025"), 2, "'1025' is no whole number from 1 to 1024"),
        ((), 2, "--target"),
    ],
)
def test_a_wrong_start_is_one_line_that_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"letters": str(letters_folder(tmp_path)), "taken": str(taken.getsockname()[1])}
        given = [argument.format(**known) for argument in arguments]
        ended = run("serve", *given)
    lines = capsys.readouterr().err.splitlines()
    assert (ended, len(lines)) == (code, 1), lines
    assert said.format(**known) in lines[0]


def test_a_wrong_start_ends_the_process_with_that_line_and_code() -> None:
    ended = subprocess.run([*COMMAND, "serve", *PAIR], check=False, capture_output=True, text=True, timeout=60)
    lines = [line for line in ended.stderr.splitlines() if "level=INFO" not in line]
    assert (ended.returncode, len(lines)) == (1, 1), ended.stderr
    assert "--tokenizer is missing" in lines[0]


def test_the_clusters_gateway_asks_for_its_tokenizer_and_an_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    command = ("gateway", "--deployment", "chat", "--namespace", "llm")
    assert run(*command) == 1
    assert "--tokenizer is missing" in capsys.readouterr().err
    assert run(*command, "--tokenizer", str(byte_level_folder(tmp_path))) == 1
    assert "no Kubernetes API by KUBECONFIG" in capsys.readouterr().err


def test_the_kubeconfig_comes_from_the_environment() -> None:
    assert read_settings({"KUBECONFIG": "/a/b"}).kubeconfig == Path("/a/b")
    assert read_settings({"KUBECONFIG": ""}).kubeconfig is None
    assert read_settings({}).kubeconfig is None
