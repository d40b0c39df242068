"""What the demo tells a person who wants to look around when the story is over."""

import json
import os
import shlex
import sys
from pathlib import Path

from examples.demo.__main__ import after_a_stop, next_commands

from tandem_devcluster.state import Running, StateFolder, start_ticks


def test_the_demo_ends_with_a_way_to_send_requests_of_ones_own() -> None:
    told = [line.strip() for line in next_commands(Path("/made/here"), 265.0).splitlines()]
    forwards = [shlex.split(line) for line in told if "tandem_devcluster" in line]
    requests = [shlex.split(line) for line in told if line.startswith("curl")]
    wanted = "-m tandem_devcluster --state /made/here forward -n llm svc/chat 8000 --local-port 8000 &"
    assert forwards == [[sys.executable, *wanted.split()]]
    assert [json.loads(words[-1])["model"] for words in requests] == ["chat"]
    assert requests[0][5] == "http://127.0.0.1:8000/v1/completions"


def test_a_demo_that_stopped_before_its_cluster_ran_says_that_nothing_is_left(tmp_path: Path) -> None:
    assert after_a_stop(tmp_path) == "nothing is left running; `make demo` starts again"


def test_a_demo_that_stopped_later_says_how_to_look_at_what_runs_and_how_to_end_it(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.record(Running(os.getpid(), start_ticks(os.getpid()) or 0, 6443))
    assert after_a_stop(tmp_path) == (
        f"what it reached still runs: {tmp_path}/bin/kubectl get specdep -A -o wide; "
        "`make demo-down` ends it, `make demo` starts again"
    )
