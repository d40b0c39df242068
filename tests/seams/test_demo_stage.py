"""The demo's stage beside real processes."""

import subprocess
import sys
from pathlib import Path

from examples.demo.stage import Stage


def test_a_relay_that_was_stopped_leaves_neither_process_nor_open_file(tmp_path: Path) -> None:
    relay = subprocess.Popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert relay.stdout is not None
    assert relay.stdout.readline() == "here\n"
    stage = Stage(tmp_path)
    stage.forwards.append(relay)
    stage.stop_forwards()
    assert (relay.poll() is not None, relay.stdout.closed, stage.forwards) == (True, True, [])
