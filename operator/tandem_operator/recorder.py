"""Knows how looks are kept as files, the newest few hundred, and how one file is told to a person.

Refuses to decide anything. A look that cannot be written, or may hold a secret, is a line in the log, and nothing else.
"""

import logging
from pathlib import Path

from tandem_operator.domain import recording
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.record import RecordError

KEPT_FILES = 200
"""Half an hour of one steady object; a look takes some ten to a hundred kilobytes."""

OURS = f"{'[0-9]' * 8}T{'[0-9]' * 6}.{'[0-9]' * 6}-*.json"
"""Names of looks; whatever else lies in the folder is not ours to delete."""

log = logging.getLogger(__name__)


class Recorder:
    """Writes each look into a folder, which it makes, as `<moment>-<namespace>-<name>.json`: the oldest sorts first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, seen: Observed) -> None:
        """Never raises what a disk may do; the look goes on."""
        resource = seen.resource
        revealed = recording.revealed_by(seen)
        if revealed is not None:
            log.warning("look not recorded key=%s/%s because=%s", resource.namespace, resource.name, _advice(revealed))
            return
        name = f"{seen.now:%Y%m%dT%H%M%S.%f}-{resource.namespace}-{resource.name}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(recording.write(seen), encoding="utf-8")
            for old in sorted(self._folder.glob(OURS))[:-KEPT_FILES]:
                old.unlink()
        except OSError as error:
            log.warning("look not recorded folder=%s error=%s", self._folder, error)


def _advice(revealed: str) -> str:
    return f"{revealed} holds a plain value; put it into a Secret, and name that by a variable's valueFrom"


def tell_replay(path: Path) -> tuple[str, bool]:
    """What the decision of a recorded look is now, in words, and whether it is the recorded one.

    Raises OSError and RecordError.
    """
    try:
        played = recording.replay(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError("$", path.name, "it is no text in UTF-8") from error
    seen, decision = played.seen, played.decision
    lines = [
        f"{seen.resource.namespace}/{seen.resource.name} at {seen.now:%Y-%m-%d %H:%M:%S} UTC",
        f"stage {decision.progress.rollout.stage}, speculation {decision.progress.breaker.state}",
        *(f"revision {share.revision}: {share.weight} %" for share in decision.shares),
        *(f"check {check.name}: {check.verdict} {check.value} {check.message}" for check in decision.checks),
        *(f"event {event.reason}: {event.note}" for event in decision.events),
        *([] if decision.refusal is None else [f"refused: {decision.refusal}"]),
        *played.differences,
        "another decision than the recorded one" if played.differences else "the recorded decision",
    ]
    return "\n".join(lines), not played.differences
