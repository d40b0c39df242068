"""Knows every way in which the operator's work can fail, as one tree: whose fault it is, and whether to try again.

Knows nothing of HTTP, of Kubernetes clients or of kopf: adapters translate foreign exceptions into these, edges
translate these into conditions and status codes.

    TandemError
    ├── SpecError       the user's: a field of the resource; trying again helps only after an edit
    ├── ClusterError    the API server answered, or did not
    │   ├── Conflict    somebody wrote first (409): observe again, then decide again
    │   ├── Unavailable no useful answer (time-out, 401, 429, 5xx, no connection): the same again, later
    │   ├── Forbidden   a right is missing (403): an administrator must grant it
    │   └── Refused     the API server found our object invalid (400, 422): usually the user's podTemplate
    ├── ForeignObject   a child's name is taken by an object that is not ours: it is neither adopted nor overwritten
    └── Bug             ours: a state that the code says cannot be
"""

from __future__ import annotations


class TandemError(Exception):
    """The root: whatever this package raises on purpose is one of these."""


class SpecError(TandemError):
    """A field of the resource cannot be used as it stands.

    `path` is written as `kubectl explain` takes it, with list positions: `spec.canary.steps[1].percent`. `value` is
    what stood there (None when nothing did); `message` says what would be right.
    """

    def __init__(self, path: str, value: object, message: str) -> None:
        super().__init__(path, value, message)
        self.path = path
        self.value = value
        self.message = message

    def __str__(self) -> str:
        found = "is missing" if self.value is None else f"is {_shortened(self.value)}"
        return f"{self.path} {found}: {self.message}"


class ClusterError(TandemError):
    """The API server said no or nothing; `what` names the request: `apply Deployment llm/chat-target-91ab02c4`."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(what, message)
        self.what = what
        self.message = message

    def __str__(self) -> str:
        return f"{self.what}: {self.message}"


class Conflict(ClusterError):
    """The object changed between our read and our write."""


class Unavailable(ClusterError):
    """No useful answer came; the same may succeed later, not before `retry_after_seconds` where the server named it."""

    def __init__(self, what: str, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(what, message)
        self.retry_after_seconds = retry_after_seconds


class Forbidden(ClusterError):
    """The operator's account lacks the right that `what` needs."""


class Refused(ClusterError):
    """The API server found the object invalid; `message` is its own, which names the field."""


class ForeignObject(TandemError):
    """An object under a child's name has another owner; renaming one of the two is the way out."""

    def __init__(self, kind: str, name: str, owner: str) -> None:
        super().__init__(kind, name, owner)
        self.kind = kind
        self.name = name
        self.owner = owner

    def __str__(self) -> str:
        return f"{self.kind} {self.name} belongs to {self.owner} and is left alone; rename or delete it, or this object"


class Bug(TandemError):
    """A state that the code excludes: a report with the recorded observation is welcome."""


def _shortened(value: object) -> str:
    """The value as text of at most 80 characters, so that a pasted file does not fill a condition."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
