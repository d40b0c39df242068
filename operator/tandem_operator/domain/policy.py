"""Knows the document that gateways act on: weights, pairs, speculation, control; numbered, the last ten kept.

Refuses to know how shares and states were decided. Equal content keeps its number, so that writing the same policy
again changes nothing and a stratum (one number) means one set of shares.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_operator.domain.decision import JsonObject, Share
from tandem_operator.domain.nested import items
from tandem_operator.domain.progress import SpeculationState
from tandem_operator.domain.revision import Revision
from tandem_operator.domain.spec import (
    PlainSegment,
    SegmentGate,
    Spec,
    Speculation,
    SpeculationMode,
    Verification,
)

VERSION = 1
KEPT = 10
PLAIN = "plainSegments"
PROBING_OFF_PERCENT = 80
"""While the breaker probes, one slot in five speculates."""

STATES: Mapping[SpeculationState, str] = {
    SpeculationState.ACTIVE: "Active",
    SpeculationState.PROBING: "Probing",
    SpeculationState.DISABLED: "Off",
    SpeculationState.OFF: "Off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a policy is made from: `name` and `salt` are the object's name and uid, `state` what gateways are told.

    `lookups` are the drafters without a model, of the revisions that have one; `adapters` what names of adapters mean,
    of the revisions that have any; `retired` are those that get nobody any more.
    """

    spec: Spec
    name: str
    salt: str
    shares: Sequence[Share]
    pairs: Mapping[str, Revision]
    lookups: Mapping[str, str] = field(default_factory=dict)
    adapters: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    retired: Collection[str] = ()
    state: SpeculationState
    on_trial: bool


def build(terms: Terms, kept: Sequence[JsonObject], *, number: int) -> dict[str, object]:
    """The policy for these terms: the newest kept one where nothing differs, else a new one with this number."""
    content = _content(terms)
    if kept and {**content, "number": kept[0].get("number")} == kept[0]:
        return dict(kept[0])
    return {**content, "number": number}


def keep(policy: JsonObject, kept: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """The last ten policies, newest first."""
    if kept and kept[0] == policy:
        return tuple(kept)
    return (policy, *kept)[:KEPT]


def _content(terms: Terms) -> dict[str, object]:
    speculation = terms.spec.speculation
    heard = (share.revision for share in terms.shares if share.weight or share.revision not in terms.retired)
    targets = {terms.pairs[name].target for name in heard}
    return {
        "version": VERSION,
        "servedModelName": terms.spec.served_model_name or terms.name,
        "salt": terms.salt,
        "revisions": [_revision(share, terms) for share in terms.shares],
        "assignment": "Request" if len(targets) == 1 else "Session",
        "speculation": {
            "state": STATES[terms.state],
            "mode": str(speculation.mode),
            "verification": str(_verification(speculation.verification)),
            "minDraftTokens": speculation.draft_tokens.min,
            "maxDraftTokens": speculation.draft_tokens.max,
            "minGainBasisPoints": speculation.min_gain_basis_points,
            **_listed(PLAIN, [_segment(each) for each in speculation.plain_segments]),
        },
        "control": {"offPercent": _off_percent(terms), "slotSeconds": speculation.control.slot_seconds},
        "exactness": {"sampleBasisPoints": terms.spec.canary.analysis.exactness.sample_basis_points},
        **_listed("segments", [{"name": each.name, **_segment(each)} for each in terms.spec.canary.analysis.segments]),
    }


def same_requests_speculate(kept: JsonObject, speculation: Speculation) -> bool:
    """Whether a kept policy has the plain segments of these settings."""
    return list(items(kept, "speculation", PLAIN)) == [_segment(each) for each in speculation.plain_segments]


def _listed(name: str, found: Sequence[object]) -> dict[str, object]:
    """Absent where there is nothing, so that a policy is the same as before there were any."""
    return {name: found} if found else {}


def _segment(drawn: PlainSegment | SegmentGate) -> dict[str, object]:
    heat = {} if drawn.temperature is None else {"temperature": str(drawn.temperature)}
    adapter = {} if drawn.adapter is None else {"adapter": drawn.adapter}
    return {**heat, **_listed("tenants", list(drawn.tenants)), **adapter}


def _revision(share: Share, terms: Terms) -> dict[str, object]:
    pair, lookup = terms.pairs[share.revision], terms.lookups.get(share.revision)
    return {
        "name": share.revision,
        "target": pair.target,
        "draft": pair.draft,
        "weight": share.weight,
        "shadow": share.shadow,
        "speculate": share.speculate,
        **_listed("lookups", [] if lookup is None else [lookup]),
        **({"adapters": list(terms.adapters[share.revision])} if share.revision in terms.adapters else {}),
    }


def _verification(asked: Verification) -> Verification:
    """The bundled engine couples, which keeps text independent of the draft at every temperature."""
    return Verification.COUPLED if asked is Verification.AUTO else asked


def _off_percent(terms: Terms) -> int:
    control = terms.spec.speculation.control
    if terms.spec.speculation.mode is SpeculationMode.OFF or terms.state is SpeculationState.OFF:
        return control.percent
    if terms.state is SpeculationState.PROBING:
        return PROBING_OFF_PERCENT
    return control.canary_percent if terms.on_trial else control.percent
