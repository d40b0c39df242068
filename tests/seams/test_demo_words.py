"""What the demo tells a person who wants to look around when the story is over."""

import json
import shlex
import sys
from pathlib import Path

from examples.demo.__main__ import next_commands


def test_the_demo_ends_with_a_way_to_send_requests_of_ones_own() -> None:
    told = [line.strip() for line in next_commands(Path("/made/here"), 265.0).splitlines()]
    forwards = [shlex.split(line) for line in told if "tandem_devcluster" in line]
    requests = [shlex.split(line) for line in told if line.startswith("curl")]
    wanted = "-m tandem_devcluster --state /made/here forward -n llm svc/chat 8000 --local-port 8000 &"
    assert forwards == [[sys.executable, *wanted.split()]]
    assert [json.loads(words[-1])["model"] for words in requests] == ["chat"]
    assert requests[0][2] == "http://127.0.0.1:8000/v1/completions"
