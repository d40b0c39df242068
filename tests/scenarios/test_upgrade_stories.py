"""An operator is upgraded: every pod stays as it was, until a command asks for what it would make today."""

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from tests.domain.simulated_specs import V2, V3, changed
from tests.domain.simulated_world import Behaviour, World, push, settled
from tests.domain.upgradable_world import BRIEF, NEWER, Upgradable, serving
from tests.scenarios.operator_stage import KilledError, Stage, command, final, look_until, nth
from tests.scenarios.story_views import deployments, served, stage, weights

from tandem_operator.domain import revision, templates
from tandem_operator.domain.progress import Stage as Where
from tandem_operator.domain.revision import revision_of
from tandem_operator.domain.spec import parse
from tandem_operator.ports import Kind

OLD, NEW = "tandem-runtime:0.1.0", "tandem-runtime:0.2.0"


def promoted(before: str) -> Callable[[World], bool]:
    return lambda seen: seen.stable not in ("", before) and settled(seen)


def upgraded() -> tuple[Upgradable, str, str]:
    """The first revision was made by an older operator, the second is the same by the present one and serves."""
    world = serving()
    first = world.stable
    world.command("upgrade", f"@{first}#1")
    world.run_until(promoted(first))
    return world, first, world.stable


def test_an_upgrade_of_the_operator_leaves_every_pod_as_it_was() -> None:
    world = serving()
    before = copy.deepcopy(world.objects)
    world.run(300)
    assert world.objects == before


def test_an_operator_that_renders_otherwise_leaves_every_pod_as_it_was_until_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = serving()
    first, before = world.stable, copy.deepcopy(world.objects)
    command_of = templates._engine_command
    monkeypatch.setattr(templates, "_engine_command", lambda engine: [*command_of(engine), "--newer"])
    world.run(300)
    assert world.objects == before
    world.command("upgrade", f"@{first}#1")
    world.run_until(promoted(first))
    target = [name for name in deployments(world) if name not in {name for _, name in before}]
    assert all("--newer" in str(world.objects["Deployment", name]["spec"]["template"]) for name in target)
    assert target


def with_another_field(monkeypatch: pytest.MonkeyPatch, defaults: Mapping[str, object]) -> None:
    """The operator hashes a field more, which every spec has with the value that it was given where nobody set it."""
    normalised = revision._normalised
    monkeypatch.setattr(revision, "_DEFAULTS", {**revision._DEFAULTS, **defaults})
    monkeypatch.setattr(revision, "_normalised", lambda values: normalised({**values, "cacheType": "bf16"}))


def test_an_operator_with_another_hashed_field_and_its_default_leaves_every_pod_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = serving()
    before = copy.deepcopy(world.objects)
    with_another_field(monkeypatch, {"cacheType": "bf16"})
    world.run(300)
    assert world.objects == before


def test_a_hashed_field_whose_default_is_in_no_table_would_make_a_canary_of_every_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the test above is known to see it."""
    world = serving()
    first = world.stable
    with_another_field(monkeypatch, {})
    world.run_until(lambda seen: seen.progress.rollout.revision not in ("", first))


def test_a_draft_that_is_edited_after_an_upgrade_of_the_operator_leaves_the_targets_pods_as_they_were() -> None:
    world = serving()
    (target,) = (name for name in deployments(world) if "-target-" in name)
    before = copy.deepcopy(world.objects["Deployment", target]["spec"]["template"])
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    assert world.objects["Deployment", target]["spec"]["template"] == before
    assert (world.images("target"), world.images("gateway")) == ({OLD}, {NEW})
    assert world.images("draft") == {OLD, NEW}  # the old draft stays for the rollback window


def test_an_upgrade_by_command_is_a_canary_of_the_same_spec_and_gateways_follow_when_it_is_promoted() -> None:
    world = serving()
    first, spec, generation = world.stable, copy.deepcopy(world.spec), world.generation
    world.command("upgrade", f"@{first}#1")
    world.run_until(lambda seen: stage(seen) is Where.STEPPING)
    second = world.progress.rollout.revision
    assert weights(world) == {first: 50, second: 50}
    assert (world.images("target"), world.images("draft"), world.images("gateway")) == ({OLD, NEW}, {OLD, NEW}, {OLD})
    assert "target: image tandem-runtime:0.1.0 -> tandem-runtime:0.2.0" in world.note("Upgrading")
    world.run_until(promoted(first))
    assert (world.stable, world.images("gateway")) == (second, {NEW})
    assert (world.spec, world.generation, world.verdicts()) == (spec, generation, {first: "Good", second: "Good"})
    assert world.reasons()[1:] == ["Upgrading", "CanaryStarted", "CanaryStep", "Promoted"]


def test_an_upgrade_that_makes_another_target_is_refused_where_its_pods_were_to_be_shared() -> None:
    world = serving(changed(BRIEF, canary__surge="SharedTarget"))
    before = copy.deepcopy(world.objects)
    world.command("upgrade", f"@{world.stable}#1")
    world.run(30)
    assert (world.condition("Accepted"), world.objects) == (("False", "InvalidSpec"), before)
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    world.edit(canary__surge="Auto")
    world.run_until(lambda seen: stage(seen) is Where.STEPPING, within=60)


def test_an_upgrade_without_a_difference_says_so_and_does_nothing() -> None:
    world, _, second = upgraded()
    before = copy.deepcopy(world.objects)
    world.command("upgrade", f"@{second}#1")
    world.run(60)
    assert world.note("NothingToUpgrade") == f"revision {second} is what would be made today"
    assert (world.objects, world.condition("Reconciling")) == (before, ("False", "Settled"))
    assert world.status["handledCommands"] == {"tandem.dev/upgrade": f"@{second}#1"}


def test_an_upgrade_that_is_taken_back_by_hand_stays_so_until_retry() -> None:
    world, first, second = upgraded()
    world.command("rollback-to", f"@{second}#1")
    world.run_until(lambda seen: seen.stable == first and settled(seen))
    assert (world.status["refusedRevision"], world.condition("RolledBack")[0]) == (second, "True")
    assert world.images("gateway") == {OLD}
    world.run(600, every=60)
    world.command("upgrade", f"@{first}#2")
    world.run(30)
    assert world.note("NothingToUpgrade").endswith(f"is refused; tandem.dev/retry: @{second}#NONCE tries it again")
    assert (world.stable, stage(world)) == (first, Where.STABLE)
    world.command("retry", f"@{second}#1")
    world.run_until(promoted(first))
    assert world.stable == second


def test_a_poor_upgrade_is_refused_and_a_later_one_is_another_revision() -> None:
    world = serving()
    first = world.stable
    world.command("upgrade", f"@{first}#1")
    world.run_until(lambda seen: seen.progress.rollout.revision != "")
    second = world.progress.rollout.revision
    world.behaviour[second] = Behaviour(errors=0.5)
    world.run_until(lambda seen: seen.progress.refused == second and settled(seen))
    assert (world.verdicts()[second], served(world)) == ("Bad", {first: 100})
    world.terms = replace(NEWER, runtime_image="tandem-runtime:0.3.0")
    world.command("upgrade", f"@{first}#2")
    world.run_until(promoted(first))
    assert world.stable not in (first, second)
    assert world.images("gateway") == {"tandem-runtime:0.3.0"}
    world.terms = NEWER
    world.command("upgrade", f"@{world.stable}#3")
    world.run(30)
    assert f"and is Bad; tandem.dev/rollback-to: {second}@{world.stable}#NONCE" in world.note("NothingToUpgrade")


def test_a_refused_upgrade_leaves_the_spec_obeyed_and_stalls_nothing() -> None:
    world = serving()
    first = world.stable
    world.command("upgrade", f"@{first}#1")
    world.run_until(lambda seen: seen.progress.rollout.revision != "")
    second = world.progress.rollout.revision
    world.behaviour[second] = Behaviour(errors=0.5)
    world.run_until(lambda seen: seen.progress.refused == second and settled(seen))
    world.run(60)
    assert (world.status["refusedRevision"], world.condition("RolledBack")) == (second, ("True", "ErrorsFailed"))
    assert world.condition("Stalled") == ("False", "NotStalled")
    assert world.condition("Reconciling") == ("False", "Settled")
    v2 = push(world, V2, Behaviour(errors=0.5))
    world.run_until(lambda seen: seen.progress.refused == v2 and settled(seen))
    assert world.condition("Stalled") == ("True", "RevisionRefused")


def test_while_an_upgrade_is_refused_the_pods_that_serve_follow_the_spec_in_place() -> None:
    world, first, second = upgraded()
    first_target = str(revision_of(parse(world.spec)).target)
    world.command("rollback-to", f"@{second}#1")
    world.run_until(lambda seen: seen.stable == first and settled(seen))
    world.edit(target__resources={"limits": {"cpu": "2", "memory": "8Gi"}})
    world.run_until(settled, within=60)
    assert world.stable == first
    (target,) = (body for (kind, name), body in world.objects.items() if kind == "Deployment" and first_target in name)
    (engine,) = target["spec"]["template"]["spec"]["containers"]
    assert (engine["image"], engine["resources"]["limits"]["memory"]) == (OLD, "8Gi")


def test_an_operator_that_is_put_back_leads_back_by_the_same_command() -> None:
    world, first, second = upgraded()
    world.terms = replace(NEWER, runtime_image=OLD)
    world.command("upgrade", f"@{second}#2")
    world.run_until(promoted(second))
    assert (world.stable, set(world.verdicts())) == (first, {first, second})


def test_an_edit_ends_an_upgrade_under_way_and_what_it_did_not_change_stays_as_it_serves() -> None:
    world = serving()
    first = world.stable
    world.command("upgrade", f"@{first}#1")
    world.run_until(lambda seen: stage(seen) is Where.STEPPING)
    v2 = push(world, V2)
    world.run_until(promoted(first))
    assert (world.stable, world.images("target")) == (v2, {OLD})
    assert world.progress.upgrade is None


def test_a_draft_that_is_edited_after_an_upgrade_leaves_the_upgraded_target_alone() -> None:
    world, first, second = upgraded()
    push(world, V3)
    world.run_until(lambda seen: stage(seen) is Where.STEPPING)
    assert world.progress.rollout.surge == "SharedTarget"
    world.run_until(promoted(second))
    assert world.images("target") == {NEW}
    world.edit(draft__model__revision="1" * 40)
    world.run_until(lambda seen: seen.stable == second and settled(seen))  # the upgraded one, and not the first
    assert first != second


def test_where_only_the_draft_has_todays_image_an_upgrade_costs_no_target_pod() -> None:
    world = serving(changed(BRIEF, target__image="mine:1"))
    first, targets = world.stable, {name for name in deployments(world) if "-target-" in name}
    world.command("upgrade", f"@{first}#1")
    world.run_until(promoted(first))
    assert {name for name in deployments(world) if "-target-" in name} == targets
    assert (world.images("target"), world.images("gateway")) == ({"mine:1"}, {NEW})


def test_where_only_the_gateways_have_todays_image_an_upgrade_costs_no_pod_but_theirs() -> None:
    world = serving(changed(BRIEF, target__image="mine:1", draft__image="mine:1"))
    first, before = world.stable, deployments(world)
    world.command("upgrade", f"@{first}#1")
    world.run_until(promoted(first))
    assert (deployments(world), world.images("gateway")) == (before, {NEW})
    world.command("rollback-to", f"{first}@{world.stable}#1")
    world.run_until(lambda seen: seen.stable == first and settled(seen))
    assert (deployments(world), world.images("gateway")) == (before, {OLD})


def test_a_first_revision_that_cannot_come_up_with_its_image_is_made_anew_by_command() -> None:
    world = Upgradable(BRIEF)
    world.broken = {revision_of(parse(BRIEF)).target}
    world.run(120)
    (first,) = world.verdicts()
    assert stage(world) is Where.INSTALLING
    world.terms = NEWER
    world.command("upgrade", f"@{first}#1")
    world.run_until(lambda seen: seen.stable not in ("", first) and settled(seen), within=120)
    assert world.images("target") == world.images("gateway") == {NEW}


def test_a_paused_object_waits_with_an_upgrade() -> None:
    world = serving(changed(BRIEF, paused=False))
    first = world.stable
    world.edit(paused=True)
    world.command("upgrade", f"@{first}#1")
    world.run(60)
    assert (stage(world), len(world.verdicts())) == (Where.STABLE, 1)
    world.edit(paused=False)
    world.run_until(promoted(first))


def test_after_a_status_was_lost_an_old_upgrade_command_acts_no_more() -> None:
    world, _, second = upgraded()
    before = copy.deepcopy(world.objects)
    world.status = {}
    world.run(60)
    assert (world.stable, world.objects) == (second, before)
    assert world.note("CommandIgnored").endswith(f"wanted @{second}#NONCE, the revision that the spec means")


# Kills


def there_and_back(stopped: int | None) -> tuple[object, int]:
    """What stands after an upgrade and its rollback with one write not made, and how many writes there were."""
    world, count = serving(), itertools.count()
    first = world.stable
    world.stop_at = lambda _: next(count) == stopped
    world.command("upgrade", f"@{first}#1")
    world.run_until(promoted(first))
    world.command("rollback-to", f"{first}@{world.stable}#1")
    world.run_until(lambda seen: seen.stable == first and settled(seen))
    stands = {name: world.objects["Deployment", name]["spec"] for name in deployments(world)}
    told = [reason for reason in world.reasons() if reason in ("Upgrading", "CanaryStarted", "RollingBack")]
    return (stands, world.verdicts(), world.status["refusedRevision"], told), next(count)


def test_whichever_write_of_an_upgrade_and_its_rollback_is_not_made_the_end_is_the_same() -> None:
    expected, count = there_and_back(None)
    assert count > 20
    for number in range(count):
        assert there_and_back(number)[0] == expected, number


async def walk(stage: Stage) -> Stage:
    """An upgraded operator is asked for a new revision, which comes up, is given up, and may be tried again."""
    await stage.settle()
    first = stage.status["stableRevision"]
    stage.terms = NEWER
    stage.restart()
    command(stage, "upgrade", f"@{first}#1")
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 10)
    second = stage.status["canaryRevision"]
    command(stage, "abort", f"@{second}#1")
    await look_until(stage, lambda: "refusedRevision" in stage.status)
    await stage.settle()
    command(stage, "retry", f"@{second}#1")
    await look_until(stage, lambda: stage.status.get("canary", {}).get("percent") == 10)
    for _ in range(5):
        await look_until(stage, lambda: True)
    return stage


async def test_a_kill_at_any_write_of_an_upgrade_ends_in_the_same_state_and_makes_one_new_revision() -> None:
    whole = await walk(Stage())
    expected, count = _revisions(whole), len(whole.cluster.writes)
    installed = len((await Stage().settle()).cluster.writes)
    assert whole.told.reasons[:3] == ["Installed", "Upgrading", "CanaryStarted"]
    for number in range(installed, count):
        stage = Stage()
        stage.cluster.lost = nth(number, KilledError)
        await walk(stage)
        assert _revisions(stage) == expected, number
        assert stage.told.reasons.count("Upgrading") <= 1, number


def _revisions(stage: Stage) -> dict[str, object]:
    """What stands at the end, but for policies and evidence, which depend on how often was looked."""
    assert len(stage.children(Kind.CONTROLLER_REVISION)) == 2
    kinds = (str(Kind.CONTROLLER_REVISION), str(Kind.DEPLOYMENT), str(Kind.POD_DISRUPTION_BUDGET))
    return {name: body for name, body in final(stage).items() if name.startswith(kinds)}
