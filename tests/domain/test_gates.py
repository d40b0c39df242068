"""What is known before any traffic, as tables."""

from contextlib import nullcontext

import pytest
from tests.domain.simulated_specs import BASE, TERMS, changed

from tandem_operator.domain.decision import GateVerdict
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.gates import (
    admit,
    admit_surge,
    capacity,
    compatible,
    crash_looping,
    mixed,
    taught_elsewhere,
)
from tandem_operator.domain.observed import Fetched, Pod
from tandem_operator.domain.revision import Revision, Role, RoleHash
from tandem_operator.domain.spec import SurgeMode, parse

PAIR = Revision(target=RoleHash("t"), draft=RoleHash("d"))


def pod(role: Role, role_hash: str, **more: object) -> Pod:
    return Pod(name=f"{role}-0", uid="u", role=role, role_hash=RoleHash(role_hash), phase="Running", **more)  # type: ignore[arg-type] # fields by name


def fetched(tokenizer: str | None) -> dict[str, object]:
    return {"fetched": Fetched(tokenizer=tokenizer)}


TARGET = pod(Role.TARGET, "t", **fetched("a"))


@pytest.mark.parametrize(
    ("pods", "verdict", "reason"),
    [
        ([], GateVerdict.UNKNOWN, "NotFetchedYet"),
        ([TARGET], GateVerdict.UNKNOWN, "NotFetchedYet"),
        ([TARGET, pod(Role.DRAFT, "d", **fetched(None))], GateVerdict.UNKNOWN, "NotFetchedYet"),
        ([TARGET, pod(Role.DRAFT, "d", **fetched("a"))], GateVerdict.OPEN, "TokenizersEqual"),
        ([TARGET, pod(Role.DRAFT, "d", **fetched("b"))], GateVerdict.CLOSED, "TokenizersDiffer"),
        ([TARGET, pod(Role.DRAFT, "other", **fetched("b"))], GateVerdict.UNKNOWN, "NotFetchedYet"),
    ],
)
def test_a_pair_fits_where_both_report_the_same_tokenizer(pods: list[Pod], verdict: GateVerdict, reason: str) -> None:
    found = compatible(PAIR, pods)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("taught_by", "digest", "told"),
    [("w", "w", False), ("v", "w", True), (None, "w", False), ("v", None, False)],
)
def test_a_draft_that_another_target_taught_fits_and_is_told(
    taught_by: str | None, digest: str | None, told: bool
) -> None:
    target = pod(Role.TARGET, "t", fetched=Fetched(digest=digest, tokenizer="a"))
    draft = pod(Role.DRAFT, "d", fetched=Fetched(digest="x", tokenizer="a", taught_by=taught_by))
    found = compatible(PAIR, [target, draft])
    assert (found.verdict, found.reason == "DraftOfAnotherTarget") == (GateVerdict.OPEN, told)
    assert (taught_elsewhere(PAIR, [target, draft]) is not None) is told


def test_a_target_alone_always_fits() -> None:
    assert compatible(Revision(target=RoleHash("t"), draft=None), []).reason == "NoDraft"


def test_no_room_is_told_in_the_scheduler_s_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    found = capacity([pod(Role.TARGET, "t"), pod(Role.DRAFT, "d", unschedulable=words)])
    assert (found.verdict, found.reason) == (GateVerdict.CLOSED, "Unschedulable")
    assert found.message.endswith(words)
    assert capacity([pod(Role.TARGET, "t")]).verdict is GateVerdict.OPEN


def test_an_accelerator_outside_the_table_is_named_by_its_field() -> None:
    admit(parse(BASE), TERMS.accelerators, None)
    with pytest.raises(SpecError, match=r"^spec\.target\.placement\.accelerator is 'B200'"):
        admit(parse(changed(BASE, target__placement__accelerator="B200")), TERMS.accelerators, ())


@pytest.mark.parametrize(
    ("asked", "stable", "words"),
    [
        (SurgeMode.SHARED_TARGET, Revision(target=RoleHash("t0"), draft=RoleHash("d")), "the target changes too"),
        (SurgeMode.IN_PLACE_DRAFT, Revision(target=RoleHash("t0"), draft=RoleHash("d")), "the target changes too"),
        (SurgeMode.IN_PLACE_DRAFT, Revision(target=RoleHash("t"), draft=None), "one of the revisions has none"),
        (SurgeMode.IN_PLACE_DRAFT, Revision(target=RoleHash("t"), draft=RoleHash("d0")), None),
        (SurgeMode.SHARED_TARGET, Revision(target=RoleHash("t"), draft=None), None),
        (SurgeMode.SHARED_TARGET, PAIR, None),
        (SurgeMode.SHARED_TARGET, None, None),
        (SurgeMode.SIDE_BY_SIDE, Revision(target=RoleHash("t0"), draft=None), None),
        (SurgeMode.AUTO, Revision(target=RoleHash("t0"), draft=None), None),
        (SurgeMode.RECREATE, Revision(target=RoleHash("t0"), draft=None), None),
    ],
)
def test_a_surge_that_a_change_cannot_have_is_refused_by_its_field(
    asked: SurgeMode, stable: Revision | None, words: str | None
) -> None:
    refused = pytest.raises(SpecError, match=rf"^spec\.canary\.surge is '{asked}'[:;] .*{words}")
    with nullcontext() if words is None else refused:
        admit_surge(asked, stable, PAIR)


def test_only_a_pod_that_fails_again_and_again_is_a_crash_loop() -> None:
    looping = pod(Role.DRAFT, "d", waiting_reason="CrashLoopBackOff", restarts=5)
    assert crash_looping([pod(Role.DRAFT, "d", waiting_reason="CrashLoopBackOff", restarts=4), looping]) is looping
    assert crash_looping([pod(Role.DRAFT, "d", waiting_reason="ImagePullBackOff", restarts=9)]) is None


def fetched_as(name: str, digest: str, role: Role = Role.TARGET, *, leaving: bool = False) -> Pod:
    held = Fetched(digest=digest)
    return Pod(name=name, uid=name, role=role, role_hash=RoleHash("t"), phase="Running", fetched=held, leaving=leaving)


def test_different_weights_are_told_of_one_role_hash_alone_and_not_of_pods_that_leave() -> None:
    assert mixed([fetched_as("a", "x"), fetched_as("b", "x")], {}) is None
    assert mixed([fetched_as("a", "x"), fetched_as("b", "y", Role.DRAFT)], {}) is None
    assert mixed([fetched_as("a", "x"), fetched_as("b", "y", leaving=True)], {}) is None
    many = [fetched_as(f"p{number}", "x") for number in range(7)]
    found = mixed([*many, fetched_as("q", "y")], {})
    assert found is not None
    assert (found.verdict, found.reason) == (GateVerdict.CLOSED, "DigestsDiffer")
    assert "p0, p1, p2, p3, p4 and 2 more x; q y;" in found.message
