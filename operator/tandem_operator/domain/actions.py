"""Knows the shape of what is done to the cluster and of what came of it: actions with their reasons, and their outcome.

Refuses to know which actions are right (`plan`) and how they are carried out (`apply`, the only writer).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

JsonObject = Mapping[str, object]


class Verb(StrEnum):
    """What is done; each is safe to repeat.

    CREATE makes an object that never changes (a ControllerRevision); that it is there already is success. APPLY is a
    server-side apply of `body` with force. ANNOTATE merges `body["metadata"]["annotations"]` into the object (null
    removes one). PERSIST replaces the resource's status by `body`, under the resourceVersion that was observed. DELETE
    deletes under the uid in `body["metadata"]["uid"]`; that it is gone already is success.
    """

    CREATE = "Create"
    APPLY = "Apply"
    ANNOTATE = "Annotate"
    PERSIST = "Persist"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class Action:
    """One write and its reason; the same text reaches log, event and condition. `body` is what the verb needs."""

    verb: Verb
    kind: str
    name: str
    why: str
    body: JsonObject = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}: {self.why}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes in their order; nothing to do is an empty plan.

    `modified` names what others added to our children: it is reported and left alone.
    """

    actions: tuple[Action, ...] = ()
    modified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a plan stopped; `reason` is a CamelCase word for conditions, `message` the API server's words."""

    action: Action
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done of a plan, in order, and what stopped it, if anything did."""

    done: tuple[Action, ...] = ()
    failed: Failure | None = None
    plan: Plan = field(default_factory=Plan)
