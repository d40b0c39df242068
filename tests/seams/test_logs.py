"""The operator's log as a process writes it."""

import json
import subprocess
import sys

WRITES = """
import logging
from tandem_operator.logs import set_up_logging
set_up_logging("json")
log = logging.getLogger("tandem_operator.worklist")
log.info("looked at %s\\nin two lines", "chat \u2713")
try:
    raise ValueError("odd")
except ValueError:
    log.exception("failed")
    logging.getLogger("kopf.objects").exception("kopf failed")
"""


def test_each_line_is_an_object_whatever_is_logged() -> None:
    done = subprocess.run([sys.executable, "-c", WRITES], capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["level"], line["logger"], line["message"]) for line in told] == [
        ("INFO", "tandem_operator.worklist", "looked at chat \u2713\nin two lines"),
        ("ERROR", "tandem_operator.worklist", "failed"),
        ("ERROR", "kopf.objects", "kopf failed"),
    ]
    assert all(line["time"].startswith("20") for line in told)
    assert "ValueError: odd" in told[1]["stack"]
    assert "stack" not in told[2]
