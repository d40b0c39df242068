"""An object's size is bounded, from first to last: large ones work, and a long life leaves them as they were.

Source of the numbered case: kopf #1087 (C43). That bounds of the definition refuse what is too large, with the field's
name, is `tests/cluster/test_crd.py`.
"""

import json
from datetime import timedelta

import pytest
from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, changed
from tests.domain.simulated_world import Behaviour, World, installed, named, push, settled
from tests.scenarios.story_views import stage

from tandem_operator.domain.progress import Stage
from tandem_operator.domain.spec import LARGEST_OVERLAY_BYTES

KIB = 1024
MOST_OF_A_VALUE = 2 * KIB
"""No annotation of the operator's own may come near a copy of a large object."""
LARGEST_OBJECT = 1536 * KIB
"""What the API server's store takes of one object."""
MORE_DIGITS = 1.5
LONG = (pytest.mark.exactness, pytest.mark.timeout(600))
LONG_HOLD = {"steps": [{"percent": 50, "holdSeconds": 600_000}], "progressDeadlineSeconds": 2_000_000}


def padded(size: int) -> dict[str, object]:
    """A podTemplate of about so many bytes."""
    return {"spec": {"containers": [{"name": "engine", "env": [{"name": "NOTE", "value": "x" * size}]}]}}


LARGEST = padded(LARGEST_OVERLAY_BYTES - 200)


def size_of(body: object) -> int:
    return len(json.dumps(body))


def sizes(world: World) -> dict[str, int]:
    """What grows, if anything does: the object's status and annotations, its children by kind, how many there are."""
    kinds = sorted({kind for kind, _ in world.objects})
    largest = {kind: max(size_of(body) for (of, _), body in world.objects.items() if of == kind) for kind in kinds}
    own = {"status": size_of(world.status), "annotations": size_of(world.annotations)}
    return {**largest, **own, "children": len(world.objects)}


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What is more than a twentieth larger than it was, and by more than figures vary. Sums of the evidence get a digit
    more with each power of ten, and there are no more of them."""
    assert after.keys() == before.keys()
    room = {name: MORE_DIGITS if name == "ConfigMap" else 1.05 for name in before}
    return {name: (before[name], after[name]) for name in before if after[name] > room[name] * before[name] + 200}


def test_c43_an_object_of_300_kib_is_refused_by_a_bound_that_is_named_and_what_serves_goes_on() -> None:
    world = installed(QUICK, rate=5)
    v1 = world.stable
    world.edit(target__podTemplate=padded(300 * KIB))
    world.run(60)
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert "spec.target.podTemplate is" in world.message("Accepted")
    assert f"must be at most {LARGEST_OVERLAY_BYTES} bytes" in world.message("Accepted")
    assert (world.stable, world.condition("Ready")[0]) == (v1, "True")
    assert size_of(world.status) < 64 * KIB


def test_c43_the_largest_object_works_and_no_annotation_holds_a_copy_of_it() -> None:
    largest = {f"{role}__podTemplate": LARGEST for role in ("target", "draft")}
    world = installed(changed(QUICK, **largest), rate=20)
    v2 = push(world, "2" * 40, Behaviour(acceptance=0.85, speedup=1.7))
    world.run_until(lambda seen: seen.stable == v2 and settled(seen))
    for body in world.objects.values():
        assert size_of(body) < LARGEST_OBJECT
        assert all(len(text) < MOST_OF_A_VALUE for text in body["metadata"].get("annotations", {}).values())
    assert size_of(world.annotations) < MOST_OF_A_VALUE
    assert size_of(world.status) < 64 * KIB


class Forgetful(World):
    """Gateways tell of the slots of the last hour, as the product's do, and worlds keep no scrape for longer."""

    def serve(self, seconds: int) -> None:
        super().serve(seconds)
        for gateway in self.gateways.values():
            del gateway.slots[: -3600 // 10]
        del self.scrapes[:-20]


def checked(world: World, times: int) -> dict[str, int]:
    """So many looks, in each of which a canary is judged."""
    world.run(30 * times, every=30)
    assert stage(world) is Stage.STEPPING
    return sizes(world)


@pytest.mark.parametrize("times", [100, pytest.param(2000, marks=LONG)])
def test_c43_checks_of_a_canary_leave_the_object_its_size(times: int) -> None:
    world = installed(changed(QUICK, canary=LONG_HOLD), rate=0.2, kind=Forgetful)
    push(world, "2" * 40)
    world.run_until(lambda seen: stage(seen) is Stage.STEPPING)
    before = checked(world, times // 4)
    assert grown(before, checked(world, times)) == {}


def rolled_out(world: World, first: int, count: int) -> dict[str, int]:
    """Canaries that come up, are aborted by command and cleared away, one after the other."""
    for number in range(first, first + count):
        world.edit(draft__model__revision=f"{number:040x}")
        world.tick(5)
        world.tick(10)
        world.annotations["tandem.dev/abort"] = f"@{named(world)}#{number}"
        world.tick(5)
        assert stage(world) is Stage.STABLE
        world.run_until(settled, within=600, every=5)
    return sizes(world)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=LONG)])
def test_c43_rollouts_leave_the_object_its_size(count: int) -> None:
    world = installed(QUICK, kind=Forgetful)
    before = rolled_out(world, 16, 16)
    assert grown(before, rolled_out(world, 32, count)) == {}


def alerted(world: World, first: int, count: int) -> dict[str, int]:
    for number in range(first, first + count):
        alert(world, world.now - timedelta(days=2), key=f"{number:032x}")
        world.tick(5)
        world.tick(5)
    assert not [name for name in world.annotations if name.startswith("alert.tandem.dev/")]
    return sizes(world)


def test_c43_a_hundred_alerts_leave_the_object_its_size() -> None:
    world = installed(QUICK)
    before = alerted(world, 0, 25)
    assert grown(before, alerted(world, 25, 75)) == {}
    alerts = world.status["alerts"]
    assert isinstance(alerts, list)
    assert len(alerts) == 20
