"""What makes a revision, and what does not."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.revision import NOTHING, Revision, RoleHash, draft_values, revision_of, target_values
from tandem_operator.domain.spec import parse

TARGET: Mapping[str, Any] = {"model": {"uri": "file:///m/target"}}
DRAFT: Mapping[str, Any] = {"model": {"uri": "file:///m/draft"}}


def revision(target: Mapping[str, Any] = TARGET, draft: Mapping[str, Any] = DRAFT, **others: object) -> Revision:
    return revision_of(parse({"target": target, "draft": draft, **others}))


def test_hashes_are_pinned_for_ever() -> None:
    """A change of these rolls every fleet that runs: it is a new hash version, never an edit of this test."""
    assert revision() == Revision(target=RoleHash("14ff927b"), draft=RoleHash("17323ac7"), adapters=NOTHING)
    assert revision().name == "6ffbdfb7"
    assert revision(draft={"method": "None"}).draft is None
    assert revision(draft={"method": "None"}).name == "ceeffa85"


HASHED: list[Mapping[str, Any]] = [
    {"model": {"uri": "file:///m/other"}},
    {"model": {"uri": "hf://a/b", "revision": "0" * 40}},
    {"model": {"uri": "hf://a/b", "revision": "1" * 40}},
    {"model": {"uri": "file:///m/target", "digest": "sha256:" + "0" * 64}},
    {"engineArgs": {"dtype": "bf16"}},
    {"engineArgs": {"dtype": "bf16", "threads": "2"}},
    {"image": "mine:1"},
    {"podTemplate": {"metadata": {"labels": {"team": "b"}}}},
    {"placement": {"accelerator": "H100"}},
    {"placement": {"accelerator": "H100", "count": 2}},
]


def test_every_hashed_field_of_the_target_changes_the_targets_hash_alone() -> None:
    changed = [revision(target={**TARGET, **fields}) for fields in HASHED]
    assert len({each.target for each in changed} | {revision().target}) == len(HASHED) + 1
    assert {each.draft for each in changed} == {revision().draft}
    assert len({each.name for each in changed}) == len(HASHED)


def test_every_hashed_field_of_the_draft_leaves_the_target_shared() -> None:
    changed = [revision(draft={**DRAFT, **fields}) for fields in HASHED]
    assert len({each.draft for each in changed} | {revision().draft}) == len(HASHED) + 1
    assert {each.target for each in changed} == {revision().target}


@pytest.mark.parametrize(
    "fields",
    [
        {"replicas": 7},
        {"resources": {"limits": {"memory": "9Gi"}}},
        {"placement": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}},
        {"placement": {"affinity": {"nodeAffinity": {}}, "priorityClassName": "high"}},
        {"cache": {"sizeLimit": "1Gi"}, "startupDeadlineSeconds": 60, "terminationGraceSeconds": 5},
        {"model": {"uri": "file:///m/target", "secretRef": {"name": "token"}}},
    ],
)
def test_what_rolls_in_place_makes_no_revision(fields: Mapping[str, Any]) -> None:
    assert revision(target={**TARGET, **fields}) == revision()


@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "Torch", "engineArgs": {}, "podTemplate": {}, "image": "", "placement": {"count": 1}},
        {"model": {"uri": "file:///m/target", "revision": "", "digest": ""}},
    ],
)
def test_a_default_that_is_written_out_is_no_change(fields: Mapping[str, Any]) -> None:
    assert revision(target={**TARGET, **fields}) == revision()


def test_policy_makes_no_revision() -> None:
    policy: dict[str, Any] = {
        "speculation": {"draftTokens": {"max": 4}},
        "canary": {"capacityWaitSeconds": 1},
        "autoDisable": {"windowSeconds": 60},
        "rollback": {"dryRun": True},
        "gateway": {"replicas": 5, "podTemplate": {"metadata": {"labels": {"a": "b"}}}},
        "paused": True,
        "servedModelName": "other",
    }
    assert revision(**policy) == revision()


@given(st.permutations(["dtype", "threads", "max-length"]))
def test_the_order_of_keys_is_no_change(names: list[str]) -> None:
    arguments = dict.fromkeys(names, "1")
    ordered = dict.fromkeys(sorted(names), "1")
    assert revision(target={**TARGET, "engineArgs": arguments}) == revision(target={**TARGET, "engineArgs": ordered})


def test_the_same_values_as_target_and_as_draft_have_different_hashes() -> None:
    both = revision(target=TARGET, draft=TARGET)
    assert both.target != both.draft


def test_normalised_values_hold_only_what_was_chosen() -> None:
    spec = parse({"target": {**TARGET, "placement": {"accelerator": "H100", "count": 2}}, "draft": {"method": "None"}})
    assert target_values(spec.target) == {"uri": "file:///m/target", "accelerator": "H100", "count": 2}
    assert draft_values(spec.draft) is None
