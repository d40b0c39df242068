"""The operator writes policies that gateways read, and reads the evidence that gateways write."""

import json
from dataclasses import replace
from pathlib import Path

import yaml
from tests.domain.simulated_specs import QUICK, V2
from tests.domain.simulated_world import Behaviour, installed, push

from tandem_operator.domain import record
from tandem_operator.domain.alerts import Intent, intents
from tandem_operator.domain.observed import Fetched
from tandem_operator.domain.samples import SEGMENT_BUCKETS, Arm, Document, Replayed, quantile
from tandem_operator.domain.spec import DraftMethod, Temperature
from tandem_operator.domain.webhook import annotation, read_webhook
from tandem_operator.observe import MOST_SCRAPES
from tandem_runtime import fetch
from tandem_runtime.domain import evidence as gateway
from tandem_runtime.domain.policy import LOOKUPS, RevisionName, RoleHash, parse_policy
from tandem_runtime.domain.replay import Result
from tandem_runtime.domain.segments import Heat
from tandem_runtime.domain.tokens import Drafter, Round

CRD = Path(__file__).parents[2] / "crds" / "speculativedeployments.yaml"


def test_gateways_read_every_policy_of_a_life() -> None:
    world = installed(QUICK, rate=8)
    push(world, V2)
    states, shares = set(), set()
    for tick in range(110):
        if tick == 85:
            world.behaviour[world.stable] = Behaviour(acceptance=0.05)
        world.tick()
        document = world.policy()
        assert document is not None
        read = parse_policy(json.dumps(document))
        assert read.number == document["number"]
        assert [revision.name for revision in read.revisions] == [held["name"] for held in document["revisions"]]
        states.add(str(read.speculation.state))
        shares.add(tuple(revision.weight for revision in read.revisions))
    assert {"Active", "Off"} <= states
    assert {(100,), (100, 0), (90, 10), (50, 50)} <= shares


def test_gateways_look_up_what_the_resource_names() -> None:
    for method, lookups in (("NGram", (Drafter.NGRAM,)), ("Suffix", (Drafter.SUFFIX,)), ("None", ())):
        world = installed({**QUICK, "draft": {"method": method}}, rate=8)
        document = world.policy()
        assert document is not None
        assert {revision.drafters for revision in parse_policy(json.dumps(document)).revisions} == {lookups}
    assert {method.value for method in DraftMethod} - {"None"} == {"Model", *(drafter.value for drafter in LOOKUPS)}


def test_gateways_know_the_segments_that_the_resource_names() -> None:
    drawn: list[dict[str, object]] = [{"temperature": heat.value} for heat in Heat]
    drawn += [{"tenants": ["a", "b"], "temperature": "Cool"}, {"adapter": "legal"}]
    analysis = {"segments": [{"name": f"s{index}", **each} for index, each in enumerate(drawn)]}
    spec = {**QUICK, "canary": {"analysis": analysis}, "speculation": {"plainSegments": drawn}}
    document = installed(spec).policy()
    assert document is not None
    read = parse_policy(json.dumps(document))
    assert [(held.heat, held.tenants, held.adapter) for held in read.segments] == [
        *((heat, (), None) for heat in Heat),
        (Heat.COOL, ("a", "b"), None),
        (None, (), "legal"),
    ]
    assert read.speculation.plain == tuple(replace(held, name="") for held in read.segments)
    assert {heat.value for heat in Heat} == {heat.value for heat in Temperature}


def test_the_operator_reads_what_a_gateway_counts() -> None:
    ledger = gateway.Ledger(boot="4be1")
    name, target = RevisionName("b07d51ee"), RoleHash("91ab02c4")
    stratum = ledger.stratum(gateway.StratumKey(12, name))
    stratum.add(Round(4, 3, 4, 0.0, 0.01), bucket=7)
    stratum.requests, stratum.errors = 2, 1
    stratum.exactness.add(Result.DIFFERENT, 9)
    stratum.exactness.add_plain(Result.UNCERTAIN, 7)
    for seconds in (0.06, 0.3, 90.0):
        stratum.add_first_token(seconds, bucket=7)
    stratum.know(("greedy", "hot"))
    stratum.add(Round(4, 3, 4, 0.0, 0.01), bucket=71, segments=("greedy",))
    stratum.add_stretch(0.66, tokens=33, bucket=7)
    slot = gateway.SlotKey("uid", target, 3, gateway.Arm.OFF, 12, name)
    ledger.add_decode(slot, ends_at=80.0, tokens=8, seconds=0.0914)
    admitted = {"targets": {"91ab02c4": 2}, "drafts": {"0be3fa77": 1}}
    written = ledger.document(wall=100.0, policy=12, admitted=admitted, serving=True)
    read = record.read(Document, json.dumps(written))
    assert (read.boot, read.policy, read.forgotten, read.serving) == ("4be1", 12, 0, True)
    assert (read.admitted.targets, read.admitted.drafts) == ({"91ab02c4": 2}, {"0be3fa77": 1})
    (counted,) = read.strata
    assert (counted.policy, counted.revision, counted.requests, counted.errors) == (12, "b07d51ee", 2, 1)
    assert (counted.rounds, counted.speculating, counted.proposed, counted.emitted) == (2, 2, 8, 8)
    assert {name: (held.accepted[7], sum(held.examined)) for name, held in counted.segments.items()} == {
        "greedy": (3, 4),
        "hot": (0, 0),
    }
    assert counted.stretch is not None
    assert counted.stretch.edges_milliseconds == gateway.STRETCH_EDGES_MILLISECONDS
    assert (counted.stretch.above(573)[7], counted.stretch.above(658)[7], counted.stretch.all()[7]) == (1, 0, 1)
    assert SEGMENT_BUCKETS == gateway.SEGMENT_BUCKETS
    assert counted.exactness == Replayed(equal=0, different=1, plain_uncertain=1, tokens=9, plain_tokens=7)
    assert counted.acceptance is not None
    assert (counted.acceptance.accepted[7], counted.acceptance.examined[7]) == (3, 4)
    timed = counted.first_token
    assert timed is not None
    assert timed.edges_milliseconds == gateway.FIRST_TOKEN_EDGES_MILLISECONDS
    assert [(timed.above(edge)[7], timed.all()[7]) for edge in (50, 70, 400, 60000)] == [(3, 3), (2, 3), (1, 3), (1, 3)]
    assert [quantile([timed], share) for share in (0.3, 0.5, 0.9)] == [70, 400, 60000]
    (closed,) = read.slots
    assert (closed.pod, closed.target, closed.slot, closed.arm) == ("uid", "91ab02c4", 3, Arm.OFF)
    assert (closed.tokens, closed.milliseconds) == (8, 91)
    assert {arm.value for arm in gateway.Arm} == {arm.value for arm in Arm}
    much_later = ledger.document(wall=300_000.0, policy=13, admitted=admitted, serving=True)
    assert record.read(Document, json.dumps(much_later)).forgotten == 12


def test_gateways_keep_what_is_over_for_longer_than_any_window_looks_back() -> None:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    longest = spec["autoDisable"]["properties"]["windowSeconds"]["maximum"]
    assert longest * (1 + 1 / MOST_SCRAPES) < gateway.KEPT_OVER_SECONDS


def test_the_operator_reads_what_a_fetcher_tells() -> None:
    for teacher in ("sha256:t", None):
        told = fetch.Fetched("sha256:d", "sha256:w", None, "/models/draft", teacher).told()
        read = record.read(Fetched, json.dumps(told))
        assert read == Fetched(digest="sha256:d", tokenizer="sha256:w", taught_by=teacher)


def test_a_decision_reads_what_the_webhook_wrote() -> None:
    labels = {"alertname": "TandemHighErrorRate", "namespace": "llm", "specdep": "chat", "revision": "b07d51ee"}
    alert = {"status": "firing", "labels": labels, "startsAt": "2026-03-01T12:00:00.5Z", "fingerprint": "f"}
    (firing,) = read_webhook({"version": "4", "alerts": [alert]}).firing
    name, value = annotation(firing, uid="uid")
    expected = Intent(name="TandemHighErrorRate", starts_at=firing.starts_at, revision="b07d51ee", labels=labels)
    assert intents({name: value}) == {name.partition("/")[2]: expected}
