"""Knows the shape of a decision: everything that follows from one look, as values.

Refuses to know how it is reached (`decide`) and what it costs in writes (`plan`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tandem_operator.domain.progress import Progress
from tandem_operator.domain.revision import Edition, Role, RoleHash
from tandem_operator.domain.spec import Spec

JsonObject = Mapping[str, object]


class CheckVerdict(StrEnum):
    """What a check says, worst first: the worst of all checks decides.

    NOT_COMPARED counts neither for nor against: there is nothing to compare with, and its message says what decides.
    """

    FAIL = "Fail"
    PROVIDER_ERROR = "ProviderError"
    NO_DATA = "NoData"
    INCONCLUSIVE = "Inconclusive"
    PASS = "Pass"  # noqa: S105 - a verdict
    NOT_COMPARED = "NotCompared"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One rule and its numbers, as status shows them: decimals are text, "" where there is no number yet.

    `segment` is the one of which it speaks, None where it speaks of all.
    """

    name: str
    verdict: CheckVerdict
    value: str = ""
    low: str = ""
    high: str = ""
    threshold: str = ""
    samples: str = ""
    message: str = ""
    segment: str | None = None

    @property
    def title(self) -> str:
        """Its name, and of which segment it speaks."""
        return self.name if self.segment is None else f"{self.name} ({self.segment})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one revision gets of the traffic: whole percents that add up to 100 over all shares."""

    revision: str
    weight: int
    shadow: bool = False
    speculate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsWanted:
    """How many pods a role hash needs, and whose rendered template makes them. Hashes not named are not needed."""

    role: Role
    role_hash: RoleHash
    replicas: int
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a target pod is told of one adapter's content: to load it from `source`, or, without, to let it go."""

    pod: str
    uid: str
    content: str
    source: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionWanted:
    """The revision that the spec means and that is not stored yet; `edition` where any role is not in its first."""

    name: str
    number: int
    edition: Edition | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Annotations to write on the ControllerRevision of a revision."""

    revision: str
    annotations: Mapping[str, str]
    why: str


class Weight(StrEnum):
    """How loud an event is, in Kubernetes' words."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """One event on the resource: a reason from a short list, and a note with the numbers. `cause` is what led to it
    where that is of a short list too, such as the check that failed; it is counted, and the note tells it."""

    weight: Weight
    reason: str
    note: str
    cause: str = ""


class GateVerdict(StrEnum):
    """What is known before any traffic."""

    OPEN = "True"
    CLOSED = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class GateResult:
    """A condition's status, reason and message in one."""

    verdict: GateVerdict
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Live figures of one revision over the last minutes, as ratios; None where there is no evidence."""

    acceptance: float | None = None
    accepted_of_proposed: float | None = None
    mean_accepted_length: float | None = None
    speedup: float | None = None
    acceptance_error: float = 0.0
    speedup_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Complete: the same look gives the same decision, and nothing else is needed to plan and to report.

    `hold` leaves all children as they are: the spec cannot be read (`spec` is None and `refusal` names the field),
    or the record of what serves is lost. `refusal` with a spec: its revision cannot be made, and what serves goes on.
    `current` is the revision that the spec means. `policy` is the whole document for the gateways, None until there is
    something to serve. `figures` are shown where `show_figures` says that they moved enough. `evidence` is the
    document to save before anything else, None when it has not changed. `loads` and `adapters` are what pods are told
    of adapters and how far they are, None where no revision in use has any.
    """

    spec: Spec | None
    refusal: str | None
    current: str
    stable: str
    previous: str
    progress: Progress
    hold: bool = False
    shares: tuple[Share, ...] = ()
    pods: tuple[PodsWanted, ...] = ()
    new_revision: RevisionWanted | None = None
    forgotten: tuple[str, ...] = ()
    policy: JsonObject | None = None
    kept_policies: tuple[JsonObject, ...] = ()
    evidence: JsonObject | None = None
    loads: tuple[Load, ...] | None = None
    adapters: GateResult | None = None
    marks: tuple[Mark, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    compatible: GateResult
    capacity: GateResult
    stalled: GateResult | None = None
    figures: Mapping[str, Figures] = field(default_factory=dict)
    show_figures: bool = False
    events: tuple[Event, ...] = ()
    decided_at: datetime
    look_again_in_seconds: int
