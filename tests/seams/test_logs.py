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


OF_AN_OBJECT = """
import kopf
from kopf._core.actions.loggers import ObjectLogger
from tandem_operator.logs import set_up_logging
set_up_logging("json")
body = {"kind": "SpeculativeDeployment", "metadata": {"name": "chat", "namespace": "llm"}}
ObjectLogger(body=body, settings=kopf.OperatorSettings()).error("Handler 'woken' failed")
"""


def test_what_kopf_says_of_an_object_is_told_without_its_settings() -> None:
    """These hold queues and executors, of which there is no JSON: the line was lost, and a stack stood in its place."""
    done = subprocess.run([sys.executable, "-c", OF_AN_OBJECT], capture_output=True, text=True, check=True)
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line.keys() == {"level", "logger", "message", "time"}
    assert line["message"] == "Handler 'woken' failed"
