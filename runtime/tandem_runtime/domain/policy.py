"""Knows what the operator may tell a gateway: the policy document of docs/contracts.md as frozen values.

Refuses to know where the document comes from, and which pods exist.

`parse_policy` is tolerant of fields it does not know (a newer operator may say more) and exact about those it does:
a wrong one raises PolicyRefused with its path, its value and what would be right, so that the last good policy stays
in force. `allowance` is the one place that says whether a round may speculate, and why not. The order of its reasons
is the order of who outranks whom: the deployment, the revision, the segment, the request, the time slot.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeAlias, TypeVar, cast

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.errors import PolicyRefused
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.segments import Heat, heat_of
from tandem_runtime.domain.tokens import Drafter, Verification

RevisionName = NewType("RevisionName", str)
RoleHash = NewType("RoleHash", str)
Fields: TypeAlias = Mapping[str, object]
Choice = TypeVar("Choice", bound=StrEnum)

SUPPORTED_VERSION = 1
WHOLE_PERCENT = 100
BASIS_POINTS = 10_000
LOOKUPS = (Drafter.NGRAM, Drafter.SUFFIX)
LONGEST_PROPOSAL = 64
"""No pair gains from more guesses a round; a larger number in a policy is a mistake."""
MOST_SLICES = 16
"""Segments of one list: each costs a gateway and the operator room in every stratum."""


class Assignment(StrEnum):
    """What is hashed to choose a revision; also the unit of evidence."""

    REQUEST = "Request"
    SESSION = "Session"


class SpeculationState(StrEnum):
    """What the operator's breaker says."""

    ACTIVE = "Active"
    OFF = "Off"
    PROBING = "Probing"


class SpeculationMode(StrEnum):
    """What the user asked for: K by the controller (0 included), always K >= 1, or never."""

    AUTO = "Auto"
    ALWAYS = "Always"
    OFF = "Off"


class VerificationChoice(StrEnum):
    """Auto takes the best that both engines can."""

    AUTO = "Auto"
    COUPLED = "Coupled"
    BLOCK = "Block"
    REJECTION = "Rejection"


@dataclass(frozen=True, slots=True)
class PairRevision:
    """One revision as traffic sees it. `draft` is a draft model's, absent without one; `weight` is in whole percent."""

    name: RevisionName
    target: RoleHash
    draft: RoleHash | None
    weight: int
    shadow: bool = False
    speculate: bool = True
    lookups: tuple[Drafter, ...] = ()
    """Drafters without a model that may propose, beside the draft where there is one."""
    adapters: Mapping[str, AdapterDigest] | None = field(default=None, hash=False)
    """What its requests mean by the names of adapters; absent: what each target that they may go to has loaded."""

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """All that may propose."""
        return self.lookups if self.draft is None else (Drafter.MODEL, *self.lookups)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """What tells requests apart before they are served. `tenant` is empty where no keys are asked for, `adapter` where
    the model alone is asked for, else the name behind the colon."""

    temperature: float = 1.0
    tenant: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Slice:
    """A segment of the traffic as a user draws it: by how hot the sampling is, who asks, which adapter. Absent means
    any."""

    name: str = ""
    heat: Heat | None = None
    tenants: tuple[str, ...] = ()
    adapter: str | None = None

    def holds(self, kind: RequestKind) -> bool:
        """Greedy requests of tenants a and b: temperature 0 of a is one, .7 of a and 0 of c are none."""
        is_as_hot = self.heat is None or self.heat is heat_of(kind.temperature)
        is_with_it = self.adapter in (None, kind.adapter)
        return is_as_hot and is_with_it and (not self.tenants or kind.tenant in self.tenants)


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    state: SpeculationState = SpeculationState.ACTIVE
    mode: SpeculationMode = SpeculationMode.AUTO
    verification: VerificationChoice = VerificationChoice.AUTO
    min_draft_tokens: int = 1
    max_draft_tokens: int = 8
    min_gain_basis_points: int = 100
    early_stop: bool = False
    overlap: Overlap = Overlap.AUTO
    plain: tuple[Slice, ...] = ()
    """Requests that decode plainly, whatever the rest does."""


@dataclass(frozen=True, slots=True)
class ControlPolicy:
    """The switchback: `off_percent` of a target pod's time slots run with K = 0."""

    off_percent: int = 5
    slot_seconds: int = 20


@dataclass(frozen=True, slots=True)
class ExactnessPolicy:
    """`sample_basis_points` of the finished answers are replayed with speculation off and compared."""

    sample_basis_points: int = 100


@dataclass(frozen=True, slots=True)
class Policy:
    number: int
    served_model_name: str
    salt: str
    revisions: tuple[PairRevision, ...]
    assignment: Assignment = Assignment.REQUEST
    speculation: SpeculationPolicy = SpeculationPolicy()
    control: ControlPolicy = ControlPolicy()
    exactness: ExactnessPolicy = ExactnessPolicy()
    segments: tuple[Slice, ...] = ()
    """Those that evidence is counted for, apart from the whole."""

    def segments_of(self, kind: RequestKind) -> tuple[str, ...]:
        """The names of the segments that hold such a request."""
        return tuple(each.name for each in self.segments if each.holds(kind))

    def is_plain(self, kind: RequestKind) -> bool:
        """Whether such a request decodes plainly."""
        return any(each.holds(kind) for each in self.speculation.plain)


def parse_policy(document: str) -> Policy:
    """Read `policy.json`. Raises PolicyRefused."""
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError) as error:  # a document nested beyond reason must not end who follows it
        raise PolicyRefused(f"policy.json is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise PolicyRefused(f"policy.json holds {type(fields).__name__}; an object is needed")
    version = _whole(fields, "version", low=1)
    if version != SUPPORTED_VERSION:
        raise PolicyRefused(
            f"version is {version}; this gateway reads version {SUPPORTED_VERSION}: upgrade the gateway"
        )
    return Policy(
        number=_whole(fields, "number", low=0),
        served_model_name=_text(fields, "servedModelName"),
        salt=_text(fields, "salt"),
        revisions=_revisions(fields),
        assignment=_enum(Assignment, fields, "assignment", default=Assignment.REQUEST),
        speculation=_speculation(_object(fields, "speculation")),
        control=_control(_object(fields, "control")),
        exactness=_exactness(_object(fields, "exactness")),
        segments=_segments(fields),
    )


def _revisions(fields: Fields) -> tuple[PairRevision, ...]:
    items = fields.get("revisions")
    if not isinstance(items, list) or not items:
        raise _wrong("revisions", items, "a list of at least one revision")
    revisions = tuple(_revision(item, f"revisions[{index}].") for index, item in enumerate(items))
    if len({revision.name for revision in revisions}) < len(revisions):
        raise _wrong("revisions", [revision.name for revision in revisions], "names that differ")
    total = sum(revision.weight for revision in revisions)
    if total != WHOLE_PERCENT:
        raise _wrong("revisions[].weight", f"a sum of {total}", "weights that add up to 100")
    return revisions


def _revision(item: object, path: str) -> PairRevision:
    if not isinstance(item, dict):
        raise _wrong(path.removesuffix("."), item, "an object")
    draft = None if item.get("draft") is None else _text(item, "draft", path)
    revision = PairRevision(
        name=RevisionName(_text(item, "name", path)),
        target=RoleHash(_text(item, "target", path)),
        draft=None if draft is None else RoleHash(draft),
        weight=_whole(item, "weight", path, high=WHOLE_PERCENT),
        shadow=_flag(item, "shadow", path, default=False),
        speculate=_flag(item, "speculate", path, default=True),
        lookups=_lookups(item, path),
        adapters=_adapters(item, path) if "adapters" in item else None,
    )
    if revision.shadow and revision.weight:
        raise _wrong(f"{path}weight", revision.weight, "0 for a revision in shadow")
    return revision


def _lookups(item: Fields, path: str) -> tuple[Drafter, ...]:
    names = item.get("lookups", [])
    known = {drafter.value: drafter for drafter in LOOKUPS}
    if not isinstance(names, list) or [name for name in known if name in names] != sorted(names, key=str):
        raise _wrong(f"{path}lookups", names, f"a list of {' and '.join(known)}, each once at most,")
    return tuple(known[name] for name in names)


def _adapters(item: Fields, path: str) -> Mapping[str, AdapterDigest]:
    items = item["adapters"]
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise _wrong(f"{path}adapters", items, "a list of objects")
    found = {}
    for index, each in enumerate(items):
        place = f"{path}adapters[{index}]."
        found[_text(each, "name", place)] = AdapterDigest(_text(each, "digest", place))
    if len(found) < len(items):
        raise _wrong(f"{path}adapters[].name", [each["name"] for each in items], "names that differ")
    return found


def lookup_role(drafter: Drafter) -> RoleHash:
    """Under which a lookup stands among the drafts of a gateway: every gateway has it in itself."""
    return RoleHash(f"lookup:{drafter.value}")


def _speculation(fields: Fields) -> SpeculationPolicy:
    path, default = "speculation.", SpeculationPolicy()
    policy = SpeculationPolicy(
        state=_enum(SpeculationState, fields, "state", path, default=default.state),
        mode=_enum(SpeculationMode, fields, "mode", path, default=default.mode),
        verification=_enum(VerificationChoice, fields, "verification", path, default=default.verification),
        min_draft_tokens=_whole(
            fields, "minDraftTokens", path, high=LONGEST_PROPOSAL, default=default.min_draft_tokens
        ),
        max_draft_tokens=_whole(
            fields, "maxDraftTokens", path, high=LONGEST_PROPOSAL, default=default.max_draft_tokens
        ),
        min_gain_basis_points=_whole(fields, "minGainBasisPoints", path, default=default.min_gain_basis_points),
        early_stop=_flag(fields, "earlyStop", path, default=default.early_stop),
        overlap=_enum(Overlap, fields, "overlap", path, default=default.overlap),
        plain=_slices(fields, "plainSegments", path),
    )
    if policy.min_draft_tokens > policy.max_draft_tokens:
        raise _wrong("speculation.minDraftTokens", policy.min_draft_tokens, f"at most {policy.max_draft_tokens}")
    return policy


def _control(fields: Fields) -> ControlPolicy:
    path, default = "control.", ControlPolicy()
    return ControlPolicy(
        off_percent=_whole(fields, "offPercent", path, high=WHOLE_PERCENT, default=default.off_percent),
        slot_seconds=_whole(fields, "slotSeconds", path, low=1, default=default.slot_seconds),
    )


def _exactness(fields: Fields) -> ExactnessPolicy:
    default = ExactnessPolicy().sample_basis_points
    return ExactnessPolicy(_whole(fields, "sampleBasisPoints", "exactness.", high=BASIS_POINTS, default=default))


def _segments(fields: Fields) -> tuple[Slice, ...]:
    segments = _slices(fields, "segments")
    names = [segment.name for segment in segments]
    if "" in names or len(set(names)) < len(names):
        raise _wrong("segments[].name", names, "a name for each, no two alike,")
    return segments


def _slices(fields: Fields, name: str, path: str = "") -> tuple[Slice, ...]:
    items = fields.get(name, [])
    if not isinstance(items, list) or len(items) > MOST_SLICES:
        raise _wrong(path + name, items, f"a list of at most {MOST_SLICES} segments")
    return tuple(_slice(item, f"{path}{name}[{index}].") for index, item in enumerate(items))


def _slice(item: object, path: str) -> Slice:
    if not isinstance(item, dict):
        raise _wrong(path.removesuffix("."), item, "an object")
    tenants = item.get("tenants", [])
    if not isinstance(tenants, list) or not all(isinstance(tenant, str) and tenant for tenant in tenants):
        raise _wrong(f"{path}tenants", tenants, "a list of names")
    name = _text(item, "name", path) if "name" in item else ""
    heat = _enum(Heat, item, "temperature", path, default=Heat.WARM) if "temperature" in item else None
    adapter = _text(item, "adapter", path) if "adapter" in item else None
    if heat is None and not tenants and adapter is None:
        raise _wrong(path.removesuffix("."), item, "a temperature, tenants, or an adapter,")
    return Slice(name, heat, tuple(tenants), adapter)


def _object(fields: Fields, name: str) -> Fields:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return cast(Fields, value)


def _text(fields: Fields, name: str, path: str = "") -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise _wrong(path + name, value, "a text of one or more printable characters")
    return value


def _flag(fields: Fields, name: str, path: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise _wrong(path + name, value, "true or false")
    return value


def _whole(
    fields: Fields, name: str, path: str = "", *, low: int = 0, high: int = 2**63 - 1, default: int | None = None
) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(path + name, value, f"a whole number from {low} to {high}")
    return value


def _enum(kind: type[Choice], fields: Fields, name: str, path: str = "", *, default: Choice) -> Choice:
    value = fields.get(name, default.value)
    for member in kind:
        if member.value == value:
            return member
    raise _wrong(path + name, value, f"one of {', '.join(member.value for member in kind)}")


def _wrong(path: str, value: object, right: str) -> PolicyRefused:
    return PolicyRefused(f"{path} is {value!r}; {right} is needed")


class Withheld(StrEnum):
    """Why a round runs with K = 0."""

    SWITCHED_OFF = "SwitchedOff"
    MODE_OFF = "ModeOff"
    REVISION_OFF = "RevisionOff"
    SEGMENT_OFF = "SegmentOff"
    REQUEST_OFF = "RequestOff"
    NO_DRAFT = "NoDraft"
    OFF_SLOT = "OffSlot"


@dataclass(frozen=True, slots=True)
class OwnWish:
    """What one request says about its own speculation; absent means as the policy says."""

    off: bool = False
    min_draft_tokens: int | None = None
    max_draft_tokens: int | None = None
    verification: Verification | None = None
    predicts: bool = False
    """It brings a prediction of its output, which may propose beside the revision's drafters."""

    @property
    def steers(self) -> bool:
        """Whether this request differs from ordinary traffic, so that it proves nothing about the deployment."""
        return self != OwnWish()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the next round may propose; `withheld` says why nothing, and is absent where something may be."""

    bounds: Bounds
    withheld: Withheld | None = None


def allowance(
    policy: Policy, revision: PairRevision, wish: OwnWish, *, has_draft: bool, slot_on: bool, plain: bool = False
) -> Allowance:
    """Whether the next round may speculate: state x mode x revision x segment x request x draft x slot, the first `no`
    named. `plain`: the request is of a segment that decodes plainly."""
    speculation = policy.speculation
    checks = (
        (speculation.state is SpeculationState.OFF, Withheld.SWITCHED_OFF),
        (speculation.mode is SpeculationMode.OFF, Withheld.MODE_OFF),
        (not revision.speculate, Withheld.REVISION_OFF),
        (plain, Withheld.SEGMENT_OFF),
        (wish.off, Withheld.REQUEST_OFF),
        (not has_draft, Withheld.NO_DRAFT),
        (not slot_on, Withheld.OFF_SLOT),
    )
    for forbids, reason in checks:
        if forbids:
            return Allowance(OFF, reason)
    return Allowance(_bounds(speculation, wish))


def _bounds(speculation: SpeculationPolicy, wish: OwnWish) -> Bounds:
    """The policy's bounds, narrowed by the request and never widened.

    Bounds 2 to 6 with a wish for at most 1 give 1 to 1; with a wish for at least 9 they give 6 to 6.
    """
    most, least = speculation.max_draft_tokens, speculation.min_draft_tokens
    if wish.max_draft_tokens is not None:
        most = min(most, wish.max_draft_tokens)
    if wish.min_draft_tokens is not None:
        least = max(least, wish.min_draft_tokens)
    mode = Mode.ALWAYS if speculation.mode is SpeculationMode.ALWAYS else Mode.AUTO
    min_gain = speculation.min_gain_basis_points / BASIS_POINTS
    return Bounds(min(least, most), most, mode, min_gain, speculation.early_stop, speculation.overlap)


def choose_verification(
    policy: Policy, wish: OwnWish, target: tuple[Verification, ...], draft: tuple[Verification, ...] | None
) -> Verification:
    """The request's wish, else the policy's, else the first of coupled, block and rejection that both engines can.

    What the engines cannot do is never asked of them: the next best that they can is taken, and the reply names it.
    """
    able = [mode for mode in Verification if mode in target and (draft is None or mode in draft)]
    wanted = wish.verification or _fixed(policy.speculation.verification)
    if wanted in able:
        return wanted
    return able[0] if able else target[0]


def _fixed(choice: VerificationChoice) -> Verification | None:
    return None if choice is VerificationChoice.AUTO else Verification(choice.value)
