"""What an upgrade by command would change, what it makes of that, and which commands it does not obey."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.domain.simulated_specs import TERMS, changed
from tests.domain.upgradable_world import BRIEF, NEWER, Upgradable, serving

from tandem_operator.domain import situation
from tandem_operator.domain.observed import Node
from tandem_operator.domain.pools import Alternative
from tandem_operator.domain.revision import Edition, Role, revision_of
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.domain.spec import parse
from tandem_operator.domain.upgrade import differences

IMAGE = "image tandem-runtime:0.1.0 -> tandem-runtime:0.2.0"
ELSEWHERE = Alternative(label="cloud.google.com/gke-accelerator", values=("nvidia-h100",))
OTHER_TABLE = replace(TERMS, accelerators={**TERMS.accelerators, "H100": (ELSEWHERE,)})
TWO_WAYS = replace(TERMS, accelerators={**TERMS.accelerators, "H100": (*TERMS.accelerators["H100"], ELSEWHERE)})
OWN_TARGET = changed(BRIEF, target__image="mine:1")
OWN_IMAGES = changed(OWN_TARGET, draft__image="mine:1")

DIFFERENCES: list[tuple[dict[str, Any], OperatorTerms, dict[Role, str]]] = [
    (BRIEF, TERMS, {}),
    (BRIEF, NEWER, dict.fromkeys(Role, IMAGE)),
    (OWN_TARGET, NEWER, {Role.GATEWAY: IMAGE, Role.DRAFT: IMAGE}),
    (OWN_IMAGES, NEWER, {Role.GATEWAY: IMAGE}),
    (OWN_IMAGES, OTHER_TABLE, {Role.TARGET: "another template"}),
    (changed(BRIEF, draft={"method": "None"}), NEWER, {Role.GATEWAY: IMAGE, Role.TARGET: IMAGE}),
]


@pytest.mark.parametrize(("spec", "terms", "expected"), DIFFERENCES)
def test_what_would_come_out_otherwise_is_known_by_role(
    spec: dict[str, Any], terms: OperatorTerms, expected: dict[Role, str]
) -> None:
    world = serving(spec, rate=0)
    world.terms = terms
    at = situation.read(world.observed())
    assert at.stable is not None
    assert differences(at, at.stable) == expected


def test_nodes_that_came_since_are_a_difference_of_the_role_that_they_could_run() -> None:
    world = Upgradable(BRIEF)
    world.terms, world.nodes = TWO_WAYS, (Node("a", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),)
    world.run_until(lambda seen: seen.stable != "")
    world.nodes = (Node("b", {ELSEWHERE.label: "nvidia-h100"}),)
    at = situation.read(world.observed())
    assert at.stable is not None
    assert differences(at, at.stable) == {Role.TARGET: "another template"}


@pytest.mark.parametrize(("spec", "terms", "changing"), DIFFERENCES)
def test_the_roles_that_would_come_out_otherwise_get_another_hash_and_the_others_keep_theirs(
    spec: dict[str, Any], terms: OperatorTerms, changing: dict[Role, str]
) -> None:
    world = serving(spec, rate=0)
    world.terms, first = terms, world.stable
    world.command("upgrade", f"@{first}#1")
    world.tick()
    edition = Edition(**dict.fromkeys(map(str, changing), 2))
    wanted, plain = revision_of(parse(spec), edition), revision_of(parse(spec))
    assert world.decisions[-1].current == wanted.name
    assert (wanted.name == plain.name, wanted.target == plain.target) == (not changing, Role.TARGET not in changing)
    assert wanted.draft == plain.draft or Role.DRAFT in changing
    assert world.reasons()[1:] == (["Upgrading", "CanaryStarted"] if changing else ["NothingToUpgrade"])
    assert world.status["handledCommands"] == {"tandem.dev/upgrade": f"@{first}#1"}


def test_the_hash_of_a_first_edition_knows_of_no_edition() -> None:
    spec = parse(BRIEF)
    assert revision_of(spec, Edition()) == revision_of(spec)
    named = {revision_of(spec, Edition(**{role: 2})).name for role in Role}
    assert len(named | {revision_of(spec).name}) == 4


def no_accelerator(world: Upgradable) -> None:
    world.terms = replace(NEWER, accelerators={})


def rolling_back(world: Upgradable) -> None:
    """To the first revision, whose pods do not come."""
    first = world.stable
    world.edit(target__model__revision="2" * 40, canary__rollbackWindowSeconds=0, rollback__windowSeconds=0)
    world.run_until(lambda seen: seen.stable != first and seen.condition("Reconciling")[0] == "False")
    world.broken = {str(revision_of(parse(BRIEF)).target)}
    world.command("rollback-to", f"{first}@{world.stable}#1")
    world.tick()


def nothing(world: Upgradable) -> None:
    """As it is."""


IGNORED: list[tuple[Callable[[Upgradable], None], str, str]] = [
    (nothing, "@0badf00d#1", "wanted @{stable}#NONCE, the revision that the spec means"),
    (nothing, "new@{stable}#1", "wanted @{stable}#NONCE"),
    (nothing, "@{stable}", "wanted @{stable}#NONCE"),
    (no_accelerator, "@{stable}#1", "nothing can be made of this spec: spec.target.placement.accelerator is 'H100'"),
    (rolling_back, "@{stable}#1", "a rollback is under way"),
]


@pytest.mark.parametrize(("before", "value", "why"), IGNORED)
def test_what_is_no_command_for_the_present_state_is_ignored_and_says_why(
    before: Callable[[Upgradable], None], value: str, why: str
) -> None:
    world = serving()
    before(world)
    names = {"stable": world.stable}
    kept = {name for kind, name in world.objects if kind == "ControllerRevision"}
    world.command("upgrade", value.format(**names))
    world.tick(2)
    assert why.format(**names) in world.note("CommandIgnored")
    assert {name for kind, name in world.objects if kind == "ControllerRevision"} == kept
    assert world.progress.upgrade is None
