"""Weights and tokenizers that are not what their hash stands for: a folder that changed under its pods, a new target
with another tokenizer."""

from dataclasses import replace

import pytest
from tests.domain.simulated_specs import QUICK, V2, changed
from tests.domain.simulated_world import World, installed, named, settled
from tests.scenarios.story_views import stage, weights

from tandem_operator.domain.gates import retokenized
from tandem_operator.domain.observed import Fetched, Pod
from tandem_operator.domain.progress import Stage
from tandem_operator.domain.revision import Revision, Role, RoleHash, revision_of
from tandem_operator.domain.spec import parse


class Changing(World):
    """Pods in `newer` fetched what the folder holds since it was changed; gateways tell which tokenizer they read."""

    newer: frozenset[str] = frozenset()

    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._fetched(pod) for pod in super().pods())

    def _fetched(self, pod: Pod) -> Pod:
        if pod.role is Role.GATEWAY:
            return replace(pod, fetched=Fetched(tokenizer="sha256:same"))
        if pod.name not in self.newer or pod.fetched is None:
            return pod
        return replace(pod, fetched=replace(pod.fetched, digest="sha256:changed"))


def mixed() -> Changing:
    """Two target pods, of which the second started after the folder was changed."""
    world = installed(QUICK, rate=5, kind=Changing)
    assert isinstance(world, Changing)
    world.newer = frozenset(pod.name for pod in world.pods() if pod.name.endswith("-1") and pod.role == "target")
    world.run(30)
    return world


def test_pods_of_one_hash_with_different_weights_are_told_by_name_and_serve_on() -> None:
    world = mixed()
    (second,) = world.newer
    assert world.condition("ModelsCompatible") == ("False", "DigestsDiffer")
    assert f"{second} sha256:changed" in world.message("ModelsCompatible")
    assert f"{second.removesuffix('-1')}-0 sha256:d" in world.message("ModelsCompatible")
    assert world.reasons().count("DigestsDiffer") == 1
    assert (world.condition("Ready")[0], world.condition("SpeculationActive")[0]) == ("True", "True")


def test_when_the_pods_agree_again_the_condition_is_over_and_another_change_is_told_anew() -> None:
    world = mixed()
    again, world.newer = world.newer, frozenset()
    world.run(30)
    assert world.condition("ModelsCompatible") == ("True", "TokenizersEqual")
    world.newer = again
    world.run(30)
    assert world.reasons().count("DigestsDiffer") == 2


def test_a_canary_with_another_tokenizer_is_refused_by_stable_s_pods_where_no_gateway_told_its_own() -> None:
    world = installed(QUICK, rate=20)
    world.edit(target__model__revision=V2)
    pair = revision_of(parse(world.spec))
    world.tokenizers[str(pair.target)] = world.tokenizers[str(pair.draft)] = "sha256:new words"
    world.run_until(lambda seen: seen.condition("RolledBack") == ("True", "TokenizerChanged"), within=120)


@pytest.mark.parametrize("surge", ["Auto", "Recreate"])
def test_a_canary_whose_target_has_another_tokenizer_is_refused_at_once_with_the_way_out(surge: str) -> None:
    world = installed(changed(QUICK, canary__surge=surge), rate=20, kind=Changing)
    v1 = world.stable
    world.edit(target__model__revision=V2)
    v2, pair = named(world), revision_of(parse(world.spec))
    world.tokenizers[str(pair.target)] = world.tokenizers[str(pair.draft)] = "sha256:new words"
    world.run_until(lambda seen: "CanaryAborted" in seen.reasons(), within=600)
    world.run_until(settled, within=600)
    assert world.condition("RolledBack") == ("True", "TokenizerChanged")
    assert world.condition("Stalled") == ("True", "RevisionRefused")
    assert "serve it as an object of its own" in world.message("RolledBack")
    assert (stage(world), weights(world), world.verdicts()[v2]) == (Stage.STABLE, {v1: 100}, "Unknown")


def test_a_canary_that_is_recreated_is_refused_by_what_was_noted_of_stable_s_pods() -> None:
    world = installed(changed(QUICK, canary__surge="Recreate"), rate=20)
    world.edit(target__model__revision=V2)
    pair = revision_of(parse(world.spec))
    world.tokenizers[str(pair.target)] = world.tokenizers[str(pair.draft)] = "sha256:new words"
    world.run_until(lambda seen: "CanaryAborted" in seen.reasons(), within=300)
    world.run_until(settled, within=600)
    assert world.condition("RolledBack") == ("True", "TokenizerChanged")


def notes(world: World) -> dict[str, str]:
    """The tokenizer that stands on each revision's record."""
    held = world.observed().of_kind("ControllerRevision")
    found = {child.name: child.annotations.get("tandem.dev/tokenizer") for child in held}
    return {name: digest for name, digest in found.items() if digest is not None}


def rewritten(world: World) -> None:
    """Every pod of stable is another one by now, and fetched what the folder holds since its tokenizer was changed."""
    pair = revision_of(parse(world.spec))
    world.tokenizers[str(pair.target)] = world.tokenizers[str(pair.draft)] = "sha256:new words"
    world.run(30)


def test_pods_with_another_tokenizer_than_the_first_are_named_also_when_the_first_are_gone() -> None:
    world = installed(QUICK, rate=5)
    assert set(notes(world).values()) == {"sha256:same"}
    rewritten(world)
    assert world.condition("ModelsCompatible") == ("False", "DigestsDiffer")
    assert "sha256:same" in world.message("ModelsCompatible")
    assert "sha256:new words" in world.message("ModelsCompatible")
    assert (world.reasons().count("DigestsDiffer"), set(notes(world).values())) == (1, {"sha256:same"})
    assert world.condition("Ready")[0] == "True"


def test_a_tokenizer_that_is_meant_is_noted_once_the_note_of_the_first_is_removed() -> None:
    world = installed(QUICK, rate=5)
    rewritten(world)
    for key in [key for key in world.objects if key[0] == "ControllerRevision"]:
        world.annotate(key, {"tandem.dev/tokenizer": None})
    world.run(30)
    assert world.condition("ModelsCompatible") == ("True", "TokenizersEqual")
    assert set(notes(world).values()) == {"sha256:new words"}


def test_a_revision_that_shares_the_target_takes_the_note_over_and_it_is_written_once() -> None:
    world = installed(QUICK, rate=20)
    world.edit(draft__model__revision=V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING, within=600)
    assert list(notes(world).values()) == ["sha256:same"] * 2
    noted = [mark for mark in world.tick().marks if "tandem.dev/tokenizer" in mark.annotations]
    assert noted == []


def test_a_canary_that_keeps_the_tokenizer_is_not_refused_for_it() -> None:
    world = installed(QUICK, rate=20)
    world.edit(target__model__revision=V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING, within=600)
    assert "CanaryAborted" not in world.reasons()


class Moved(Changing):
    """Since it `moved` a gateway that starts reads a tokenizer which no target pod has, and is not ready."""

    moved = False

    def _fetched(self, pod: Pod) -> Pod:
        if self.moved and pod.role is Role.GATEWAY and pod.name.endswith("-0"):
            return replace(pod, ready=False, fetched=Fetched(tokenizer="sha256:newer"))
        return super()._fetched(pod)


def test_a_gateway_that_is_not_ready_since_its_tokenizer_is_nobody_s_refuses_no_canary() -> None:
    world = installed(QUICK, rate=5, kind=Moved)
    assert isinstance(world, Moved)
    world.moved = True
    world.edit(target__model__revision=V2)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING or "CanaryAborted" in seen.reasons(), within=600)
    assert "CanaryAborted" not in world.reasons()


def test_a_canary_of_a_draft_is_not_refused_for_the_target_that_it_shares_with_stable() -> None:
    pods = (fetched_by(Role.GATEWAY, None, "newer"), fetched_by(Role.TARGET, RoleHash("t"), "older"))
    stable, canary = (Revision(target=RoleHash("t"), draft=RoleHash(draft)) for draft in ("d", "e"))
    assert retokenized(stable, canary, pods, {}) is None


def fetched_by(role: Role, role_hash: RoleHash | None, tokenizer: str) -> Pod:
    held = Fetched(tokenizer=tokenizer)
    return Pod(name=role, uid=role, role=role, role_hash=role_hash, phase="Running", ready=True, fetched=held)
