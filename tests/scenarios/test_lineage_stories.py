"""Drafts that another target taught: people are told, and what is accepted decides."""

from dataclasses import replace

from tests.domain.simulated_specs import QUICK, V2, V3
from tests.domain.simulated_world import Behaviour, World, installed, named, push
from tests.scenarios.story_views import stage

from tandem_operator.domain.observed import Pod
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import Role


class Taught(World):
    """Every draft was taught by the target whose digest is `teacher`; every target's is sha256:d."""

    teacher: str | None = "sha256:d"

    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._taught(pod) for pod in super().pods())

    def _taught(self, pod: Pod) -> Pod:
        if pod.role is not Role.DRAFT or pod.fetched is None:
            return pod
        return replace(pod, fetched=replace(pod.fetched, taught_by=self.teacher))


def taught_by(teacher: str | None) -> Taught:
    world = Taught(QUICK)
    world.teacher = teacher
    world.run_until(lambda seen: seen.condition("Reconciling")[0] == "False", within=120, every=5)
    world.rate = 20
    return world


def test_a_draft_of_this_target_and_one_without_a_manifest_are_nothing_to_speak_of() -> None:
    for teacher in ("sha256:d", None):
        world = taught_by(teacher)
        assert world.condition("ModelsCompatible") == ("True", "TokenizersEqual")
        assert "DraftOfAnotherTarget" not in world.reasons()


def test_a_draft_of_another_target_is_told_once_and_served_all_the_same() -> None:
    world = taught_by("sha256:other")
    world.run(60)
    assert world.condition("ModelsCompatible") == ("True", "DraftOfAnotherTarget")
    assert "taught by the target sha256:other, and proposes to sha256:d" in world.message("ModelsCompatible")
    assert world.reasons().count("DraftOfAnotherTarget") == 1
    assert world.condition("SpeculationActive")[0] == "True"


def test_a_new_target_that_keeps_the_old_ones_draft_is_warned_of_and_judged_by_what_it_does() -> None:
    world = taught_by("sha256:other")
    world.edit(target__model__revision=V2)
    v2 = named(world)
    world.behaviour[v2] = Behaviour(acceptance=0.85, speedup=1.7)
    world.run_until(lambda seen: seen.stable == v2)
    notes = [event.note for event in world.events if event.reason == "DraftOfAnotherTarget"]
    assert [note.split(":")[0] for note in notes] == [f"revision {named(installed(QUICK))}", f"revision {v2}"]


def test_a_warning_is_told_again_for_another_draft_only() -> None:
    world = taught_by("sha256:other")
    push(world, V2, Behaviour(acceptance=0.85, speedup=1.7))
    world.run(120)
    assert world.reasons().count("DraftOfAnotherTarget") == 2


def test_a_stable_that_was_told_of_is_not_told_of_again_after_each_canary() -> None:
    world = taught_by("sha256:other")
    for revision in (V2, V3):
        name = push(world, revision)
        world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
        world.annotations["tandem.dev/abort"] = f"@{name}#1"
        world.run(60)
        assert stage(world) is Stage.STABLE
    assert world.reasons().count("DraftOfAnotherTarget") == 3
