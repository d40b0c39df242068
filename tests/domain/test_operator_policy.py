"""The document for gateways is the contract's, and its number moves exactly when its content does."""

from dataclasses import replace

import pytest
from tests.domain.simulated_specs import BASE, changed

from tandem_operator.domain.decision import Share
from tandem_operator.domain.policy import KEPT, Terms, build, keep
from tandem_operator.domain.progress import SpeculationState
from tandem_operator.domain.revision import Revision, RoleHash, draft_values
from tandem_operator.domain.spec import parse

SHARED = {
    "6f2c9a41": Revision(target=RoleHash("91ab02c4"), draft=RoleHash("0be3fa77")),
    "b07d51ee": Revision(target=RoleHash("91ab02c4"), draft=RoleHash("77aa0c12")),
}
PLAIN = {"shadow": False, "speculate": True}
TERMS = Terms(
    spec=parse(BASE),
    name="chat",
    salt="uid",
    shares=(Share(revision="6f2c9a41", weight=90), Share(revision="b07d51ee", weight=10)),
    pairs=SHARED,
    state=SpeculationState.ACTIVE,
    on_trial=False,
)


def test_the_policy_is_as_the_contract_writes_it() -> None:
    assert build(TERMS, [], number=1) == {
        "version": 1,
        "number": 1,
        "servedModelName": "chat",
        "salt": "uid",
        "revisions": [
            {"name": "6f2c9a41", "target": "91ab02c4", "draft": "0be3fa77", "weight": 90, **PLAIN},
            {"name": "b07d51ee", "target": "91ab02c4", "draft": "77aa0c12", "weight": 10, **PLAIN},
        ],
        "assignment": "Request",
        "speculation": {
            "state": "Active",
            "mode": "Auto",
            "verification": "Coupled",
            "minDraftTokens": 1,
            "maxDraftTokens": 8,
            "minGainBasisPoints": 100,
        },
        "control": {"offPercent": 5, "slotSeconds": 20},
        "exactness": {"sampleBasisPoints": 100},
    }


@pytest.mark.parametrize("method", ["NGram", "Suffix"])
def test_a_lookup_is_its_own_revisions_and_has_no_pods(method: str) -> None:
    spec = parse({"target": BASE["target"], "draft": {"method": method}})
    assert draft_values(spec.draft) is None
    revisions = build(replace(TERMS, spec=spec, lookups={"b07d51ee": method}), [], number=1)["revisions"]
    assert revisions == [
        {"name": "6f2c9a41", "target": "91ab02c4", "draft": "0be3fa77", "weight": 90, **PLAIN},
        {"name": "b07d51ee", "target": "91ab02c4", "draft": "77aa0c12", "weight": 10, **PLAIN, "lookups": [method]},
    ]


def test_the_same_content_keeps_its_number_and_another_gets_the_next() -> None:
    first = build(TERMS, [], number=1)
    assert build(TERMS, [first], number=2) == first
    changed_terms = replace(TERMS, state=SpeculationState.OFF)
    assert build(changed_terms, [first], number=42)["number"] == 42


def test_going_back_to_an_earlier_content_is_a_new_policy() -> None:
    first = build(TERMS, [], number=1)
    second = build(replace(TERMS, on_trial=True), [first], number=2)
    assert build(TERMS, [second, first], number=3)["number"] == 3


def test_the_last_ten_are_kept_newest_first() -> None:
    kept: tuple[object, ...] = ()
    for number in range(12):
        kept = keep({"number": number}, kept)  # type: ignore[arg-type] # documents
        kept = keep({"number": number}, kept)
    assert [policy["number"] for policy in kept] == list(range(11, 1, -1))  # type: ignore[index] # documents
    assert len(kept) == KEPT


@pytest.mark.parametrize(
    ("state", "on_trial", "told", "off"),
    [
        (SpeculationState.ACTIVE, False, "Active", 5),
        (SpeculationState.ACTIVE, True, "Active", 20),
        (SpeculationState.DISABLED, False, "Off", 5),
        (SpeculationState.PROBING, False, "Probing", 80),
        (SpeculationState.OFF, True, "Off", 5),
    ],
)
def test_a_state_of_the_breaker_is_told_in_the_gateways_words(
    state: SpeculationState, on_trial: bool, told: str, off: int
) -> None:
    found = build(replace(TERMS, state=state, on_trial=on_trial), [], number=1)
    assert (found["speculation"]["state"], found["control"]["offPercent"]) == (told, off)  # type: ignore[index] # JSON


def test_revisions_with_different_targets_are_assigned_by_session() -> None:
    apart = {**SHARED, "b07d51ee": Revision(target=RoleHash("00000002"), draft=None)}
    found = build(replace(TERMS, pairs=apart), [], number=1)
    assert found["assignment"] == "Session"
    assert found["revisions"][1]["draft"] is None  # type: ignore[index] # JSON


def test_the_served_name_is_the_spec_s_where_it_has_one() -> None:
    named = replace(TERMS, spec=parse(changed(BASE, servedModelName="gpt")))
    assert build(named, [], number=1)["servedModelName"] == "gpt"
