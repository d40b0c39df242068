"""What looks cost the API server, counted, and that an object at rest misses nothing though it is not read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.domain.simulated_specs import BASE
from tests.scenarios.operator_stage import ADDRESS, CHILDREN, KEY, V2, Stage

from tandem_operator import steady
from tandem_operator.domain import record
from tandem_operator.domain.samples import BUCKETS, Buckets, Document, Stratum
from tandem_operator.ports import Change, Kind
from tandem_operator.reconcile import reconcile

READS = Counter(
    {
        "get SpeculativeDeployment": 1,
        **{f"list {kind}": 1 for kind in ("ConfigMap", "ControllerRevision", "Deployment", "Node", "Pod")},
        **{f"list {kind}": 1 for kind in ("PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount")},
    }
)


@contextmanager
def counting(stage: Stage) -> Iterator[Counter[str]]:
    """The calls of the API by verb and kind."""
    calls: Counter[str] = Counter()

    def count(verb: str, kind: Kind, _: str) -> None:
        calls[f"{verb} {kind}"] += 1

    with stage.cluster.failing(count):
        yield calls


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside a thousand others: an object at rest is read for the sake of time alone after minutes."""
    monkeypatch.setattr(steady, "READS_PER_SECOND", 0.001)


async def resting(spec: Mapping[str, Any] = BASE) -> Stage:
    """An object that was left with nothing to do."""
    stage = await Stage(spec).settle()
    for _ in range(3):
        await stage.look()
    assert len(stage.sources.steady) == 1
    return stage


def tell(stage: Stage, kind: Kind = ADDRESS[0], name: str = KEY.name) -> bool:
    """What a watch says of an object as it is now."""
    body = stage.cluster.objects.get((kind, KEY.namespace, name))
    version = "" if body is None else str(body["metadata"]["resourceVersion"])
    return stage.sources.steady.is_news(Change(KEY, kind, name, version))


# Counted


async def test_a_look_that_finds_nothing_to_do_costs_eleven_reads_and_no_write() -> None:
    stage = await resting()
    with counting(stage) as calls:
        await stage.look()
    assert calls == READS


async def test_each_write_of_a_child_costs_one_read_more_and_that_of_the_object_none() -> None:
    stage = Stage()
    with counting(stage) as calls:
        await stage.look()
    kinds = Counter(kind.value for kind, _ in CHILDREN)
    own = Counter({f"{verb} {kind}": count for kind, count in kinds.items() for verb in ("get", "apply")})
    assert calls == READS + own + Counter({"replace_status SpeculativeDeployment": 2})


@pytest.mark.usefixtures("crowded")
async def test_a_glance_at_an_object_at_rest_costs_the_api_server_nothing() -> None:
    stage = await resting()
    with counting(stage) as calls:
        for requests in range(100, 1000, 100):
            serve(stage, requests, acceptance=0.8)
            await reconcile(KEY, stage.sources, stage.told)
            stage.clock.advance(10)
    assert calls == Counter()


async def test_counts_on_the_way_are_told_after_a_while_and_not_at_every_look() -> None:
    stage = await resting()
    stage.edit(target__replicas=4)
    await reconcile(KEY, stage.sources, stage.told)
    await count(stage, 1)
    written = stage.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = {"manager": "tandem-operator", "subresource": "status", "time": written}
    stage.cluster.objects[ADDRESS]["metadata"]["managedFields"] = [entry]
    assert [await count(stage, ready) for ready in (2, 3)] == [0, 0]
    stage.clock.advance(5)
    assert await count(stage, 3) == 1
    assert stage.message("TargetReady") == "3/4 pods are ready"


async def count(stage: Stage, ready: int) -> int:
    """Writes of a look that sees so many of four target pods ready."""
    (target,) = [name for name in stage.children(Kind.DEPLOYMENT) if "-target-" in name]
    body = stage.cluster.objects[Kind.DEPLOYMENT, "llm", target]
    settled = {"observedGeneration": body["metadata"]["generation"], "replicas": 4, "updatedReplicas": 4}
    body["status"] = {**settled, "readyReplicas": ready}
    before = len(stage.cluster.writes)
    await reconcile(KEY, stage.sources, stage.told)
    return len(stage.cluster.writes) - before


# Nothing is missed


@pytest.mark.usefixtures("crowded")
async def test_a_change_that_a_watch_tells_of_is_followed_at_once() -> None:
    stage = await resting()
    stage.edit(gateway__replicas=3)
    assert tell(stage)
    await stage.look()
    assert stage.cluster.objects[Kind.DEPLOYMENT, "llm", "chat-gateway"]["spec"]["replicas"] == 3


@pytest.mark.usefixtures("crowded")
@pytest.mark.parametrize("kind", [Kind.DEPLOYMENT, Kind.SERVICE, Kind.CONFIG_MAP])
async def test_a_child_that_was_deleted_comes_back_once_a_watch_tells_of_it(kind: Kind) -> None:
    stage = await resting()
    name = stage.children(kind)[0]
    del stage.cluster.objects[kind, "llm", name]
    await reconcile(KEY, stage.sources, stage.told)
    assert name not in stage.children(kind)  # nobody has told us yet
    assert tell(stage, kind, name)
    await reconcile(KEY, stage.sources, stage.told)
    assert name in stage.children(kind)


@pytest.mark.usefixtures("crowded")
async def test_the_events_of_our_own_writes_wake_nobody() -> None:
    stage = await resting()
    assert [address for address in list(stage.cluster.objects) if tell(stage, address[0], address[2])] == []


@pytest.mark.usefixtures("crowded")
async def test_what_no_watch_tells_of_is_found_when_it_is_time_to_read_again() -> None:
    stage = await resting()
    del stage.cluster.objects[Kind.ROLE, "llm", "chat-gateway"]
    await stage.look()
    assert stage.children(Kind.ROLE) == []
    stage.clock.advance(1000)
    await stage.look()
    assert stage.children(Kind.ROLE) == ["chat-gateway"]


@pytest.mark.usefixtures("crowded")
async def test_what_follows_from_a_glance_is_decided_again_from_what_the_api_server_says_then() -> None:
    """The spec was edited, and no watch told of it: evidence wakes the object, and the edit is obeyed with it."""
    stage = await resting()
    await collapse(stage, until=250)
    assert stage.status["speculation"]["state"] == "Active"
    stage.edit(gateway__replicas=3)
    with counting(stage) as calls:
        await collapse(stage, since=250, until=500)
    assert calls >= READS
    assert stage.status["speculation"]["state"] == "Disabled"
    assert stage.cluster.objects[Kind.DEPLOYMENT, "llm", "chat-gateway"]["spec"]["replicas"] == 3


async def test_an_object_at_rest_switches_speculation_off_as_soon_as_one_that_is_read_at_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = await seconds_to_disabled(await resting())
    monkeypatch.setattr(steady, "READS_PER_SECOND", 0.001)
    assert await seconds_to_disabled(await resting()) == read


@pytest.mark.usefixtures("crowded")
async def test_while_a_canary_is_under_way_everything_is_read_at_each_look() -> None:
    stage = await resting()
    stage.edit(draft__model__revision=V2)
    assert tell(stage)
    for _ in range(10):
        with counting(stage) as calls:
            await stage.look()
        assert calls >= READS


@pytest.mark.usefixtures("crowded")
async def test_an_object_that_is_gone_is_forgotten() -> None:
    stage = await resting()
    del stage.cluster.objects[ADDRESS]
    assert tell(stage)
    assert await reconcile(KEY, stage.sources, stage.told) is None
    assert len(stage.sources.steady) == 0


@pytest.mark.usefixtures("crowded")
async def test_an_object_at_rest_says_too_that_the_definition_is_older_and_when_it_is_no_longer() -> None:
    stage = await resting()
    for lacking, told in ((("spec.canary",), "DefinitionOutdated"), ((), "Valid")):
        stage.sources.definition.lacking = lacking
        await stage.look()
        assert stage.condition("Accepted") == ("True", told)
        for _ in range(3):
            await stage.look()
        assert len(stage.sources.steady) == 1


@pytest.mark.usefixtures("crowded")
async def test_an_object_whose_pods_are_waited_for_is_not_at_rest() -> None:
    stage = await Stage().settle()
    (draft,) = [name for name in stage.children(Kind.DEPLOYMENT) if "-draft-" in name]
    stage.world.broken = {draft.removeprefix("chat-draft-")}
    for address in [held for held in stage.cluster.objects if held[0] is Kind.POD and "-draft-" in held[2]]:
        del stage.cluster.objects[address]
    for _ in range(4):
        await stage.look()
    assert (stage.condition("Reconciling")[0], len(stage.sources.steady)) == ("True", 0)


# What gateways say


async def seconds_to_disabled(stage: Stage) -> int:
    """Of traffic that a draft guesses badly from the beginning."""
    for seconds in range(0, 900, 10):
        await collapse(stage, since=seconds, until=seconds + 10)
        if stage.status["speculation"]["state"] == "Disabled":
            return seconds
    raise AssertionError(stage.status)


async def collapse(stage: Stage, *, until: int, since: int = 0) -> None:
    """Looks every ten seconds at a draft whose guesses are hardly ever right."""
    for seconds in range(since, until, 10):
        serve(stage, 100 + 4 * seconds, acceptance=0.1)
        await reconcile(KEY, stage.sources, stage.told)
        stage.clock.advance(10)


def serve(stage: Stage, requests: int, *, acceptance: float) -> None:
    """So many requests until now in every gateway, ten examined tokens each, a little uneven over the buckets."""
    for address, held in stage.telemetry.documents.items():
        each = [(requests + number % 3) * 10 // BUCKETS for number in range(BUCKETS)]
        sums = Buckets(
            accepted=tuple(int(examined * acceptance) for examined in each),
            examined=tuple(each),
            requests=tuple(requests // BUCKETS for _ in each),
        )
        stratum = Stratum(
            policy=1,
            revision=str(stage.status["stableRevision"]),
            requests=requests,
            rounds=10 * requests,
            speculating=10 * requests,
            proposed=20 * requests,
            emitted=11 * requests,
            acceptance=sums,
        )
        document = replace(record.load(Document, held), strata=(stratum,))
        stage.telemetry.documents[address] = record.dump(document)
