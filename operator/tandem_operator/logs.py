"""Knows how the operator's log lines look: for people, or as a JSON object each for what collects logs.

Refuses to know what is logged.
"""

import logging
from typing import Final, Literal

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

__all__ = ["LOG_FORMATS", "LogFormat", "set_up_logging"]

LogFormat = Literal["text", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELDS: Final = ("levelname", "name", "message")
_OF_KOPF: Final = ("settings", "k8s_skip", "k8s_ref")
"""What kopf puts on each record that speaks of an object, for formatters of its own; some of it cannot be JSON."""


def set_up_logging(form: LogFormat) -> None:
    """What the operator does, and of kopf only what went wrong: it would tell each event that it handed on. One line
    each; kopf would show a stack of its own for every answer of the API server that it did not expect."""
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(form))
    handler.addFilter(_without_stacks_of_kopf)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # It has a thread of its own, and says each time that signals are then not its own.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)


def _formatter(form: LogFormat) -> logging.Formatter:
    if form == "text":
        return logging.Formatter(_TEXT)
    names = {"levelname": "level", "name": "logger", "exc_info": "stack"}
    left_out = (*RESERVED_ATTRS, *_OF_KOPF)
    return JsonFormatter(
        _FIELDS, rename_fields=names, reserved_attrs=left_out, timestamp="time", json_ensure_ascii=False
    )


def _without_stacks_of_kopf(record: logging.LogRecord) -> bool:
    if record.name.startswith("kopf"):
        record.exc_info = record.exc_text = None
    return True
