"""What the README tells a newcomer to do is done here, as it stands."""

import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from openai import OpenAI

from tandem_operator.domain.spec import parse

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str, holding: str) -> str:
    """The README's code block in `language` that holds this text."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in text]
    assert len(found) == 1, f"{len(found)} blocks hold {holding!r}"
    return str(found[0])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: str, *options: str) -> Iterator[None]:
    """The command in the repository's root, until the block ends; it must end well when asked to."""
    process = subprocess.Popen([*shlex.split(command), *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert any("http" in line for line in process.stdout)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_smallest_object_is_one_that_the_operator_reads() -> None:
    spec = parse(yaml.safe_load(block("yaml", "SpeculativeDeployment"))["spec"])
    assert (spec.target.placement.accelerator, spec.draft.placement.accelerator) == ("H100", "L4")


def test_the_trained_pair_is_served_on_one_machine() -> None:
    command = next(line for line in block("sh", "tandem-runtime serve").splitlines() if "serve" in line)
    port = free_port()
    with running(command, "--port", str(port), "--admin-port", "0"):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        model = client.models.list().data[0].id
        reply = client.completions.create(model=model, prompt="The list is", max_tokens=16, temperature=0)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 16
        chat = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "What is a list?"}], max_tokens=8
        )
        assert chat.choices[0].message.role == "assistant"


def test_every_file_that_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
