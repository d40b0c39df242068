"""Knows which writes lead from what is to what was decided, in their order, each with its reason.

Refuses to know why it was decided so, and how writes are carried out.

**The order**, and what makes a kill between any two writes harmless:

1. *Evidence* is saved before anything rests on it. Adding the same answers twice changes nothing.
2. *Progress* is persisted before the effects that it authorises: a canary's end, a rollback's beginning, a breaker's
   turn, an answered alert. The effects follow from progress at every later look.
3. *Marks* on ControllerRevisions: verdicts, and the stable pointer, which is one write. A pointer that moved is seen by
   the next look, which ends the stage; a verdict that is missing is written again.
4. *Creates*: the ControllerRevision, then what pods need, then Deployments and their size. Idempotent by name, since
   names carry hashes.
5. *Weights*: the policy, numbered only when it changes; the same policy again is no write. It sends nobody to pods that
   were not made. Where all that it sends somebody to have their Deployments it is written before the creates, so that a
   child which the API server refuses holds up no abort and no switch.
6. *Deletes* come last, and only after every gateway reports the policy that no longer needs what goes. A gateway
   that is deaf (it answers, and follows an older policy) or mute (it does not answer) would hold them up for ever, so
   it is deleted itself, one at a time, where another one in service answers; one that is mute only where none is
   missing. An only gateway that is deaf gets another one beside it first. An alert's annotation goes once the persisted
   status echoes it. Deleting twice is success.

A steady object is an empty plan.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from tandem_operator.domain import archive, drift, manifests, progress, record
from tandem_operator.domain.actions import Action, Plan, Verb
from tandem_operator.domain.alerts import PREFIX
from tandem_operator.domain.decision import Decision, JsonObject, PodsWanted
from tandem_operator.domain.errors import Bug
from tandem_operator.domain.nested import mapping, number, text
from tandem_operator.domain.observed import ANNOTATION_CHANGED_AT, Child, Observed, Pod
from tandem_operator.domain.revision import FIRST_EDITION, Edition, Role, RoleHash, revision_of
from tandem_operator.domain.spec import Spec
from tandem_operator.domain.templates import Owner

HISTORY_KEY = "history.json"
DEAF_AFTER = timedelta(seconds=10)
"""A gateway that answers but follows an older policy for longer is replaced, or an abort would have no bound."""
AGAIN_AFTER = timedelta(minutes=10)
"""A mute gateway that has not answered once is replaced when it is as old: another one will hardly answer sooner."""


def plan(decision: Decision, seen: Observed) -> Plan:
    """The writes for a decision. Raises SpecError when the revision that the spec means cannot be rendered."""
    spec = decision.spec
    if decision.hold or spec is None:
        return Plan()
    owner = Owner(name=seen.resource.name, namespace=seen.resource.namespace, uid=seen.resource.uid)
    data = _revision_data(decision, seen, spec, owner)
    before = [
        *_evidence(decision, owner),
        *_progress(decision, seen),
        *_marks(decision, seen, owner),
        *_lost(seen, owner),
    ]
    wanted = list(_children(decision, seen, spec, owner, data))
    written = [action for action in (_apply(body, seen, why) for body, why in wanted) if action is not None]
    after = [] if written else [*_goodbye(decision, seen, owner)]
    return Plan(
        actions=(*before, *_created(decision, owner, data), *written, *_forgotten_alerts(seen), *after),
        modified=tuple(_modified(seen, (body for body, _ in wanted))),
    )


# Before anything else


def _evidence(decision: Decision, owner: Owner) -> Iterator[Action]:
    if decision.evidence is not None:
        body = manifests.evidence_config_map(owner, decision.evidence)
        yield Action(Verb.APPLY, "ConfigMap", _name(body), "evidence is saved before a decision rests on it", body)


def _progress(decision: Decision, seen: Observed) -> Iterator[Action]:
    """Authorises what follows; that live figures were shown authorises nothing and can wait for the report."""
    quiet = replace(decision.progress, figures_at=seen.progress.figures_at)
    if seen.resource.status.get("progress") is None or quiet != seen.progress:
        body = {**seen.resource.status, "progress": progress.write(decision.progress)}
        why = "progress is kept before its effects"
        yield Action(Verb.PERSIST, manifests.KIND, seen.resource.name, why, body)


def _marks(decision: Decision, seen: Observed, owner: Owner) -> Iterator[Action]:
    stored = {
        revision.name: seen.child("ControllerRevision", f"{owner.name}-{revision.name}") for revision in seen.revisions
    }
    for mark in decision.marks:
        child = stored.get(mark.revision)
        if child is not None and any(child.annotations.get(key) != value for key, value in mark.annotations.items()):
            yield _annotate("ControllerRevision", child.name, mark.annotations, mark.why)


def _annotate(kind: str, name: str, annotations: Mapping[str, str | None], why: str) -> Action:
    return Action(Verb.ANNOTATE, kind, name, why, {"metadata": {"annotations": dict(annotations)}})


# Revisions


def _lost(seen: Observed, owner: Owner) -> Iterator[Action]:
    for body in archive.lost(seen, owner):
        yield Action(Verb.CREATE, "ControllerRevision", _name(body), "it is in use, and its record was deleted", body)


def _revision_data(decision: Decision, seen: Observed, spec: Spec, owner: Owner) -> Mapping[str, JsonObject]:
    """The data of every revision by name, that of the new one rendered now."""
    stored = {str(revision.name): revision.data for revision in seen.revisions}
    if decision.new_revision is None:
        return stored
    nodes = None if seen.nodes is None else [node.labels for node in seen.nodes]
    edition = decision.new_revision.edition or FIRST_EDITION
    data = manifests.revision_data(spec, owner, seen.terms, nodes=nodes, edition=edition)
    # Pods of what was stable may be there, and must stay as they are; what never served may be made better.
    served = [revision.data for revision in reversed(seen.pointed)]
    return {**stored, decision.new_revision.name: manifests.as_made_before(data, served)}


def _created(decision: Decision, owner: Owner, data: Mapping[str, JsonObject]) -> Iterator[Action]:
    new = decision.new_revision
    if new is not None:
        body = manifests.controller_revision(owner, name=new.name, number=new.number, data=data[new.name])
        yield Action(Verb.CREATE, "ControllerRevision", _name(body), f"the spec means revision {new.name}", body)


# Children

Wanted = tuple[JsonObject, str]


def _children(
    decision: Decision, seen: Observed, spec: Spec, owner: Owner, data: Mapping[str, JsonObject]
) -> Iterator[Wanted]:
    """What should be there and why, in the order of writing; weights after everything that serves them."""
    if not decision.shares or decision.policy is None:
        return
    policy = _policy(decision, seen, owner)
    early = seen.child("ConfigMap", manifests.policy_name(owner)) is None or _are_made(decision, seen, owner, data)
    why = f"policy {number(decision.policy, 'number')}: {_weights(decision)}"
    if decision.stable:
        yield archive.copied(decision, seen, owner, data), "the records of what is in use are kept twice"
    yield manifests.gateway_account(owner), "gateways read their policy under it"
    yield manifests.gateway_role(owner), "gateways read their policy and pods"
    yield manifests.gateway_role_binding(owner), "gateways read their policy and pods"
    if early:
        yield policy, why
    for pods in decision.pods:
        yield _deployment(pods, seen, spec, owner, data), f"{pods.replicas} {pods.role} pods for {pods.revision}"
    yield from _edge(decision, _with_a_second(decision, seen, spec, owner), owner, data)
    if not early:
        yield policy, why


def _are_made(decision: Decision, seen: Observed, owner: Owner, data: Mapping[str, JsonObject]) -> bool:
    """Whether every revision that somebody is sent to has its Deployments."""
    used = [data[share.revision] for share in decision.shares if share.weight or share.shadow]
    roles = [(role, RoleHash(text(held, role))) for held in used for role in (Role.TARGET, Role.DRAFT)]
    names = [manifests.role_name(owner, role, role_hash) for role, role_hash in roles if role_hash]
    return all(seen.child("Deployment", name) is not None for name in names)


def _edge(decision: Decision, spec: Spec, owner: Owner, data: Mapping[str, JsonObject]) -> Iterator[Wanted]:
    base = data[decision.stable or decision.shares[0].revision]
    yield manifests.gateway_deployment(owner, base, spec), "gateways serve every revision"
    yield manifests.gateway_service(owner, spec.gateway), "clients address it"
    yield manifests.pod_disruption_budget(owner, Role.GATEWAY), "a drain takes one gateway at a time"
    for pods in decision.pods:
        if pods.role is Role.TARGET:
            body = manifests.pod_disruption_budget(owner, pods.role, pods.role_hash)
            yield body, "a drain takes one target at a time"


def _with_a_second(decision: Decision, seen: Observed, spec: Spec, owner: Owner) -> Spec:
    """Where the only gateway is deaf, a second one until it is gone: to delete the last that answers ends service.

    It stays while any is behind: who is deaf may miss a look, or have ten seconds for a newer policy.
    """
    behind, workload = _behind(decision, seen), seen.workload(Role.GATEWAY, None)
    has_second = bool(behind) and workload is not None and workload.wanted > 1
    if spec.gateway.replicas != 1 or not (has_second or any(_is_deaf(pod, decision, seen, owner) for pod in behind)):
        return spec
    return replace(spec, gateway=replace(spec.gateway, replicas=2))


def _deployment(
    pods: PodsWanted, seen: Observed, spec: Spec, owner: Owner, data: Mapping[str, JsonObject]
) -> JsonObject:
    """Pods of values that the spec means, in whichever edition, follow its live part; others keep what they had."""
    stored = data[pods.revision]
    now = revision_of(spec, Edition(**{role: number(stored, "edition", role) for role in Role}))
    child = seen.child("Deployment", manifests.role_name(owner, pods.role, pods.role_hash))
    kept = None if child is None else manifests.live_part_of(child.body)
    if pods.role_hash == (now.target if pods.role is Role.TARGET else now.draft):
        live = manifests.live_part(spec, pods.role)
    else:
        live = manifests.stored_live_part(stored, pods.role) if kept is None else kept
    return manifests.role_deployment(
        owner, pods.role, stored, live=live, transport=spec.transport, replicas=pods.replicas
    )


def _policy(decision: Decision, seen: Observed, owner: Owner) -> JsonObject:
    """The policy with the last ten beside it, and since when it has been in force."""
    if decision.policy is None:
        raise Bug(f"{owner.name} has children but no policy")
    body = dict(manifests.policy_config_map(owner, decision.policy))
    history = manifests.as_text({"policies": list(decision.kept_policies)})
    since = _in_force_since(decision, seen, owner)
    metadata = {**mapping(body, "metadata"), "annotations": {ANNOTATION_CHANGED_AT: since}}
    return {**body, "metadata": metadata, "data": {**mapping(body, "data"), HISTORY_KEY: history}}


def _in_force_since(decision: Decision, seen: Observed, owner: Owner) -> str:
    child = seen.child("ConfigMap", manifests.policy_name(owner))
    kept = None if child is None else child.annotations.get(ANNOTATION_CHANGED_AT)
    same = seen.config("policy", manifests.POLICY_KEY) == decision.policy
    return kept if kept is not None and same else record.dump_moment(decision.decided_at)


def _weights(decision: Decision) -> str:
    return ", ".join(f"{share.revision} {share.weight} %" for share in decision.shares)


def _apply(wanted: JsonObject, seen: Observed, why: str) -> Action | None:
    """An apply where the live object says something else than is wanted; None where it says it already."""
    body = drift.sealed(wanted)
    kind, name = text(body, "kind"), _name(body)
    live = seen.child(kind, name)
    if live is None:
        return Action(Verb.APPLY, kind, name, f"created: {why}", body)
    difference = drift.first_difference(body, live.body)
    return None if difference is None else Action(Verb.APPLY, kind, name, f"{_blame(difference)}: {why}", body)


def _blame(difference: str) -> str:
    """What we want has changed, or somebody else changed what we wrote."""
    ours = (drift.ANNOTATION_APPLIED, ANNOTATION_CHANGED_AT)
    return "changed" if any(name in difference for name in ours) else f"{difference} differs"


def _modified(seen: Observed, wanted: Iterable[JsonObject]) -> Iterator[str]:
    for body in wanted:
        live = seen.child("Deployment", _name(body)) if text(body, "kind") == "Deployment" else None
        if live is not None:
            found = drift.additions(body, live.body)
            yield from (f"{live.kind} {live.name}: {path}" for path in found)


# What goes


def _forgotten_alerts(seen: Observed) -> Iterator[Action]:
    """Intents that the persisted status echoes."""
    echoed = {alert.key for alert in seen.progress.alerts}
    standing = [name for name in seen.resource.annotations if name.removeprefix(PREFIX) in echoed]
    done = {name: None for name in sorted(standing) if name.startswith(PREFIX)}
    if done:
        yield _annotate(manifests.KIND, seen.resource.name, done, "answered in status.alerts")


def _goodbye(decision: Decision, seen: Observed, owner: Owner) -> Iterator[Action]:
    """What is no longer needed, once nothing is left to write and every gateway follows the policy in force."""
    behind = _behind(decision, seen)
    if behind:
        yield from _replace_stuck(behind, decision, seen, owner)
        return
    needed = {(pods.role, pods.role_hash) for pods in decision.pods}
    for workload in seen.workloads:
        if workload.role is not Role.GATEWAY and (workload.role, workload.role_hash) not in needed:
            # The budget first: it is found by its Deployment, and one that outlived it would stay for ever.
            budget = seen.child("PodDisruptionBudget", workload.name)
            if budget is not None:
                yield _delete(budget, "its pods go")
            yield _delete(seen.child("Deployment", workload.name), "no revision in use needs its pods")
    for revision in decision.forgotten:
        yield _delete(seen.child("ControllerRevision", f"{owner.name}-{revision}"), "beyond spec.revisionHistoryLimit")


def _behind(decision: Decision, seen: Observed) -> tuple[Pod, ...]:
    return seen.behind(number(decision.policy, "number"))


def _replace_stuck(behind: Iterable[Pod], decision: Decision, seen: Observed, owner: Owner) -> Iterator[Action]:
    """One gateway that is deaf, or mute while none is missing; never the last one in service that answers.

    Who is not ready yet, or drains, answers us too. A mute one may well serve: it may be our own way to it that is cut.
    """
    ready, workload = [pod for pod in seen.of_role(Role.GATEWAY) if pod.ready], seen.workload(Role.GATEWAY, None)
    answering = seen.documents.keys() & {pod.name for pod in ready}
    none_missing = workload is not None and len(ready) >= workload.wanted
    for pod in behind:
        stuck = _is_deaf(pod, decision, seen, owner) or (none_missing and _is_mute(pod, seen))
        if answering - {pod.name} and stuck:
            body = {"metadata": {"uid": pod.uid}}
            yield Action(Verb.DELETE, "Pod", pod.name, "it does not follow the policy in force", body)
            return


def _is_mute(pod: Pod, seen: Observed) -> bool:
    """Whether it does not answer, and a new one in its place may."""
    is_new = pod.started_at is not None and seen.now - pod.started_at < AGAIN_AFTER
    return pod.name in seen.mute() and not (is_new and pod.name in seen.unheard)


def _is_deaf(behind: Pod, decision: Decision, seen: Observed, owner: Owner) -> bool:
    """Whether one that is behind answers, and has had the time to follow."""
    since = record.load_moment(_in_force_since(decision, seen, owner))
    return behind.name in seen.documents and seen.now - since > DEAF_AFTER


def _delete(child: Child | None, why: str) -> Action:
    if child is None:
        raise Bug("an object was to be deleted that was not observed")
    uid = text(child.body, "metadata", "uid")
    return Action(Verb.DELETE, child.kind, child.name, why, {"metadata": {"uid": uid}})


def _name(body: JsonObject) -> str:
    return text(body, "metadata", "name")
