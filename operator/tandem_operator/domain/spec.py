"""Knows the fields of a SpeculativeDeployment's `spec` as frozen types, with the defaults that the CRD gives them.

Knows nothing of YAML, of Kubernetes clients or of what the operator does with a field. The CRD (`crds/`) is the
only source of shape, bounds and documentation; an agreement test holds names, types and defaults here equal to it.
Reading is tolerant (`fields`). Conventions: rates are integer basis points (10000 = 1.0), times are whole seconds, None
is an absent value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem_operator.domain import fields, lora
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.lora import Adapter
from tandem_operator.domain.quantity import Quantity

JsonObject = Mapping[str, object]

LARGEST_OVERLAY_BYTES = 16_384


class Engine(StrEnum):
    """What runs a model; `Torch` is the bundled engine."""

    TORCH = "Torch"


class DraftMethod(StrEnum):
    """Where proposals come from: pods of a model, a lookup within each gateway, or nowhere."""

    MODEL = "Model"
    NGRAM = "NGram"
    SUFFIX = "Suffix"
    NONE = "None"

    @property
    def looks_up(self) -> bool:
        """Whether every gateway proposes by itself."""
        return self in (DraftMethod.NGRAM, DraftMethod.SUFFIX)


class SpeculationMode(StrEnum):
    """`AUTO` speculates while it pays, `ALWAYS` whenever a draft answers, `OFF` never."""

    AUTO = "Auto"
    ALWAYS = "Always"
    OFF = "Off"


class Verification(StrEnum):
    """How proposals are verified; `AUTO` takes the best that engine and draft can."""

    AUTO = "Auto"
    COUPLED = "Coupled"
    BLOCK = "Block"
    REJECTION = "Rejection"


class OnInconclusive(StrEnum):
    """What a step does when its evidence decides nothing: wait for the deadline, or abort after `holdSeconds`."""

    HOLD = "Hold"
    ABORT = "Abort"


class SurgeMode(StrEnum):
    """How a new revision's pods come up: beside stable's, or in their place."""

    AUTO = "Auto"
    SIDE_BY_SIDE = "SideBySide"
    SHARED_TARGET = "SharedTarget"
    IN_PLACE_DRAFT = "InPlaceDraft"
    RECREATE = "Recreate"


class Temperature(StrEnum):
    """How hot a request's sampling is: 0; up to .6; up to 1.1; above."""

    GREEDY = "Greedy"
    COOL = "Cool"
    WARM = "Warm"
    HOT = "Hot"


class Comparison(StrEnum):
    """How a metric's value must lie to its threshold."""

    LESS_THAN = "LessThan"
    GREATER_THAN = "GreaterThan"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights and tokenizer: `hf://owner/name` pinned by the commit `revision`, or `file:///path` in the pods."""

    uri: str
    revision: str | None = None
    digest: str | None = None
    secret_ref: SecretRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which nodes; `accelerator` is a key of the operator's accelerator table, `count` the devices of one replica."""

    accelerator: str | None = None
    count: int = 1
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[JsonObject, ...] = ()
    affinity: JsonObject = field(default_factory=dict)
    priority_class_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    requests: Mapping[str, Quantity] = field(default_factory=dict)
    limits: Mapping[str, Quantity] = field(default_factory=dict)


DEFAULT_CACHE_SIZE = Quantity("200Gi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Room for fetched weights on the node, in an emptyDir."""

    size_limit: Quantity = DEFAULT_CACHE_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    model: Model
    engine: Engine = Engine.TORCH
    engine_args: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    replicas: int = 1
    placement: Placement = field(default_factory=Placement)
    resources: Resources = field(default_factory=Resources)
    cache: Cache = field(default_factory=Cache)
    startup_deadline_seconds: int = 3600
    termination_grace_seconds: int = 120
    adapters_folder: str | None = None
    max_adapters: int | None = None
    pod_template: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasPerTarget:
    """So many draft pods for so many target pods; both 0: `replicas` says how many drafts there are."""

    drafts: int = 0
    targets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """`model` is there exactly when `method` is `MODEL`: the others have no pods."""

    method: DraftMethod = DraftMethod.MODEL
    model: Model | None = None
    engine: Engine = Engine.TORCH
    engine_args: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    replicas: int = 1
    replicas_per_target: ReplicasPerTarget = field(default_factory=ReplicasPerTarget)
    placement: Placement = field(default_factory=Placement)
    resources: Resources = field(default_factory=Resources)
    pod_template: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayService:
    type: str = "ClusterIP"
    port: int = 8000
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    replicas: int = 2
    resources: Resources = field(default_factory=Resources)
    service: GatewayService = field(default_factory=GatewayService)
    auth_secret_ref: SecretRef | None = None
    pod_template: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How the pods of all roles speak to each other; without a Secret in clear."""

    tls_secret_ref: SecretRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTokens:
    """Bounds of K, the tokens proposed in one round."""

    min: int = 1
    max: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The share of a target pod's time in which it does not speculate, so that the gain is measured and not assumed."""

    percent: int = 5
    canary_percent: int = 20
    slot_seconds: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSegment:
    """Requests that decode plainly: of this temperature, these tenants and this adapter; what is absent means any."""

    temperature: Temperature | None = None
    tenants: tuple[str, ...] = ()
    adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    mode: SpeculationMode = SpeculationMode.AUTO
    verification: Verification = Verification.AUTO
    draft_tokens: DraftTokens = field(default_factory=DraftTokens)
    min_gain_basis_points: int = 100
    control: Control = field(default_factory=Control)
    plain_segments: tuple[PlainSegment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStep:
    """`hold_seconds` is a minimum; `shadow` serves nobody; `pause` waits for the command `promote`."""

    percent: int
    hold_seconds: int = 300
    shadow: bool = False
    pause: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceGate:
    """Floor and largest drop against stable, of conditional acceptance."""

    min_basis_points: int = 5000
    max_drop_basis_points: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupGate:
    """Floor against the off slots and largest drop against stable, of the speed-up (10000: as fast as without)."""

    min_basis_points: int = 10300
    max_drop_basis_points: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsGate:
    max_increase_basis_points: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenGate:
    """Largest rise of the share of requests that wait longer for their first token than nine in ten of stable's."""

    max_slow_share_increase_basis_points: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenGate:
    """By how much the 99th percentile of what 32 tokens take may rise against stable's; None: nobody asks."""

    max_p99_increase_basis_points: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGate:
    """A segment of the traffic in which a canary's acceptance is judged apart; what is absent means any."""

    name: str
    temperature: Temperature | None = None
    tenants: tuple[str, ...] = ()
    adapter: str | None = None
    max_drop_basis_points: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Which share of the answers gateways replay with speculation off and compare."""

    sample_basis_points: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricCheck:
    """A check of the user's own: the one number that `query` gives in Prometheus, held against the threshold."""

    name: str
    query: str
    operator: Comparison = Comparison.LESS_THAN
    threshold_basis_points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    interval_seconds: int = 30
    min_requests: int = 100
    min_slots: int = 8
    confidence_basis_points: int = 9500
    acceptance: AcceptanceGate = field(default_factory=AcceptanceGate)
    speedup: SpeedupGate = field(default_factory=SpeedupGate)
    errors: ErrorsGate = field(default_factory=ErrorsGate)
    time_to_first_token: FirstTokenGate = field(default_factory=FirstTokenGate)
    inter_token_latency: InterTokenGate = field(default_factory=InterTokenGate)
    exactness: Exactness = field(default_factory=Exactness)
    segments: tuple[SegmentGate, ...] = ()
    metrics: tuple[MetricCheck, ...] = ()
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD


DEFAULT_STEPS = (
    CanaryStep(percent=0, shadow=True, hold_seconds=120),
    CanaryStep(percent=10, hold_seconds=300),
    CanaryStep(percent=25, hold_seconds=300),
    CanaryStep(percent=50, hold_seconds=600),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    surge: SurgeMode = SurgeMode.AUTO
    steps: tuple[CanaryStep, ...] = DEFAULT_STEPS
    analysis: Analysis = field(default_factory=Analysis)
    capacity_wait_seconds: int = 600
    progress_deadline_seconds: int = 14400
    rollback_window_seconds: int = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceMarks:
    disable_below_basis_points: int = 3000
    enable_above_basis_points: int = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupMarks:
    disable_below_basis_points: int = 9900
    enable_above_basis_points: int = 10300


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMarks:
    disable_above_basis_points: int = 9200
    enable_below_basis_points: int = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoDisable:
    """When speculation switches itself off for the whole object, and when it comes back."""

    window_seconds: int = 300
    min_requests: int = 50
    acceptance: AcceptanceMarks = field(default_factory=AcceptanceMarks)
    speedup: SpeedupMarks = field(default_factory=SpeedupMarks)
    memory: MemoryMarks = field(default_factory=MemoryMarks)
    draft_unavailable_seconds: int = 15
    cooldown_seconds: int = 600
    max_flips_per_day: int = 6
    release_draft_after_seconds: int = 3600


DEFAULT_ALERTS = ("TandemHighErrorRate", "TandemSpeculationSlower")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSelector:
    """An alert is meant if its name is in `names`, or if `match_labels` is not empty and all of it matches."""

    names: tuple[str, ...] = DEFAULT_ALERTS
    match_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWarm:
    """So many pods of each role that the previous revision has for itself, for so long after a promotion."""

    replicas: int = 1
    seconds: int = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    on_alerts: AlertSelector = field(default_factory=AlertSelector)
    window_seconds: int = 86400
    keep_warm: KeepWarm = field(default_factory=KeepWarm)
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The whole of `spec`; `served_model_name` None means the object's name."""

    target: Target
    draft: Draft
    served_model_name: str | None = None
    paused: bool = False
    adapters: tuple[Adapter, ...] = ()
    gateway: Gateway = field(default_factory=Gateway)
    transport: Transport = field(default_factory=Transport)
    speculation: Speculation = field(default_factory=Speculation)
    canary: Canary = field(default_factory=Canary)
    auto_disable: AutoDisable = field(default_factory=AutoDisable)
    rollback: Rollback = field(default_factory=Rollback)
    progress_deadline_seconds: int = 7200
    revision_history_limit: int = 10

    @property
    def draft_replicas(self) -> int:
        """Draft pods of one revision; 1 for every 2 of 5 target pods are 3."""
        tied = self.draft.replicas_per_target
        if not tied.drafts or not tied.targets:
            return self.draft.replicas
        return math.ceil(self.target.replicas * tied.drafts / tied.targets)


def parse(raw: Mapping[str, object]) -> Spec:
    """Reads the value of an object's `spec`; raises SpecError with the field's path, and nothing else.

    parse({"target": {"model": {"uri": "file:///m"}}, "draft": {"method": "None"}}).target.replicas == 1
    """
    spec: Spec = fields.read(Spec, raw, "spec")
    _demand_a_draft_model(spec.draft)
    lora.refuse(spec.adapters, spec.target.adapters_folder)
    _demand_small_overlays(spec)
    return spec


def _demand_small_overlays(spec: Spec) -> None:
    """The CRD cannot bound a free-form field, and an object that outgrows its storage could not be written at all."""
    free_forms = {
        "spec.target.podTemplate": spec.target.pod_template,
        "spec.target.placement.affinity": spec.target.placement.affinity,
        "spec.draft.podTemplate": spec.draft.pod_template,
        "spec.draft.placement.affinity": spec.draft.placement.affinity,
        "spec.gateway.podTemplate": spec.gateway.pod_template,
    }
    for path, value in free_forms.items():
        size = len(json.dumps(value).encode())
        if size > LARGEST_OVERLAY_BYTES:
            raise SpecError(path, f"{size} bytes", f"must be at most {LARGEST_OVERLAY_BYTES} bytes as JSON")


def _demand_a_draft_model(draft: Draft) -> None:
    if draft.method is DraftMethod.MODEL and draft.model is None:
        raise SpecError("spec.draft.model", None, "method Model needs a model; or set method: None for a target alone")
