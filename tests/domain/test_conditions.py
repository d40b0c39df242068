"""Status: what is said of a state, when it is said, and when nothing new is said."""

from dataclasses import replace
from datetime import timedelta

from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push

from tandem_operator.domain.actions import Action, Failure, Outcome, Plan, Verb
from tandem_operator.domain.conditions import CONDITIONS, report
from tandem_operator.domain.decide import decide
from tandem_operator.domain.nested import items, text
from tandem_operator.domain.progress import read
from tandem_operator.domain.progress import write as written

NAMES = [
    "Ready",
    "Accepted",
    "ModelsCompatible",
    "AdaptersLoaded",
    "TargetReady",
    "DraftReady",
    "GatewayReady",
    "Progressing",
    "CanaryHealthy",
    "CapacityAvailable",
    "SpeculationActive",
    "MemoryPressure",
    "RolledBack",
    "ChildrenModified",
    "Reconciling",
    "Stalled",
]


def conditions(status: object) -> dict[str, tuple[str, str]]:
    return {text(item, "type"): (text(item, "status"), text(item, "reason")) for item in items(status, "conditions")}


def test_every_condition_is_written_at_the_first_visit_with_its_generation() -> None:
    world = World(QUICK)
    world.tick()
    found = items(world.status, "conditions")
    assert [text(item, "type") for item in found] == NAMES == list(CONDITIONS)
    assert {item["observedGeneration"] for item in found} == {1}
    assert all(text(item, "reason") and text(item, "message") for item in found)
    assert conditions(world.status)["Ready"] == ("False", "NotServingYet")
    assert (world.status["phase"], world.status["observedGeneration"]) == ("Progressing", 1)


def test_a_status_that_says_nothing_new_is_not_written() -> None:
    world = installed(QUICK)
    seen = world.observed()
    assert report(seen, decide(seen), Outcome()) is None


def test_a_transition_time_moves_only_with_its_status() -> None:
    world = installed(QUICK)
    before = {text(item, "type"): text(item, "lastTransitionTime") for item in items(world.status, "conditions")}
    world.broken = {next(pods.role_hash for pods in world.decisions[-1].pods if pods.role == "draft")}
    world.run(30)
    after = {text(item, "type"): text(item, "lastTransitionTime") for item in items(world.status, "conditions")}
    moved = {kind for kind in NAMES if before[kind] != after[kind]}
    assert moved == {"DraftReady", "SpeculationActive", "Reconciling"}


def test_waiting_for_a_slow_target_writes_its_start_once() -> None:
    world = World(QUICK)
    world.starts_after = timedelta(seconds=900)
    world.run(60)
    (message,) = [text(item, "message") for item in items(world.status, "conditions") if item["type"] == "TargetReady"]
    assert message.startswith("0/2 pods are ready; loading since 2026-03-01T12:00:")
    writes = world.status_writes
    world.run(600)
    assert world.status_writes == writes
    world.run(300)
    assert conditions(world.status)["Ready"] == ("True", "Serving")


def test_a_first_rollout_past_its_deadline_says_so_and_goes_on() -> None:
    world = World(changed(QUICK, progressDeadlineSeconds=300))
    world.starts_after = timedelta(seconds=900)
    world.run(400)
    assert conditions(world.status)["Stalled"] == ("True", "ProgressDeadlineExceeded")
    assert world.status["phase"] == "Degraded"
    world.run(600)
    assert conditions(world.status)["Stalled"] == ("False", "NotStalled")
    assert conditions(world.status)["Ready"] == ("True", "Serving")


def test_scaled_to_nothing_is_not_ready_and_says_why() -> None:
    world = installed(QUICK)
    world.edit(target__replicas=0)
    world.run(30)
    assert conditions(world.status)["Ready"] == ("False", "ScaledToZero")
    assert world.status["replicas"] == 0


def test_a_pair_without_a_draft_does_not_use_one() -> None:
    world = World(changed(QUICK, draft={"method": "None"}))
    world.run(60)
    assert conditions(world.status)["DraftReady"] == ("True", "NotUsed")
    assert conditions(world.status)["SpeculationActive"] == ("False", "NoDraft")
    (revision,) = items(world.status, "revisions")
    assert revision["draft"] == "00000000"


def test_what_the_api_server_refused_is_accepted_false_with_its_words() -> None:
    world = installed(QUICK)
    seen = world.observed()
    action = Action(Verb.APPLY, "Deployment", "chat-target-x", "2 target pods")
    failed = Outcome(failed=Failure(action, "Refused", "spec.template.spec.containers[0].image: Required value"))
    status = report(seen, decide(seen), failed)
    found = conditions(status)
    assert (found["Accepted"], found["Stalled"]) == (("False", "ChildRefused"), ("True", "Refused"))
    assert found["Ready"] == ("True", "Serving")


def test_progress_that_could_not_be_kept_is_not_reported_as_kept() -> None:
    """Writing stopped at the evidence: the abort that rests on it must be decided again."""
    world = installed(QUICK, rate=5)
    push(world, V2)
    world.run_until(lambda seen: seen.progress.rollout.stage == "Stepping")
    seen = world.observed()
    decision = decide(seen)
    moved = replace(decision, progress=replace(decision.progress, refused="x"))
    save = Action(Verb.APPLY, "ConfigMap", "chat-evidence", "evidence")
    persist = Action(Verb.PERSIST, "SpeculativeDeployment", "chat", "progress", {"progress": written(moved.progress)})
    failed = Outcome(failed=Failure(save, "Unavailable", "no answer"), plan=Plan((save, persist)))
    status = report(seen, moved, failed)
    assert status is not None
    assert read(status) == seen.progress
    kept = report(seen, moved, Outcome(done=(save, persist), plan=Plan((save, persist))))
    assert kept is not None
    assert read(kept) == moved.progress


def test_people_read_phases() -> None:
    world = installed(QUICK, rate=5)
    phases = [world.status["phase"]]
    push(world, V2)
    world.tick()
    phases.append(world.status["phase"])
    assert phases == ["Serving", "Canary"]
    world.broken = {str(pods.role_hash) for pods in world.decisions[-1].pods if pods.role == "target"}
    world.run(30)
    assert (world.status["phase"], conditions(world.status)["Ready"]) == ("Degraded", ("False", "NoTarget"))
