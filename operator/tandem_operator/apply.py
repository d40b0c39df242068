"""Knows how to carry out a plan: the only writer of children, marks and status.

Refuses to know why; each action brings its reason. It stops at the first failure and says what was done, because later
actions rest on earlier ones: a weight must not move to pods that were not made.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tandem_operator.domain.actions import Action, Failure, Outcome, Plan, Verb
from tandem_operator.domain.errors import ClusterError, Conflict, ForeignObject
from tandem_operator.domain.nested import items, text, texts
from tandem_operator.domain.observed import owner_uids
from tandem_operator.ports import Cluster, Json, Key, Kind

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Target:
    """The resource that a plan belongs to, with the version that the next status write must meet."""

    body: Json

    @property
    def key(self) -> Key:
        return Key(text(self.body, "metadata", "namespace"), text(self.body, "metadata", "name"))


async def apply(plan: Plan, target: Target, cluster: Cluster) -> Outcome:
    """Do the actions in order, up to the first that fails; which one that was, and why, is in the outcome."""
    done: list[Action] = []
    for action in plan.actions:
        try:
            await _do(action, target, cluster)
        except (ClusterError, ForeignObject) as error:
            log.warning("action failed key=%s action=%s error=%s", target.key, action, error)
            return Outcome(tuple(done), Failure(action, type(error).__name__, str(error)), plan)
        log.info("action done key=%s action=%s", target.key, action)
        done.append(action)
    return Outcome(tuple(done), None, plan)


def progress_is_kept(outcome: Outcome) -> bool:
    """Whether the decided progress is on the object: then the turns that it made are made, and are not made again."""
    return all(action in outcome.done for action in outcome.plan.actions if action.verb is Verb.PERSIST)


def is_outdated(outcome: Outcome) -> bool:
    """Whether somebody wrote in between: the plan rests on a look that is out of date, and so would its report."""
    return outcome.failed is not None and outcome.failed.reason == Conflict.__name__


async def write_status(status: Json, target: Target, cluster: Cluster) -> None:
    """Replace the resource's status under the version last seen. Raises Conflict when somebody wrote in between."""
    target.body = await cluster.replace_status(Kind.SPECULATIVE_DEPLOYMENT, {**target.body, "status": status})


async def _do(action: Action, target: Target, cluster: Cluster) -> None:
    kind, namespace = Kind(action.kind), target.key.namespace
    match action.verb:
        case Verb.CREATE | Verb.APPLY:
            # What never changes is applied too: a ControllerRevision made by POST cannot be annotated later, because a
            # patch re-encodes its `data`, and the API server then calls other bytes of the same value a change.
            await _demand_ours(kind, action.name, target, cluster)
            await cluster.apply(kind, action.body)
        case Verb.ANNOTATE:
            await _annotate(kind, action, target, cluster)
        case Verb.PERSIST:
            await write_status(action.body, target, cluster)
        case Verb.DELETE:
            await cluster.delete(kind, namespace, action.name, uid=text(action.body, "metadata", "uid") or None)


async def _annotate(kind: Kind, action: Action, target: Target, cluster: Cluster) -> None:
    metadata = action.body["metadata"]
    assert isinstance(metadata, Mapping)
    changed = await cluster.annotate(kind, Key(target.key.namespace, action.name), metadata["annotations"])
    if kind is Kind.SPECULATIVE_DEPLOYMENT:
        target.body = {**target.body, "metadata": changed["metadata"]}


async def _demand_ours(kind: Kind, name: str, target: Target, cluster: Cluster) -> None:
    """A forced apply would take over whatever bears the name; only what this resource owns may be written."""
    live = await cluster.get(kind, target.key.namespace, name)
    if live is None:
        return
    uid = text(target.body, "metadata", "uid")
    if uid not in owner_uids(live):
        raise ForeignObject(kind, name, _owner(live))


def _owner(live: Json) -> str:
    for owner in items(live, "metadata", "ownerReferences"):
        return f"{text(owner, 'kind')} {text(owner, 'name')}"
    return texts(live, "metadata", "labels").get("app.kubernetes.io/managed-by") or "somebody else"
