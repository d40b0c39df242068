"""Knows what humans may say through annotations, and how a command is told from one that was meant for another state.

Refuses to know what follows from a command.

A command is `<value>@<revision>#<nonce>`: it acts only on the revision it names, so that an old one cannot act on a new
state, and the nonce lets the same command be given twice. A handled command is kept whole; the annotation itself stays,
since it belongs to whoever wrote it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tandem_operator.domain.observed import GROUP


class CommandKind(StrEnum):
    """The annotation's name after `tandem.dev/`; in this order they are obeyed."""

    SPECULATION = "speculation"
    POLICY_UNDO = "policy-undo"
    ABORT = "abort"
    ROLLBACK_TO = "rollback-to"
    RETRY = "retry"
    PROMOTE = "promote"
    UPGRADE = "upgrade"


@dataclass(frozen=True, slots=True)
class Command:
    """One unhandled command: `text` is the annotation's value, whole; `revision` is "" where the value is malformed."""

    kind: CommandKind
    text: str
    value: str = ""
    revision: str = ""

    @property
    def annotation(self) -> str:
        return f"{GROUP}/{self.kind}"


def unhandled(annotations: Mapping[str, str], handled: Mapping[str, str]) -> tuple[Command, ...]:
    """The commands that stand in annotations and were not handled yet, in the order in which they are obeyed."""
    given = ((kind, annotations.get(f"{GROUP}/{kind}")) for kind in CommandKind)
    return tuple(_parse(kind, text) for kind, text in given if text and handled.get(f"{GROUP}/{kind}") != text)


def _parse(kind: CommandKind, text: str) -> Command:
    """`on@6f2c9a41#3` has the value `on` for revision 6f2c9a41."""
    head, mark, nonce = text.partition("#")
    value, at, revision = head.partition("@")
    return Command(kind, text, value, revision) if mark and nonce and at else Command(kind, text)
