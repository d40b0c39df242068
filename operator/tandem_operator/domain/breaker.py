"""Knows when speculation is taken from a whole deployment, and when it is tried again.

Refuses to know canaries, weights and pods' manifests; the runtime picks K by itself, many times a second.

TRANSITIONS is the whole machine, and the docs draw it from there:

- *Active*: the runtime speculates where it expects a gain. Trips when the window's evidence is clear: acceptance or
  speed-up below its low mark by three standard errors, memory above its high mark, no draft pod ready for a while,
  or the runtime's own choice K = 0 in nine of ten rounds.
- *Disabled*: K = 0; the draft scores a sample of what the target emits. After the cool-down it is tried again, unless
  that shadow estimate says that it would not pay. The cool-down doubles with each failed return, up to 8 times its
  length.
- *Probing*: one slot in five speculates. Acceptance above the high mark leads back to Active, anything else to
  Disabled: at once where it is clear by three standard errors, else with enough requests. So does the runtime's own
  choice K = 0. High and low marks lie apart, so that a value between them changes nothing (hysteresis).
- *Off*: by command, by mode, without a usable draft, or after too many flips within a day. A command `on` or a new
  revision starts afresh.

Missing evidence never trips anything: None is not zero.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from tandem_operator.domain.intervals import Estimate
from tandem_operator.domain.progress import Breaker, SpeculationReason, SpeculationState
from tandem_operator.domain.spec import AutoDisable, MemoryMarks, SpeculationMode

DAY = timedelta(days=1)
LONGEST_COOLDOWN = 8
"""The cool-down grows to this many times its length."""
SURE = 3.0
"""Standard errors by which an estimate must lie below a mark."""
FEWEST_PROBED = 16
"""Below this many filled buckets a standard error is not to be trusted."""
HARDLY_SPECULATING = 0.1
"""Below this share of rounds with K > 0, of those that might have, the runtime has given up by itself."""


class Turn(StrEnum):
    """What moves the breaker."""

    TRIPPED = "tripped"
    TRIPPED_TOO_OFTEN = "tripped too often"
    WORTH_A_TRY = "worth a try"
    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    SWITCHED_OFF = "switched off"
    SWITCHED_ON = "switched on"


_ACTIVE, _DISABLED = SpeculationState.ACTIVE, SpeculationState.DISABLED
_PROBING, _OFF = SpeculationState.PROBING, SpeculationState.OFF

TRANSITIONS: Mapping[tuple[SpeculationState, Turn], SpeculationState] = {
    (_ACTIVE, Turn.TRIPPED): _DISABLED,
    (_ACTIVE, Turn.TRIPPED_TOO_OFTEN): _OFF,
    (_ACTIVE, Turn.SWITCHED_OFF): _OFF,
    (_DISABLED, Turn.WORTH_A_TRY): _PROBING,
    (_DISABLED, Turn.SWITCHED_OFF): _OFF,
    (_DISABLED, Turn.SWITCHED_ON): _ACTIVE,
    (_PROBING, Turn.PAYS): _ACTIVE,
    (_PROBING, Turn.DOES_NOT_PAY): _DISABLED,
    (_PROBING, Turn.SWITCHED_OFF): _OFF,
    (_PROBING, Turn.SWITCHED_ON): _ACTIVE,
    (_OFF, Turn.SWITCHED_ON): _ACTIVE,
}
"""Whatever is not here changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Of a target's fullest pod: its working set in its limit, the use of its KV cache, and whether it pushes sessions
    out; None where nobody measured."""

    working_set_basis_points: int | None = None
    kv_basis_points: int | None = None
    preempting: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the breaker looks at, for the stable revision.

    Estimates are of the window and of the present state's policies only; while it is probing, `acceptance` and
    `requests` are of all of the probe. `acceptance` and `shadow` are ratios, `speedup` is a logarithm. `requests` had
    proposals, `served` are all. `rounds` are those in on slots, by the share of the decode time that is known to lie in
    such slots, and `speculating` those that proposed something. `draft_ready` is None where the pair has no draft pods.
    `draft_away`: its pods gave way to a canary's. `next_policy` is the number that the next change of the policy will
    get. `switch` is the command of this look, None for none.
    """

    now: datetime
    marks: AutoDisable
    revision: str
    next_policy: int
    mode: SpeculationMode = SpeculationMode.AUTO
    compatible: bool = True
    draft_ready: bool | None = True
    draft_away: bool = False
    acceptance: Estimate | None = None
    requests: int = 0
    served: int = 0
    shadow: Estimate | None = None
    speedup: Estimate | None = None
    rounds: int = 0
    speculating: int = 0
    memory_basis_points: int | None = None
    kv_basis_points: int | None = None
    preempting: bool | None = None
    switch: bool | None = None

    @property
    def memory(self) -> MemoryUse:
        return MemoryUse(
            working_set_basis_points=self.memory_basis_points,
            kv_basis_points=self.kv_basis_points,
            preempting=self.preempting,
        )


Cause = tuple[SpeculationReason, str]
"""Why, and the numbers."""

NOT_THE_PAIRS_FAULT = (SpeculationReason.COMMANDED, SpeculationReason.MODE_OFF, SpeculationReason.MEMORY_PRESSURE)
"""For these nobody speculates, a canary of another pair neither."""


def turn(before: Breaker, facts: Facts) -> Breaker:
    """Where the breaker stands after this look.

    Acceptance 0.21 +- 0.01 over 180 requests lies below the low mark 0.30: Active becomes Disabled for the cool-down.
    """
    watched = _watch_draft(_afresh(before, facts), facts)
    found = _find_turn(watched, facts)
    if found is None:
        return watched
    signal, (reason, note) = found
    after = TRANSITIONS.get((watched.state, signal))
    if after is None:
        barred = watched.state is _OFF and signal is Turn.SWITCHED_OFF
        return replace(watched, reason=reason, note=note) if barred else watched
    return _enter(watched, signal, after, facts, reason, note)


def _enter(
    before: Breaker, signal: Turn, after: SpeculationState, facts: Facts, reason: SpeculationReason, note: str
) -> Breaker:
    failed = _failed_returns(before, signal)
    cooldown = timedelta(seconds=facts.marks.cooldown_seconds * min(2**failed, LONGEST_COOLDOWN))
    flips = tuple(flip for flip in before.flips if facts.now - flip < DAY)
    tripped = signal in (Turn.TRIPPED, Turn.TRIPPED_TOO_OFTEN)
    starting = before.state in (_DISABLED, _OFF)  # its draft may have been released: it is starting again, not missing
    return replace(
        before,
        draft_seen=before.draft_seen and not starting,
        draft_missing_since=None if starting else before.draft_missing_since,
        state=after,
        reason=reason,
        note=note,
        since=facts.now,
        first_policy=facts.next_policy,
        failed_returns=failed,
        next_try_at=facts.now + cooldown if after is _DISABLED else None,
        flips=(*flips, facts.now) if tripped else flips,
    )


def _failed_returns(before: Breaker, signal: Turn) -> int:
    match signal:
        case Turn.DOES_NOT_PAY:
            return before.failed_returns + 1
        case Turn.PAYS | Turn.SWITCHED_ON:
            return 0
        case _:
            return before.failed_returns


def _afresh(before: Breaker, facts: Facts) -> Breaker:
    """A new stable revision is judged anew; only the command `off` outlives the old one."""
    if facts.switch is not None:
        before = replace(before, commanded_off=not facts.switch)
    if before.revision == facts.revision:
        return before
    return Breaker(
        revision=facts.revision,
        since=facts.now,
        first_policy=facts.next_policy,
        commanded_off=before.commanded_off,
    )


def _watch_draft(breaker: Breaker, facts: Facts) -> Breaker:
    """Remembers since when the draft has been there, or missing; one that never came is starting, not missing.

    One that gave way to a canary's is neither, and will start again.
    """
    if facts.draft_away:
        return replace(breaker, draft_seen=False, draft_ready_since=None, draft_missing_since=None)
    ready_since = (breaker.draft_ready_since or facts.now) if facts.draft_ready else None
    breaker = replace(breaker, draft_ready_since=ready_since)
    if facts.draft_ready or not breaker.draft_seen:
        return replace(breaker, draft_seen=bool(facts.draft_ready), draft_missing_since=None)
    return replace(breaker, draft_missing_since=breaker.draft_missing_since or facts.now)


def _find_turn(breaker: Breaker, facts: Facts) -> tuple[Turn, Cause] | None:
    barred = _barred(breaker, facts)
    if barred is not None:
        return (Turn.SWITCHED_OFF, barred)
    if facts.switch is True or (breaker.state is _OFF and breaker.reason is not SpeculationReason.TOO_MANY_FLIPS):
        return (Turn.SWITCHED_ON, (SpeculationReason.NOT_JUDGED, "nothing stands against it any more"))
    return _FINDERS[breaker.state](breaker, facts)


def _barred(breaker: Breaker, facts: Facts) -> Cause | None:
    """What forbids speculation whatever it earns."""
    if breaker.commanded_off:
        return (SpeculationReason.COMMANDED, "switched off by command until it is switched on")
    if facts.mode is SpeculationMode.OFF:
        return (SpeculationReason.MODE_OFF, "spec.speculation.mode is Off")
    if facts.draft_ready is None:
        return (SpeculationReason.NO_DRAFT, "the pair has no draft")
    if not facts.compatible:
        return (SpeculationReason.MODELS_INCOMPATIBLE, "draft and target do not share a tokenizer")
    return None


def _from_active(breaker: Breaker, facts: Facts) -> tuple[Turn, Cause] | None:
    causes = CAUSES[:2] if facts.mode is SpeculationMode.ALWAYS else CAUSES
    cause = next((found for found in (judge(breaker, facts) for judge in causes) if found is not None), None)
    if cause is not None:
        lately = [flip for flip in breaker.flips if facts.now - flip < DAY]
        if len(lately) >= facts.marks.max_flips_per_day:
            note = f"{cause[1]}; disabled {len(lately)} times within a day, so it stays off"
            return (Turn.TRIPPED_TOO_OFTEN, (SpeculationReason.TOO_MANY_FLIPS, note))
        return (Turn.TRIPPED, cause)
    return None


def _from_disabled(breaker: Breaker, facts: Facts) -> tuple[Turn, Cause] | None:
    """Tried again after the cool-down, or at once when a lost draft is back; not while its cause is seen to last."""
    marks = facts.marks
    lost = breaker.reason is SpeculationReason.DRAFT_UNAVAILABLE
    if lost and facts.draft_ready:
        return (Turn.WORTH_A_TRY, (SpeculationReason.TRYING_AGAIN, "a draft pod is ready again"))
    if lost or facts.draft_away or _cooling(breaker, facts) or _memory_lasts(breaker, facts):
        return None
    mark = marks.acceptance.enable_above_basis_points / 10_000
    if facts.shadow is None:
        return (Turn.WORTH_A_TRY, (SpeculationReason.TRYING_AGAIN, "the cool-down is over and nothing was scored"))
    if facts.shadow.value >= mark:
        note = f"the draft would have had {_plus_minus(facts.shadow)} accepted, above the mark {mark:.2f}"
        return (Turn.WORTH_A_TRY, (SpeculationReason.TRYING_AGAIN, note))
    return None


def _cooling(breaker: Breaker, facts: Facts) -> bool:
    """A draft whose pods were released scores nothing, so it gets a whole cool-down from its release."""
    if breaker.next_try_at is None or breaker.since is None:
        return False
    wait = breaker.next_try_at
    if released(breaker, facts.marks, facts.now):
        wait += timedelta(seconds=facts.marks.release_draft_after_seconds)
    return facts.now < wait


def released(breaker: Breaker, marks: AutoDisable, now: datetime) -> bool:
    """Whether the draft's pods are given up, because nothing has used them for long."""
    idle = breaker.state in (_DISABLED, _OFF) and breaker.since is not None
    after = marks.release_draft_after_seconds
    return bool(idle and after and breaker.since and now - breaker.since >= timedelta(seconds=after))


def _from_probing(breaker: Breaker, facts: Facts) -> tuple[Turn, Cause] | None:
    """Clear evidence or enough requests decide; so does a draft or memory that goes bad meanwhile, and a runtime that
    proposes hardly anything, however well that is accepted: on it goes would be off again at once."""
    worse = _draft_lost(breaker, facts) or _memory(breaker, facts)
    if worse is None and facts.mode is not SpeculationMode.ALWAYS:
        worse = _runtime_at_zero(breaker, facts)
    if worse is not None:
        return (Turn.DOES_NOT_PAY, worse)
    mark = facts.marks.acceptance.enable_above_basis_points / 10_000
    if facts.acceptance is None or not (facts.requests >= facts.marks.min_requests or _clear(facts.acceptance, mark)):
        return None
    gain = math.log(facts.marks.speedup.enable_above_basis_points / 10_000)
    note = f"acceptance {_plus_minus(facts.acceptance)} over {facts.requests} requests, mark {mark:.2f}"
    if facts.acceptance.value < mark:
        return (Turn.DOES_NOT_PAY, (SpeculationReason.NO_BETTER, note))
    if facts.speedup is not None and facts.speedup.value + SURE * facts.speedup.error < gain:
        note = f"{note}; speed-up {math.exp(facts.speedup.value):.2f}, mark {math.exp(gain):.2f}"
        return (Turn.DOES_NOT_PAY, (SpeculationReason.NO_BETTER, note))
    return (Turn.PAYS, (SpeculationReason.PAYS_OFF, note))


def _clear(known: Estimate, mark: float) -> bool:
    return known.units >= FEWEST_PROBED and abs(known.value - mark) > SURE * known.error


def _from_off(breaker: Breaker, facts: Facts) -> tuple[Turn, Cause] | None:
    """After too many flips only a command or a new revision helps, and both were looked at before."""
    del breaker, facts
    return None


_FINDERS: Mapping[SpeculationState, Callable[[Breaker, Facts], tuple[Turn, Cause] | None]] = {
    _ACTIVE: _from_active,
    _DISABLED: _from_disabled,
    _PROBING: _from_probing,
    _OFF: _from_off,
}


# Causes


def _draft_lost(breaker: Breaker, facts: Facts) -> Cause | None:
    missing = breaker.draft_missing_since
    if missing is None or facts.now - missing < timedelta(seconds=facts.marks.draft_unavailable_seconds):
        return None
    return (SpeculationReason.DRAFT_UNAVAILABLE, f"no draft pod has been ready since {missing:%H:%M:%S} UTC")


def _memory(breaker: Breaker, facts: Facts) -> Cause | None:
    del breaker
    note = pressure(facts.marks.memory, facts.memory)
    return None if note is None else (SpeculationReason.MEMORY_PRESSURE, note)


def pressure(marks: MemoryMarks, use: MemoryUse) -> str | None:
    """The working set above the high mark, or KV use together with preemptions: a full KV cache alone is a healthy busy
    server. None where there is no pressure."""
    mark = marks.disable_above_basis_points
    if use.working_set_basis_points is not None and use.working_set_basis_points > mark:
        return f"a target's working set is {_percent(use.working_set_basis_points)} of its limit, mark {_percent(mark)}"
    if use.preempting and use.kv_basis_points is not None and use.kv_basis_points > mark:
        return f"the KV cache is {_percent(use.kv_basis_points)} full and preempts, mark {_percent(mark)}"
    return None


def presses_on(marks: MemoryMarks, use: MemoryUse) -> bool:
    """Whether the use has not fallen below the low mark, as it must after pressure.

    Of the KV cache it counts only while somebody was pushed out of it in the last 30 s: how full it is follows the
    load, so a busy healthy server may stay above the mark for ever, and would never speculate again.
    """
    mark = marks.enable_below_basis_points
    kv_presses = use.kv_basis_points is not None and use.kv_basis_points >= mark and bool(use.preempting)
    return kv_presses or (use.working_set_basis_points is not None and use.working_set_basis_points >= mark)


def _memory_lasts(breaker: Breaker, facts: Facts) -> bool:
    pressed = breaker.reason is SpeculationReason.MEMORY_PRESSURE
    return pressed and presses_on(facts.marks.memory, facts.memory)


def _acceptance(breaker: Breaker, facts: Facts) -> Cause | None:
    del breaker
    mark = facts.marks.acceptance.disable_below_basis_points / 10_000
    known = facts.acceptance
    if known is None or facts.requests < facts.marks.min_requests or known.value + SURE * known.error >= mark:
        return None
    note = f"acceptance {_plus_minus(known)} over {facts.requests} requests, mark {mark:.2f}"
    return (SpeculationReason.ACCEPTANCE_LOW, note)


def _speedup(breaker: Breaker, facts: Facts) -> Cause | None:
    del breaker
    mark = math.log(facts.marks.speedup.disable_below_basis_points / 10_000)
    known = facts.speedup
    if known is None or known.value + SURE * known.error >= mark:
        return None
    note = f"speed-up {math.exp(known.value):.2f} over {known.units} slots, mark {math.exp(mark):.2f}"
    return (SpeculationReason.SPEEDUP_LOW, note)


def _runtime_at_zero(breaker: Breaker, facts: Facts) -> Cause | None:
    """Only where a draft was there all the window long: without one there is nothing to choose."""
    there, window = breaker.draft_ready_since, timedelta(seconds=facts.marks.window_seconds)
    if facts.served < facts.marks.min_requests or there is None or facts.now - there < window:
        return None
    share = gave_up(facts.speculating, facts.rounds)
    return None if share is None else (SpeculationReason.RUNTIME_AT_ZERO, f"the runtime chose K = 0 in {share}")


def gave_up(speculating: int, rounds: int) -> str | None:
    """In how many rounds a revision that hardly speculates did not; None where it does, or had nothing to choose."""
    if speculating >= HARDLY_SPECULATING * rounds:
        return None
    return f"{1 - speculating / rounds:.0%} of {rounds} rounds that might have speculated"


CAUSES: tuple[Callable[[Breaker, Facts], Cause | None], ...] = (
    _draft_lost,
    _memory,
    _acceptance,
    _speedup,
    _runtime_at_zero,
)
"""What trips an active breaker; the mode Always heeds the first two only, which would break serving."""


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} ± {estimate.error:.2f}"


def _percent(basis_points: int) -> str:
    return f"{basis_points / 100:.0f} %"
