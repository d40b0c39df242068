"""Changes of `spec.speculation` that are taken back: by command, by an alert, and what ends that."""

import itertools
from datetime import timedelta
from typing import Any

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, push, settled
from tests.scenarios.story_views import stage, weights

from tandem_operator.domain import progress, record
from tandem_operator.domain.progress import Stage


def speculation(world: World) -> dict[str, Any]:
    policy = world.policy()
    assert policy is not None
    found: dict[str, Any] = policy["speculation"]
    return found


def most(world: World) -> int:
    """K at most, as gateways are told it."""
    found: int = speculation(world)["maxDraftTokens"]
    return found


def undone(world: World) -> str:
    gateway: Any = world.status["gateway"]
    return str(gateway.get("policyUndone", ""))


def alerts(world: World) -> list[dict[str, str]]:
    shown: Any = world.status["alerts"]
    return list(shown)


def tuned(*maxima: int) -> tuple[World, list[int]]:
    """An object whose greatest K was changed so, and the numbers of the policies that said it."""
    world, numbers = installed(QUICK), []
    for value in maxima:
        world.edit(speculation__draftTokens={"max": value})
        world.run(60, every=30)
        policy = world.policy()
        assert policy is not None
        assert most(world) == value
        numbers.append(policy["number"])
    return world, numbers


def test_a_change_is_undone_by_command_within_one_look_and_the_spec_stays_as_it_is() -> None:
    world, _ = tuned(4)
    spec, number = world.spec, speculation(world)
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    assert speculation(world) == {**number, "maxDraftTokens": 8}
    assert world.spec == spec
    assert undone(world).startswith("settings of policy 1 since 2026-03-01T12:")
    assert undone(world).endswith(": by command")
    assert world.status["handledCommands"] == {"tandem.dev/policy-undo": f"@{world.stable}#1"}
    assert world.reasons()[-2:] == ["PolicyChanged", "PolicyUndone"]
    world.run(600)
    assert most(world) == 8  # the same annotation is the same command
    assert world.reasons().count("PolicyUndone") == 1


def test_undoing_again_goes_further_back_and_a_number_says_how_far() -> None:
    world, numbers = tuned(4, 5, 6)
    for nonce, expected in enumerate((5, 4, 8), start=1):
        world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#{nonce}"
        world.tick()
        assert most(world) == expected
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#4"
    world.tick()
    assert (most(world), world.reasons()[-1]) == (8, "CommandIgnored")
    world, numbers = tuned(4, 5, 6)
    world.annotations["tandem.dev/policy-undo"] = f"{numbers[0]}@{world.stable}#1"
    world.tick()
    assert most(world) == 4


def test_a_number_means_the_settings_of_that_policy_whatever_is_in_force() -> None:
    world, (four, five, six) = tuned(4, 5, 6)
    told = ((four, 4), (five, 5), (four, 4), (six, 6))
    for nonce, (number, expected) in enumerate(told):
        world.annotations["tandem.dev/policy-undo"] = f"{number}@{world.stable}#{nonce}"
        world.tick()
        assert (most(world), world.reasons()[-1]) == (expected, "PolicyUndone")
    assert undone(world) == ""
    world.annotations["tandem.dev/policy-undo"] = f"{six + 1}@{world.stable}#5"
    world.tick()
    assert (most(world), world.reasons()[-1]) == (6, "CommandIgnored")


def test_the_next_edit_of_the_policy_counts_and_no_other_edit_does() -> None:
    world, _ = tuned(4)
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    world.edit(target__replicas=3)
    world.run_until(settled, within=120)
    assert most(world) == 8
    world.edit(speculation__draftTokens={"max": 6})
    world.tick()
    assert (most(world), undone(world)) == (6, "")


def test_an_undo_holds_over_a_canary_and_its_promotion() -> None:
    world, _ = tuned(4)
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    v2, world.rate = push(world, V2), 5
    world.run_until(lambda seen: seen.stable == v2)
    assert most(world) == 8


def test_a_mode_that_was_switched_off_by_an_edit_comes_back() -> None:
    world = installed(QUICK)
    world.edit(speculation__mode="Off")
    world.run(30)
    assert world.condition("SpeculationActive") == ("False", "ModeOff")
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    assert speculation(world)["mode"] == "Auto"
    world.run_until(lambda seen: seen.condition("SpeculationActive")[0] == "True", within=300)


def test_an_alert_within_an_hour_of_a_change_undoes_it_and_touches_no_revision() -> None:
    world, _ = tuned(4)
    stable = world.stable
    alert(world, world.now)
    world.tick(2)
    assert (most(world), world.stable, weights(world)) == (8, stable, {stable: 100})
    (answered,) = alerts(world)
    assert answered["action"] == "PolicyUndone"
    assert world.condition("RolledBack")[0] == "False"
    assert "TandemHighErrorRate, started" in undone(world)
    alert(world, world.now, key="1" * 32)
    world.run(60)
    (_, second) = alerts(world)
    assert (second["action"], most(world)) == ("Ignored", 8)  # an overlay is not undone by the next alert


@pytest.mark.parametrize("how", ["an edit", "the command"])
def test_an_alert_that_comes_after_somebody_mended_the_policy_by_hand_rolls_nothing_back(how: str) -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.edit(speculation__draftTokens={"max": 4})
    world.run(60)
    starts_at = world.now
    if how == "an edit":
        world.edit(speculation__draftTokens={"max": 8})
    else:
        world.annotations["tandem.dev/policy-undo"] = f"@{v2}#1"
    world.run(20)
    alert(world, starts_at)
    world.run(20)
    assert ([each["action"] for each in alerts(world)], world.stable, most(world)) == (["Ignored"], v2, 8)


def test_an_undo_that_meets_an_edit_in_one_look_leaves_the_edit_in_force_unless_it_names_a_policy() -> None:
    """Without a number it would bring back what the edit was to replace."""
    for value, expected in (("", 2), ("{first}", 8)):
        world, numbers = tuned(4)
        world.edit(speculation__draftTokens={"max": 2})
        command = f"{value.format(first=numbers[0] - 1)}@{world.stable}#1"
        world.annotations["tandem.dev/policy-undo"] = command
        world.run(20)
        assert most(world) == expected
        assert world.status["handledCommands"] == {"tandem.dev/policy-undo": command}
    world, _ = tuned(4)
    world.edit(speculation__draftTokens={"max": 2})
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    (told,) = [event.note for event in world.events if event.reason == "CommandIgnored"]
    assert "spec.speculation was edited at the same moment, and that counts" in told


def test_two_alerts_of_one_change_of_policy_undo_it_and_roll_nothing_back() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    world.edit(speculation__draftTokens={"max": 4})
    world.run(60)
    alert(world, world.now)
    alert(world, world.now, key="1" * 32)
    world.run(60)
    assert ([each["action"] for each in alerts(world)], world.stable) == (["PolicyUndone", "Ignored"], v2)


def test_two_alerts_of_one_canary_end_it_and_roll_nothing_back() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    v3 = push(world, "3" * 40)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    alert(world, world.now)
    alert(world, world.now, key="1" * 32)
    world.run(60)
    assert ([each["action"] for each in alerts(world)], world.stable) == (["AbortedCanary", "Ignored"], v2)
    assert world.progress.refused == v3


def test_an_alert_from_before_the_change_or_from_long_after_it_undoes_nothing() -> None:
    for minutes in (-5, 90):
        world, _ = tuned(4)
        changed_at = world.now - timedelta(seconds=60)
        world.run(5400, every=60)
        alert(world, changed_at + timedelta(minutes=minutes))
        world.run(20)
        assert most(world) == 4


def test_a_canary_that_began_after_the_change_is_aborted_instead() -> None:
    world, _ = tuned(4)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    alert(world, world.now)
    world.tick(2)
    assert (world.progress.refused, most(world)) == (v2, 4)


def test_a_change_in_the_middle_of_a_canary_is_undone_and_the_canary_goes_on() -> None:
    world = installed(QUICK, rate=5)
    v2 = push(world, V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    world.edit(speculation__draftTokens={"max": 4})
    world.run(20)
    alert(world, world.now)
    world.tick(2)
    assert (most(world), world.progress.refused, weights(world)[v2]) == (8, "", 10)


def test_a_dry_run_says_what_it_would_have_undone() -> None:
    world = installed(changed(QUICK, rollback__dryRun=True))
    world.edit(speculation__draftTokens={"max": 4})
    world.run(60)
    alert(world, world.now)
    world.run(20)
    (answered,) = alerts(world)
    assert (answered["action"], most(world)) == ("WouldRollBack", 4)
    assert answered["note"] == "dry run: the change of spec.speculation would be undone"


def test_what_was_undone_survives_the_operator_and_ten_changes_are_known() -> None:
    world, _ = tuned(*range(1, 8), *range(1, 6))
    assert len(world.progress.policies) == 10
    world.annotations["tandem.dev/policy-undo"] = f"@{world.stable}#1"
    world.tick()
    kept = progress.read(world.status)
    assert kept == world.progress
    assert record.load(progress.Progress, record.dump(world.progress)) == world.progress
    world.run(60)
    assert most(world) == 4


def test_an_operator_that_learns_of_undoing_takes_the_policy_in_force_for_the_first() -> None:
    world, (_, number) = tuned(4, 5)
    kept = dict(world.status)
    kept["progress"] = {key: value for key, value in progress.write(world.progress).items() if key != "policies"}
    world.status = kept
    world.edit(target__replicas=3)
    world.run(60)
    assert [change.number for change in world.progress.policies] == [number]
    assert world.reasons().count("PolicyChanged") == 2
    world.edit(speculation__draftTokens={"max": 6})
    world.run(60)
    world.annotations["tandem.dev/policy-undo"] = f"{number}@{world.stable}#1"
    world.tick()
    assert most(world) == 5


def test_a_command_for_another_revision_or_in_other_words_undoes_nothing() -> None:
    world, _ = tuned(4)
    for nonce, text in enumerate(("@0badf00d", f"last@{world.stable}", f"-1@{world.stable}")):
        world.annotations["tandem.dev/policy-undo"] = f"{text}#{nonce}"
        world.tick()
        assert (most(world), world.reasons()[-1]) == (4, "CommandIgnored")


@pytest.mark.parametrize("killed_before", range(5))
def test_a_kill_at_any_write_of_an_undo_ends_with_it_done_once(killed_before: int) -> None:
    world, _ = tuned(4)
    alert(world, world.now)
    writes = itertools.count()
    world.stop_at = lambda action: next(writes) == killed_before
    world.run(60)
    assert (most(world), [each["action"] for each in alerts(world)]) == (8, ["PolicyUndone"])
    assert [name for name in world.annotations if name.startswith("alert.")] == []
    settled_writes = len(world.writes)
    world.run(60)
    assert len(world.writes) == settled_writes
