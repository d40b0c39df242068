"""A simulated world whose operator may become another one, with another image, table or nodes. Nothing here is under
test."""

from dataclasses import replace
from typing import Any

from tests.domain.simulated_specs import QUICK, TERMS, changed
from tests.domain.simulated_world import World, installed

from tandem_operator.domain.observed import Node, Observed

NEWER = replace(TERMS, runtime_image="tandem-runtime:0.2.0")
BRIEF = changed(QUICK, canary__steps=[{"percent": 50, "holdSeconds": 10}])


class Upgradable(World):
    """`terms` are the operator's, `nodes` what it sees of the cluster."""

    terms = TERMS
    nodes: tuple[Node, ...] | None = None

    def observed(self) -> Observed:
        return replace(super().observed(), terms=self.terms, nodes=self.nodes)

    def images(self, role: str) -> set[str]:
        """Of the Deployments of a role."""
        found = (body for (kind, name), body in self.objects.items() if kind == "Deployment" and f"-{role}" in name)
        return {body["spec"]["template"]["spec"]["containers"][0]["image"] for body in found}

    def note(self, reason: str) -> str:
        """Of the last event with this reason."""
        return [event.note for event in self.events if event.reason == reason][-1]

    def command(self, name: str, value: str) -> None:
        self.annotations[f"tandem.dev/{name}"] = value


def serving(spec: dict[str, Any] | None = None, *, rate: float = 20) -> Upgradable:
    """The first revision serves; then the operator is upgraded."""
    world = installed(spec or BRIEF, rate=rate, kind=Upgradable)
    assert isinstance(world, Upgradable)
    world.terms = NEWER
    return world
