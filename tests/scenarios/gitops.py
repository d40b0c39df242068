"""How tools that wait for an edit read an object: kstatus by its published rules, Argo CD by the health check that the
chart brings, in a real Lua without the libraries that Argo CD keeps from it. Nothing here is under test.

kstatus: https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lupa import lua51
from tests.domain.simulated_world import World

SCRIPT = Path(__file__).parents[2] / "charts" / "tandem" / "files" / "argocd-health.lua"
KEPT_FROM_CHECKS = ("string", "math", "io", "debug", "coroutine", "python")


def kstatus(found: Mapping[str, Any]) -> str:
    """Current, InProgress, Failed or Terminating, by deletion, generation, and the first condition that says it."""
    if found["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = found.get("status", {})
    if status.get("observedGeneration", found["metadata"]["generation"]) != found["metadata"]["generation"]:
        return "InProgress"
    for held in status.get("conditions", []):
        verdict = {"Reconciling": "InProgress", "Stalled": "Failed"}.get(held["type"])
        if verdict is not None and held["status"] == "True":
            return verdict
    ready = {held["type"]: held["status"] for held in status.get("conditions", [])}.get("Ready", "True")
    return "Current" if ready == "True" else "InProgress"


def argocd(found: Mapping[str, Any]) -> tuple[str, str]:
    """Status and message."""
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    lua.execute('getmetatable("").__index = nil')
    for library in KEPT_FROM_CHECKS:
        lua.globals()[library] = None
    lua.globals().obj = lua.table_from(found, recursive=True)
    health = lua.execute(SCRIPT.read_text())
    return health.status, health.message


@dataclass(frozen=True, slots=True)
class Read:
    """What both say of one moment."""

    kstatus: str
    argocd: str


def body(world: World) -> dict[str, Any]:
    """The object as a client gets it from an API server, which fills in the status that nobody has written yet."""
    status = dict(world.status) or {"observedGeneration": -1}
    return {"metadata": {"generation": world.generation}, "spec": world.spec, "status": status}


def read(world: World) -> Read:
    found = body(world)
    return Read(kstatus(found), argocd(found)[0])


def life(world: World, seconds: int, *, every: int = 5) -> list[Read]:
    """What both say over a span, from before its first look on; the same in a row is said once."""
    told = [read(world)]
    for _ in range(seconds // every):
        world.tick(every)
        told += [found for found in [read(world)] if found != told[-1]]
    return told
