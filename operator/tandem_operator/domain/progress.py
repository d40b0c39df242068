"""Knows what must outlive a restart of the operator: where a rollout stands, what the breaker did, what was answered.

Refuses to know when anything moves on (`rollout`, `breaker`, `alerts` do). Progress is kept whole in
`status.progress` and comes back equal. The stable pointer and the verdicts are not here but on the ControllerRevisions,
since a backup drops status and a lost status must not lose them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem_operator.domain import record
from tandem_operator.domain.record import Moment
from tandem_operator.domain.revision import Edition
from tandem_operator.domain.spec import Speculation


class Stage(StrEnum):
    """Where a rollout stands."""

    INSTALLING = "Installing"
    """There is no stable revision yet; the first one is coming up."""
    STABLE = "Stable"
    """One revision serves everybody and nothing is under way."""
    GATHERING = "Gathering"
    """A canary in the place of stable's pods: what stable does with them is noted until it can be compared."""
    CLEARING = "Clearing"
    """Stable gives way: speculation is off, and the pods go that the canary's will replace."""
    PREPARING = "Preparing"
    """The canary's pods are coming up; nobody is served by it."""
    STEPPING = "Stepping"
    """The canary has the weight of a step and is being judged."""
    PAUSED = "Paused"
    """The step passed and waits for the command `promote`."""
    COMPLETING = "Completing"
    """Every step passed; the canary is coming up to full size before it gets everything."""
    RETURNING = "Returning"
    """A rollback whose target is cold: speculation is off and the old target is coming up."""


class Surge(StrEnum):
    """What a canary adds beside stable, or takes the place of."""

    SHARED_TARGET = "SharedTarget"
    SIDE_BY_SIDE = "SideBySide"
    IN_PLACE_DRAFT = "InPlaceDraft"
    RECREATE = "Recreate"

    @property
    def in_turn(self) -> bool:
        """Whether pods of stable give way: the two are then compared one after the other."""
        return self in (Surge.IN_PLACE_DRAFT, Surge.RECREATE)

    @property
    def shares_target(self) -> bool:
        """Whether both are served by the same target pods."""
        return self in (Surge.SHARED_TARGET, Surge.IN_PLACE_DRAFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """`revision` is the one on its way; in the stage STABLE it is "" and every moment is absent.

    `step` counts from 0. `first_policy` is the number of the first policy of this canary: evidence from before it
    belongs to something else. `returning_for` is why a cold rollback is under way. `gave_way` is the number of the
    first policy under which stable lacks the pods that gave way to this revision's; `room_made_at` is when the previous
    revision's were given up for it. `quiet_since`: its speculation is off for now, for want of memory; `was_quiet`:
    that was so before in this canary.
    """

    stage: Stage = Stage.INSTALLING
    revision: str = ""
    surge: Surge = Surge.SHARED_TARGET
    step: int = 0
    started_at: Moment | None = None
    step_started_at: Moment | None = None
    deadline_at: Moment | None = None
    unschedulable_since: Moment | None = None
    first_policy: int = 0
    returning_for: str = ""
    gave_way: int | None = None
    room_made_at: Moment | None = None
    quiet_since: Moment | None = None
    was_quiet: bool = False


class SpeculationState(StrEnum):
    """Where the breaker stands."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    PROBING = "Probing"
    OFF = "Off"


class SpeculationReason(StrEnum):
    """Why the breaker stands there."""

    NOT_JUDGED = "NotJudged"
    PAYS_OFF = "PaysOff"
    ACCEPTANCE_LOW = "AcceptanceLow"
    SPEEDUP_LOW = "SpeedupLow"
    MEMORY_PRESSURE = "MemoryPressure"
    DRAFT_UNAVAILABLE = "DraftUnavailable"
    RUNTIME_AT_ZERO = "RuntimeAtZero"
    TRYING_AGAIN = "TryingAgain"
    NO_BETTER = "NoBetter"
    TOO_MANY_FLIPS = "TooManyFlips"
    COMMANDED = "Commanded"
    MODE_OFF = "ModeOff"
    NO_DRAFT = "NoDraft"
    MODELS_INCOMPATIBLE = "ModelsIncompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """`revision` is the stable revision that was judged; a new one starts afresh, but for `commanded_off`.

    `first_policy` is the number of the first policy of this state: sums from before it belong to another.
    `failed_returns` doubles the cool-down, `flips` are the moments at which it was disabled within the last day.
    `draft_seen`: a draft pod of the revision was ready once; `draft_ready_since` is since when one has been ready
    without a break, `draft_missing_since` when the last one was lost.
    `note` has the last turn's numbers.
    """

    state: SpeculationState = SpeculationState.ACTIVE
    reason: SpeculationReason = SpeculationReason.NOT_JUDGED
    since: Moment | None = None
    revision: str = ""
    first_policy: int = 0
    failed_returns: int = 0
    next_try_at: Moment | None = None
    flips: tuple[Moment, ...] = ()
    draft_seen: bool = False
    draft_ready_since: Moment | None = None
    draft_missing_since: Moment | None = None
    commanded_off: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """Settings of speculation as the spec had them from `at` on; `number` is that of their first policy."""

    number: int
    at: Moment
    settings: Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUndo:
    """An earlier change whose settings are in force in place of the spec's, and why."""

    back_to: PolicyChange
    at: Moment
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """The edition that a command asked for, of one spec: `of` is the revision that this spec alone names."""

    of: str
    edition: Edition


class AlertAction(StrEnum):
    """What became of an alert."""

    POLICY_UNDONE = "PolicyUndone"
    ROLLED_BACK = "RolledBack"
    ABORTED_CANARY = "AbortedCanary"
    WOULD_ROLL_BACK = "WouldRollBack"
    IGNORED = "Ignored"
    STALLED = "Stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredAlert:
    """One entry of `status.alerts`; `key` is the hash in the annotation's name, `note` says why it was ignored.

    `since` is when the policy or canary began that was taken back; None where none was.
    """

    key: str
    name: str
    revision: str
    action: AlertAction
    at: Moment
    note: str = ""
    since: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """The last abort or rollback: what was taken back, why, with which numbers, and whether it was for cause."""

    revision: str
    reason: str
    note: str
    at: Moment
    bad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All that decisions remember.

    `refused` is not tried again until a hashed field changes or `retry` says so. `handled` maps a command annotation to
    the value that was last handled, whole. `figures_at` is when live figures were last put into status. `marks` are
    annotations by revision that follow from this progress and are written after it: they stay until they stand on the
    ControllerRevision, so that a kill between the two writes loses none of them. `policies` are the changes of
    `spec.speculation`, newest first; `undone` holds until the next one. `upgrade` is what the spec means by
    command, though it was not edited. `warned_of` is the last revision whose draft was told to be another target's.
    `warned_of_digests`: it was told that pods of one hash hold different weights, and they still do.
    `retired` are revisions that were ended or taken back, as long as open answers of theirs may want to propose.
    `hampered` is the newest policy under which stable did not have all of the pods
    again that had given way to a canary's: of it and those before nothing tells what stable can do.
    """

    rollout: Rollout = field(default_factory=Rollout)
    breaker: Breaker = field(default_factory=Breaker)
    refused: str = ""
    rolled_back: RolledBack | None = None
    handled: Mapping[str, str] = field(default_factory=dict)
    alerts: tuple[AnsweredAlert, ...] = ()
    figures_at: Moment | None = None
    marks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    policies: tuple[PolicyChange, ...] = ()
    undone: PolicyUndo | None = None
    upgrade: Upgrade | None = None
    warned_of: str | None = None
    warned_of_digests: bool | None = None
    hampered: int | None = None
    retired: tuple[str, ...] = ()


def read(status: Mapping[str, object]) -> Progress | None:
    """The progress that `write` put into a status; None where there is none; raises RecordError when damaged."""
    kept = status.get("progress")
    return None if kept is None else record.load(Progress, kept)


def write(progress: Progress) -> dict[str, object]:
    """The value of `status.progress`; `read({"progress": write(p)}) == p`."""
    kept: dict[str, object] = record.dump(progress)
    return kept
