"""Reading a policy, and what it allows."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.errors import PolicyRefused
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.policy import (
    Allowance,
    Assignment,
    ControlPolicy,
    ExactnessPolicy,
    OwnWish,
    PairRevision,
    Policy,
    RequestKind,
    RevisionName,
    RoleHash,
    Slice,
    SpeculationMode,
    SpeculationPolicy,
    SpeculationState,
    VerificationChoice,
    Withheld,
    allowance,
    choose_verification,
    parse_policy,
)
from tandem_runtime.domain.segments import Heat
from tandem_runtime.domain.tokens import Drafter, Verification

STABLE = PairRevision(RevisionName("6f2c9a41"), RoleHash("91ab02c4"), RoleHash("0be3fa77"), 90)
CANARY = PairRevision(RevisionName("b07d51ee"), RoleHash("91ab02c4"), RoleHash("77aa0c12"), 10)

# The example of docs/contracts.md.
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "number": 12,
    "servedModelName": "chat",
    "salt": "the uid of the SpeculativeDeployment",
    "revisions": [
        {
            "name": "6f2c9a41",
            "target": "91ab02c4",
            "draft": "0be3fa77",
            "weight": 90,
            "shadow": False,
            "speculate": True,
        },
        {
            "name": "b07d51ee",
            "target": "91ab02c4",
            "draft": "77aa0c12",
            "weight": 10,
            "shadow": False,
            "speculate": True,
        },
    ],
    "assignment": "Request",
    "speculation": {
        "state": "Active",
        "mode": "Auto",
        "verification": "Coupled",
        "minDraftTokens": 1,
        "maxDraftTokens": 8,
        "minGainBasisPoints": 100,
        "earlyStop": False,
    },
    "control": {"offPercent": 5, "slotSeconds": 20},
    "exactness": {"sampleBasisPoints": 250},
    "segments": [
        {"name": "greedy", "temperature": "Greedy"},
        {"name": "batch", "tenants": ["nightly", "reports"]},
    ],
}
POLICY = Policy(
    number=12,
    served_model_name="chat",
    salt="the uid of the SpeculativeDeployment",
    revisions=(STABLE, CANARY),
    assignment=Assignment.REQUEST,
    speculation=SpeculationPolicy(SpeculationState.ACTIVE, SpeculationMode.AUTO, VerificationChoice.COUPLED, 1, 8, 100),
    control=ControlPolicy(5, 20),
    exactness=ExactnessPolicy(250),
    segments=(Slice("greedy", Heat.GREEDY), Slice("batch", tenants=("nightly", "reports"))),
)


def changed(path: str, value: object) -> str:
    """The example with one field changed, as a document; `...` takes the field away."""
    document = json.loads(json.dumps(DOCUMENT))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder = document
    for part in parents:
        holder = holder[part]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return json.dumps(document)


def test_the_contracts_example_is_read_whole() -> None:
    assert parse_policy(json.dumps(DOCUMENT)) == POLICY


def test_names_of_adapters_mean_what_their_revision_says() -> None:
    document = json.loads(changed("revisions.0.adapters", [{"name": "legal", "digest": "sha256:one"}]))
    document["revisions"][1]["adapters"] = []
    first, second = parse_policy(json.dumps(document)).revisions
    assert (first.adapters, second.adapters) == ({"legal": "sha256:one"}, {})
    assert STABLE.adapters is None


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ({"legal": "sha256:one"}, "a list of objects is needed"),
        ([{"name": "legal"}], r"revisions\[0\].adapters\[0\].digest is None"),
        ([{"name": "a", "digest": "b"}] * 2, r"adapters\[\].name is \['a', 'a'\]; names that differ"),
    ],
)
def test_adapters_that_mean_nothing_are_refused(adapters: object, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        parse_policy(changed("revisions.0.adapters", adapters))


@pytest.mark.parametrize("path", ["tomorrow", "revisions.0.colours", "speculation.tree", "control.salt2"])
def test_a_field_of_a_newer_operator_is_passed_over(path: str) -> None:
    assert parse_policy(changed(path, {"any": "thing"})) == POLICY


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("speculation", replace(POLICY, speculation=SpeculationPolicy())),
        ("control", replace(POLICY, control=ControlPolicy())),
        ("exactness", replace(POLICY, exactness=ExactnessPolicy(100))),
        ("assignment", POLICY),
        ("segments", replace(POLICY, segments=())),
        ("revisions.0.speculate", POLICY),
        ("revisions.1.shadow", POLICY),
    ],
)
def test_what_is_left_out_has_its_default(path: str, expected: Policy) -> None:
    assert parse_policy(changed(path, ...)) == expected


def test_a_revision_may_have_lookups_beside_its_draft_or_alone() -> None:
    both = parse_policy(changed("revisions.0.lookups", ["Suffix"])).revisions[0]
    alone = replace(parse_policy(changed("revisions.0.lookups", ["NGram", "Suffix"])).revisions[0], draft=None)
    assert both.drafters == (Drafter.MODEL, Drafter.SUFFIX)
    assert alone.drafters == (Drafter.NGRAM, Drafter.SUFFIX)


SEGMENTS = [
    {"name": "greedy", "temperature": "Greedy"},
    {"name": "batch", "tenants": ["nightly", "reports"]},
    {"name": "hotBatch", "temperature": "Hot", "tenants": ["nightly"]},
    {"name": "legal", "adapter": "legal"},
]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (RequestKind(0.0, ""), ("greedy",)),
        (RequestKind(0.0, "reports"), ("greedy", "batch")),
        (RequestKind(1.2, "nightly"), ("batch", "hotBatch")),
        (RequestKind(1.1, "nightly"), ("batch",)),
        (RequestKind(1.2, "somebody"), ()),
        (RequestKind(0.0, "somebody", "legal"), ("greedy", "legal")),
        (RequestKind(1.2, "somebody", "support"), ()),
    ],
)
def test_a_request_is_of_every_segment_that_its_temperature_its_tenant_and_its_adapter_fit(
    kind: RequestKind, names: tuple[str, ...]
) -> None:
    assert parse_policy(changed("segments", SEGMENTS)).segments_of(kind) == names


def test_requests_of_a_plain_segment_do_not_speculate_and_the_others_do() -> None:
    policy = parse_policy(changed("speculation.plainSegments", [{"temperature": "Hot"}, {"tenants": ["audit"]}]))
    assert policy.speculation.plain == (Slice(heat=Heat.HOT), Slice(tenants=("audit",)))
    plain = [
        policy.is_plain(kind) for kind in (RequestKind(1.5, "a"), RequestKind(0.0, "audit"), RequestKind(0.0, "a"))
    ]
    assert plain == [True, True, False]
    allowed = [allowance(policy, STABLE, OwnWish(), has_draft=True, slot_on=True, plain=each) for each in plain]
    assert [each.withheld for each in allowed] == [Withheld.SEGMENT_OFF, Withheld.SEGMENT_OFF, None]


def test_a_pair_may_have_no_draft() -> None:
    for value in (None, ...):
        assert parse_policy(changed("revisions.0.draft", value)).revisions[0].draft is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("version", 2, "version"),
        ("version", "1", "version"),
        ("number", -1, "number"),
        ("number", ..., "number"),
        ("number", 1.5, "number"),
        ("number", True, "number"),
        ("servedModelName", "", "servedModelName"),
        ("servedModelName", "\ud800", "servedModelName"),
        ("salt", None, "salt"),
        ("revisions", [], "revisions"),
        ("revisions", {}, "revisions"),
        ("revisions.1", "b07d51ee", "revisions[1]"),
        ("revisions.1.name", "6f2c9a41", "revisions"),
        ("revisions.1.target", ..., "revisions[1].target"),
        ("revisions.1.draft", 7, "revisions[1].draft"),
        ("revisions.1.weight", 11, "revisions[].weight"),
        ("revisions.1.weight", 101, "revisions[1].weight"),
        ("revisions.1.shadow", True, "revisions[1].weight"),
        ("revisions.0.lookups", "Suffix", "revisions[0].lookups"),
        ("revisions.0.lookups", ["Model"], "revisions[0].lookups"),
        ("revisions.0.lookups", [["Suffix"]], "revisions[0].lookups"),
        ("revisions.0.lookups", ["Suffix", "Suffix"], "revisions[0].lookups"),
        ("revisions.1.speculate", "no", "revisions[1].speculate"),
        ("assignment", "Load", "assignment"),
        ("speculation", [], "speculation"),
        ("speculation.state", "Maybe", "speculation.state"),
        ("speculation.verification", "Lossy", "speculation.verification"),
        ("speculation.minDraftTokens", 9, "speculation.minDraftTokens"),
        ("speculation.maxDraftTokens", 65, "speculation.maxDraftTokens"),
        ("speculation.overlap", True, "speculation.overlap"),
        ("control.offPercent", 101, "control.offPercent"),
        ("control.slotSeconds", 0, "control.slotSeconds"),
        ("exactness.sampleBasisPoints", 10_001, "exactness.sampleBasisPoints"),
        ("segments", {}, "segments"),
        ("segments", [{"name": "a", "temperature": "Hot"}] * 17, "segments"),
        ("segments", [{"name": "a", "temperature": "Hot"}] * 2, "segments[].name"),
        ("segments", [{"temperature": "Hot"}], "segments[].name"),
        ("segments", ["hot"], "segments[0]"),
        ("segments", [{"name": "a"}], "segments[0]"),
        ("segments", [{"name": "a", "temperature": 0}], "segments[0].temperature"),
        ("segments", [{"name": "a", "tenants": "b"}], "segments[0].tenants"),
        ("speculation.plainSegments", [{"tenants": [""]}], "speculation.plainSegments[0].tenants"),
    ],
)
def test_a_wrong_field_is_refused_by_its_path(path: str, value: object, named: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        parse_policy(changed(path, value))
    assert str(caught.value).startswith(f"{named} ")


@pytest.mark.parametrize("document", ["", "{", "[]", "null", "12", pytest.param("[" * 100_000, id="nested too deep")])
def test_what_is_no_object_is_refused(document: str) -> None:
    with pytest.raises(PolicyRefused, match=r"^policy\.json "):
        parse_policy(document)


FREE = SpeculationPolicy(min_draft_tokens=2, max_draft_tokens=6, min_gain_basis_points=250)


@pytest.mark.parametrize(
    ("speculation", "speculate", "wish", "has_draft", "slot_on", "withheld"),
    [
        (FREE, True, OwnWish(), True, True, None),
        (FREE, True, OwnWish(), True, False, Withheld.OFF_SLOT),
        (FREE, True, OwnWish(), False, False, Withheld.NO_DRAFT),
        (FREE, True, OwnWish(off=True), False, False, Withheld.REQUEST_OFF),
        (FREE, False, OwnWish(off=True), False, False, Withheld.REVISION_OFF),
        (replace(FREE, mode=SpeculationMode.OFF), False, OwnWish(off=True), False, False, Withheld.MODE_OFF),
        (
            replace(FREE, mode=SpeculationMode.OFF, state=SpeculationState.OFF),
            False,
            OwnWish(off=True),
            False,
            False,
            Withheld.SWITCHED_OFF,
        ),
        (replace(FREE, state=SpeculationState.PROBING), True, OwnWish(), True, True, None),
        (replace(FREE, mode=SpeculationMode.ALWAYS), True, OwnWish(), True, False, Withheld.OFF_SLOT),
    ],
)
def test_the_first_no_is_the_reason(
    speculation: SpeculationPolicy,
    speculate: bool,
    wish: OwnWish,
    has_draft: bool,
    slot_on: bool,
    withheld: Withheld | None,
) -> None:
    policy = replace(POLICY, speculation=speculation)
    revision = replace(STABLE, speculate=speculate)
    allowed = allowance(policy, revision, wish, has_draft=has_draft, slot_on=slot_on)
    bounds = Bounds(2, 6, Mode.AUTO, 0.025, overlap=Overlap.AUTO)
    expected = Allowance(bounds) if withheld is None else Allowance(OFF, withheld)
    assert allowed == expected


@pytest.mark.parametrize(
    ("wish", "bounds"),
    [
        (OwnWish(max_draft_tokens=1), (1, 1)),
        (OwnWish(max_draft_tokens=4), (2, 4)),
        (OwnWish(max_draft_tokens=64), (2, 6)),
        (OwnWish(min_draft_tokens=1), (2, 6)),
        (OwnWish(min_draft_tokens=4), (4, 6)),
        (OwnWish(min_draft_tokens=9), (6, 6)),
        (OwnWish(min_draft_tokens=3, max_draft_tokens=5), (3, 5)),
    ],
)
def test_a_request_narrows_the_bounds_and_never_widens_them(wish: OwnWish, bounds: tuple[int, int]) -> None:
    policy = replace(POLICY, speculation=replace(FREE, mode=SpeculationMode.ALWAYS))
    allowed = allowance(policy, STABLE, wish, has_draft=True, slot_on=True)
    assert allowed == Allowance(Bounds(*bounds, Mode.ALWAYS, 0.025, overlap=Overlap.AUTO))


BOTH = (Verification.COUPLED, Verification.REJECTION)
DRAWN = (Verification.REJECTION, Verification.BLOCK)


@pytest.mark.parametrize(
    ("choice", "wish", "target", "draft", "chosen"),
    [
        ("Auto", None, BOTH, BOTH, "Coupled"),
        ("Rejection", None, BOTH, BOTH, "Rejection"),
        ("Rejection", "Coupled", BOTH, BOTH, "Coupled"),
        ("Coupled", None, BOTH, (Verification.REJECTION,), "Rejection"),
        ("Auto", None, (Verification.REJECTION,), None, "Rejection"),
        ("Auto", None, DRAWN, DRAWN, "Block"),
        ("Block", None, tuple(Verification), DRAWN, "Block"),
        ("Rejection", "Block", tuple(Verification), None, "Block"),
        ("Block", None, BOTH, BOTH, "Coupled"),
        ("Coupled", None, (Verification.REJECTION,), (Verification.COUPLED,), "Rejection"),
    ],
)
def test_verification_is_the_wish_then_the_policy_then_what_both_engines_can(
    choice: str,
    wish: str | None,
    target: tuple[Verification, ...],
    draft: tuple[Verification, ...] | None,
    chosen: str,
) -> None:
    policy = replace(POLICY, speculation=replace(FREE, verification=VerificationChoice(choice)))
    own = OwnWish(verification=None if wish is None else Verification(wish))
    assert choose_verification(policy, own, target, draft) == chosen


def test_a_request_steers_if_it_says_anything_about_speculation() -> None:
    assert not OwnWish().steers
    assert all(
        wish.steers
        for wish in (OwnWish(off=True), OwnWish(max_draft_tokens=8), OwnWish(verification=Verification.COUPLED))
    )


def test_a_policy_may_keep_the_draft_from_working_ahead() -> None:
    policy = parse_policy(changed("speculation.overlap", "Off"))
    assert policy.speculation == replace(POLICY.speculation, overlap=Overlap.OFF)


@pytest.mark.parametrize("early", [True, False])
def test_drafting_ends_early_only_where_the_policy_says_so(early: bool) -> None:
    document = {**DOCUMENT, "speculation": {**DOCUMENT["speculation"], "earlyStop": early}}
    policy = parse_policy(json.dumps(document))
    allowed = allowance(policy, policy.revisions[0], OwnWish(), has_draft=True, slot_on=True)
    assert allowed.bounds.early_stop is early
