"""Knows what the gateways' newest answers say of one revision over the last minutes: figures for people and the
breaker.

Refuses to know marks and verdicts. Nothing here is kept: an operator that restarts waits one window and knows it again.
Acceptance looks back to the baseline scrape. Speed-up looks back an hour, as far as gateways list their slots, since
off slots are few: at 5 % and 20 s one pod has nine of them in an hour.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tandem_operator.domain import record
from tandem_operator.domain.decision import Figures
from tandem_operator.domain.evidence import in_window, slots_in_window
from tandem_operator.domain.intervals import Estimate, SlotSums, faster, ratio
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.revision import Revision
from tandem_operator.domain.samples import Arm, Document, Scrape, Stratum

SPEEDUP_WINDOW_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The sums of one revision, None without a baseline or traffic; `speedup` is a logarithm.

    `on_share` is the part of its decode time that lay in on slots, of the slots wholly within the window; 0.0 where
    there are none.
    """

    sums: Stratum | None
    acceptance: Estimate | None
    shadow: Estimate | None
    speedup: Estimate | None
    on_share: float = 0.0

    @property
    def requests(self) -> int:
        """Requests that had proposals."""
        known = self.sums is not None and self.sums.acceptance is not None
        return sum(self.sums.acceptance.requests) if known and self.sums and self.sums.acceptance else 0

    @property
    def on_rounds(self) -> int:
        """Rounds that might have speculated, as far as slots tell: by luck of the draw a window has hardly any."""
        return 0 if self.sums is None else int(self.sums.rounds * self.on_share)

    @property
    def figures(self) -> Figures:
        """What people see."""
        sums = self.sums
        rounds = sums.speculating if sums else 0
        accepted = sum(sums.acceptance.accepted) if sums and sums.acceptance else 0
        return Figures(
            acceptance=None if self.acceptance is None else self.acceptance.value,
            accepted_of_proposed=accepted / sums.proposed if sums and sums.proposed else None,
            mean_accepted_length=1 + accepted / rounds if rounds else None,
            speedup=None if self.speedup is None else math.exp(self.speedup.value),
            acceptance_error=0.0 if self.acceptance is None else self.acceptance.error,
            speedup_error=0.0 if self.speedup is None else math.exp(self.speedup.value) * self.speedup.error,
        )


def look(
    seen: Observed, name: str, pair: Revision, *, slot_seconds: int, since_policy: int = 0, whole: bool = False
) -> Window:
    """The window of a revision, of the policies from `since_policy` on; `whole`: all of their time, however long."""
    if seen.scrape is None:
        return Window(sums=None, acceptance=None, shadow=None, speedup=None)
    documents = {pod: _part(held, name, pair, since_policy) for pod, held in seen.documents.items()}
    now = replace(seen.scrape, documents=documents)
    baseline = Scrape(now.at, {}) if whole else seen.baseline
    sums = in_window(now, baseline, name)
    acceptance, shadow = (None, None) if sums is None else (sums.acceptance, sums.shadow)
    return Window(
        sums=sums,
        acceptance=None if acceptance is None else ratio(acceptance.accepted, acceptance.examined),
        shadow=None if shadow is None else ratio(shadow.matched, shadow.examined),
        speedup=_speedup(now, name, pair, slot_seconds),
        on_share=0.0 if baseline is None else _on_share(now, name, baseline.at, slot_seconds),
    )


def _part(document: Document, name: str, pair: Revision, policy: int) -> Document:
    """What speaks of one revision since a policy: its strata, its slots in the arm on, its target's in the arm off."""
    strata = (stratum for stratum in document.strata if stratum.revision == name)
    slots = (
        slot for slot in document.slots if (slot.revision == name if slot.arm is Arm.ON else slot.target == pair.target)
    )
    return replace(
        document,
        strata=tuple(stratum for stratum in strata if stratum.policy >= policy),
        slots=tuple(slot for slot in slots if slot.policy >= policy),
    )


def _on_share(now: Scrape, name: str, since: datetime, slot_seconds: int) -> float:
    start = (since - record.EPOCH).total_seconds()
    listed = (slot for document in now.documents.values() for slot in document.slots)
    own = [slot for slot in listed if slot.revision == name and slot.slot * slot_seconds >= start]
    decoded = sum(slot.milliseconds for slot in own)
    return sum(slot.milliseconds for slot in own if slot.arm is Arm.ON) / decoded if decoded else 0.0


def _speedup(now: Scrape, name: str, pair: Revision, slot_seconds: int) -> Estimate | None:
    slots = slots_in_window(now, window_seconds=SPEEDUP_WINDOW_SECONDS, slot_seconds=slot_seconds)
    return faster(_arm(slots, pair.target, Arm.OFF), _arm(slots, name, Arm.ON))


def _arm(slots: Mapping[tuple[int, str, Arm], SlotSums], of: str, arm: Arm) -> dict[int, SlotSums]:
    return {policy: sums for (policy, named, kind), sums in slots.items() if (named, kind) == (of, arm)}
