"""Adapters as a person starts and asks for them: the commands of docs/adapters.md, in processes of their own."""

import asyncio
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from safetensors.torch import load_file
from tests.seams.adapter_folders import saved_adapter
from tests.seams.test_adapters import needs_own_product
from tests.seams.test_serve import run, served
from tests.seams.wire_peers import QUICK, opening, verify

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import SessionId
from tandem_runtime.wire.client import RemoteTarget

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text()
SMALL = ("--max-length", "96", "--max-sessions", "4")
"""Enough here, and quickly loaded."""
TARGET = ROOT / "examples" / "pairs" / "target"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random adapters for the trained target: nonsense, but not the target's own."""
    folder = tmp_path_factory.mktemp("adapters")
    weights = load_file(TARGET / "model.safetensors")
    for seed, name in enumerate(("legal-lora", "medical-lora")):
        saved_adapter(folder / name, weights, seed=seed)
    return folder


def command_of(page: str, verb: str) -> list[str]:
    """The arguments of the page's example of that verb."""
    [example] = re.findall(rf"^    tandem-runtime {verb} (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    return shlex.split(example.replace("\\\n", " "))


def test_the_pages_command_serves_a_pair_with_an_adapter(adapters: Path) -> None:
    needs_own_product()
    places = {"examples/pairs": str(ROOT / "examples" / "pairs"), "./adapters": str(adapters)}
    arguments = command_of(PAGE, "serve")
    for written, real in places.items():
        arguments = [argument.replace(written, real) for argument in arguments]
    with served(*arguments, *SMALL) as (said, _):
        address = re.findall(r"^serving chat at (http://\S+)$", said, re.MULTILINE)[0]
        admin = re.findall(r"^metrics at (http://\S+)/metrics$", said, re.MULTILINE)[0]
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            first = [model.id for model in client.models.list()]
            medical = adapters / "medical-lora"
            put = httpx.put(f"{admin}/adapters/medical", json={"uri": medical.as_uri()})
            then = [model.id for model in client.models.list()]
            texts = {
                name: client.completions.create(model=name, prompt="Once", max_tokens=12, seed=1).choices[0].text
                for name in then
            }
            gone = httpx.delete(f"{admin}/adapters/medical").status_code
            with pytest.raises(openai.NotFoundError, match="chat, chat:legal can be asked for"):
                client.completions.create(model="chat:medical", prompt="Once")
    assert (first, then) == (["chat", "chat:legal"], ["chat", "chat:legal", "chat:medical"])
    assert (put.status_code, gone) == (200, 204)
    assert len(set(texts.values())) == 3


async def test_a_target_process_answers_with_the_adapter_that_the_wire_names(adapters: Path) -> None:
    needs_own_product()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, admin_port = one.getsockname()[1], other.getsockname()[1]
    options = (
        "--port",
        str(port),
        "--admin-port",
        str(admin_port),
        "--adapter",
        f"legal={adapters / 'legal-lora'}",
        *SMALL,
    )
    command = [sys.executable, "-m", "tandem_runtime.main", "target", "--model", str(TARGET), *options]
    child = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote, httpx.AsyncClient() as http:
            await remote.wait_connected()
            [facts] = (await remote.capabilities()).adapters
            admin = f"http://127.0.0.1:{admin_port}/adapters"
            listed = (await http.get(admin)).json()
            texts = []
            for number, adapter in enumerate((None, "legal", facts.digest)):
                name = f"s{number}"
                opened = await remote.open(replace(opening(name), adapter=adapter))
                rounds = [await remote.verify(verify(opened, name, round=at, offset=at)) for at in range(8)]
                texts.append([verdict.token for verdict in rounds])
                await remote.close(SessionId(name))
            with pytest.raises(BadRequest, match="adapter 'medical' is not loaded; loaded are legal"):
                await remote.open(replace(opening("late"), adapter="medical"))
            refused = await http.put(f"{admin}/medical", json={"uri": (adapters / "medical-lora").as_uri()})
    finally:
        child.terminate()
        await child.wait()
    assert listed == {"adapters": [{"name": "legal", "digest": facts.digest, "rank": facts.rank, "bytes": facts.bytes}]}
    assert texts[0] != texts[1] == texts[2]
    assert (refused.status_code, "started without it" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--adapter", "legal"), 2, "'legal' is not of the form NAME=PATH"),
        (("--adapter", "a=x", "--adapter", "a=y"), 1, "--adapter a=... is given twice"),
        (("--adapter", "a:b={folder}/legal-lora"), 1, "the adapter's name 'a:b' is none"),
        (("--adapter", "a={folder}"), 1, "is no adapter folder: it lacks adapter_model.safetensors"),
        (
            ("--max-adapters", "1", "--adapter", "a={folder}/legal-lora", "--adapter", "b={folder}/medical-lora"),
            1,
            "1 adapters are held, which is all that --max-adapters allows",
        ),
        (("--max-adapters", "0"), 2, "whole number from 1"),
    ],
)
def test_a_wrong_start_is_one_line_that_says_what_to_do(
    adapters: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    needs_own_product()
    given = [argument.format(folder=adapters) for argument in arguments]
    assert run("serve", "--target", str(TARGET), *SMALL, *given) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if "level=INFO" not in line]
    assert (len(lines), said in lines[0]) == (1, True), lines


def test_a_script_takes_no_adapters(adapters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = "scripted:tandem_runtime.engines.scripted:chain_logits"
    assert run("target", "--model", script, "--adapters-dir", str(adapters)) == 1
    assert "takes no adapters; leave --adapter and --adapters-dir out" in capsys.readouterr().err
