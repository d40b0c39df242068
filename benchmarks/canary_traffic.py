"""The traffic that `canary_power` shows to a canary's checks: one gateway, and what passes through it in virtual time.

Refuses to know the checks. The traffic is meant to mislead them. Sessions are sticky and differ in acceptance, in
waiting and in pace; answers have heavy-tailed lengths; the load swings, and acceptance falls by 20 points while the
weights rise from 10 to 50 %; the canary examines a quarter more tokens for the same text, as a larger K does; outages
make both err; a pod's speed wanders from slot to slot with an autocorrelation of .4.

In parts it is seen more closely: each session then has a temperature and a tenant, on which its acceptance depends, a
tenth of them decode plainly (`speculation.plainSegments`), and stretches of 32 tokens are timed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from tandem_operator.domain.record import EPOCH
from tandem_operator.domain.samples import (
    BUCKETS,
    SEGMENT_BUCKETS,
    Arm,
    Buckets,
    Document,
    FirstTokens,
    Scrape,
    Segment,
    Slot,
    Stratum,
)
from tandem_runtime.domain.evidence import FIRST_TOKEN_EDGES_MILLISECONDS, STRETCH_EDGES_MILLISECONDS, STRETCH_TOKENS

LOOK_SECONDS, SLOT_SECONDS, PODS = 30, 20, 2
RATE = 8.0
"""Requests per second, in the mean."""
SESSIONS, REQUESTS_OF_A_SESSION = 400, 5
FALL, FALL_SECONDS = 0.2, 1800
OFF = 0.2
CANARY, STABLE, TARGET = "canary", "stable", "t"
TOKEN_MILLISECONDS = 20.0
STEP_GROWS = 0.3
"""A step that twice as many share takes 2^.3 times as long."""
HEATS: Mapping[str, tuple[float, float]] = {"greedy": (0.5, 0.05), "warm": (0.35, 0.0), "hot": (0.15, -0.15)}
"""Share of the sessions, and by how much more of their tokens is accepted."""
TENANTS: Mapping[str, tuple[float, float]] = {"anybody": (0.7, 0.0), "batch": (0.2, -0.05), "plain": (0.1, 0.0)}
"""Likewise; those of `plain` decode plainly."""
SEGMENTS = ("greedy", "hot", "batch")
"""Those that are counted apart."""

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


def _bins(edges: tuple[int, ...]) -> Places:
    return np.zeros((len(edges) + 1, BUCKETS), np.int64)


@dataclass(frozen=True, slots=True)
class Drop:
    """By how much less of the canary's tokens are accepted: everywhere, and in one segment beyond that."""

    everywhere: float = 0.0
    segment: str = ""
    more: float = 0.0


@dataclass(slots=True)
class Counts:
    """What a gateway counts of one revision under one policy."""

    requests: int = 0
    errors: int = 0
    rows: Places = field(default_factory=lambda: np.zeros((3, BUCKETS), np.int64))
    waits: Places = field(default_factory=lambda: _bins(FIRST_TOKEN_EDGES_MILLISECONDS))
    stretches: Places = field(default_factory=lambda: _bins(STRETCH_EDGES_MILLISECONDS))
    segments: dict[str, Places] = field(default_factory=dict)

    def stratum(self, policy: int, revision: str) -> Stratum:
        accepted, examined, asked = (tuple(row.tolist()) for row in self.rows)
        return Stratum(
            policy=policy,
            revision=revision,
            requests=self.requests,
            errors=self.errors,
            emitted=sum(examined),
            acceptance=Buckets(accepted, examined, asked),
            first_token=FirstTokens(FIRST_TOKEN_EDGES_MILLISECONDS, _filled(self.waits)),
            stretch=FirstTokens(STRETCH_EDGES_MILLISECONDS, _filled(self.stretches)) if self.segments else None,
            segments={name: Segment(*(tuple(row.tolist()) for row in rows)) for name, rows in self.segments.items()},
        )

    def add_segment(self, name: str, bucket: Places, accepted: Places, examined: Places) -> None:
        rows = self.segments.setdefault(name, np.zeros((2, SEGMENT_BUCKETS), np.int64))
        sums = [np.bincount(bucket % SEGMENT_BUCKETS, values, SEGMENT_BUCKETS) for values in (accepted, examined)]
        rows += np.array(sums).astype(np.int64)


def _filled(bins: Places) -> dict[str, tuple[int, ...]]:
    return {str(index): tuple(bins[index].tolist()) for index in np.flatnonzero(bins.any(axis=1))}


class Sessions:
    """Who asks: each with a place among the weights, a bucket, and its own acceptance, patience and pace."""

    def __init__(self, seed: int, chance: np.random.Generator) -> None:
        self.chance = chance
        self._of_parts = np.random.default_rng([seed, 1])
        """So that what is asked in parts changes nothing of the rest."""
        self.place, self.acceptance, self.wait, self.pace = (np.zeros(SESSIONS) for _ in range(4))
        self.bucket, self.heat, self.tenant = (np.zeros(SESSIONS, np.int64) for _ in range(3))
        self.renew(np.arange(SESSIONS))

    def renew(self, which: Places) -> None:
        self.place[which] = self.chance.random(len(which))
        self.bucket[which] = self.chance.integers(BUCKETS, size=len(which))
        self.acceptance[which] = self.chance.normal(0, 0.1, len(which))
        self.wait[which] = self.chance.normal(0, 0.4, len(which))
        self.pace[which] = self._of_parts.normal(0, 0.1, len(which))
        self.heat[which] = self._drawn(HEATS, len(which))
        self.tenant[which] = self._drawn(TENANTS, len(which))

    def _drawn(self, shares: Mapping[str, tuple[float, float]], count: int) -> Places:
        return self._of_parts.choice(len(shares), count, p=[share for share, _ in shares.values()])

    def are_of(self, segment: str, who: Places) -> NDArray[np.bool_]:
        if segment in HEATS:
            return np.asarray(self.heat[who] == list(HEATS).index(segment))
        return np.asarray(self.tenant[who] == list(TENANTS).index(segment))

    def leaning(self, who: Places) -> Numbers:
        """By how much more of their tokens is accepted for what they are."""
        heats, tenants = (np.array([lean for _, lean in kinds.values()]) for kinds in (HEATS, TENANTS))
        return np.asarray(heats[self.heat[who]] + tenants[self.tenant[who]])


@dataclass(frozen=True, slots=True)
class Moment:
    """What is the same for both revisions while a look's span lasts."""

    second: int
    load: float
    outage: bool


class Traffic:
    """One gateway and what passes through it; `in_parts`: segments and stretches are counted too."""

    def __init__(self, seed: int, *, drop: Drop, in_parts: bool = False) -> None:
        self.chance = np.random.default_rng(seed)
        self._of_stretches = np.random.default_rng([seed, 2])
        self.drop = drop
        self.in_parts = in_parts
        self.sessions = Sessions(seed, self.chance)
        self.phase = self.chance.uniform(0, 2 * math.pi)
        self.counts: dict[tuple[int, str], Counts] = {}
        self.slots: list[Slot] = []
        self.pace = np.zeros(PODS)

    def pass_time(self, second: int, policy: int, percent: int) -> None:
        """The requests and slots of the look's span that begins at `second`."""
        load = 1 + 0.5 * math.sin(2 * math.pi * second / 3000 + self.phase)
        asked = int(self.chance.poisson(RATE * LOOK_SECONDS * load))
        who = self.chance.integers(SESSIONS, size=asked)
        is_canary = self.sessions.place[who] < percent / 100
        moment = Moment(second, load, bool(self.chance.random() < 0.02))
        for name, chosen in ((CANARY, who[is_canary]), (STABLE, who[~is_canary])):
            self._serve(self.counts.setdefault((policy, name), Counts()), name, chosen, moment)
        self.sessions.renew(np.unique(who[self.chance.random(asked) < 1 / REQUESTS_OF_A_SESSION]))
        self._close_slots(second, policy, percent, load)

    def _serve(self, counts: Counts, name: str, who: Places, moment: Moment) -> None:
        count, bucket = len(who), self.sessions.bucket[who]
        counts.requests += count
        counts.errors += int(self.chance.binomial(count, 0.03 if moment.outage else 0.001))
        logs = math.log(100) + moment.load + self.sessions.wait[who] + self.chance.normal(0, 0.5, count)
        np.add.at(counts.waits, (np.searchsorted(FIRST_TOKEN_EDGES_MILLISECONDS, np.exp(logs)), bucket), 1)
        length = np.minimum(20 * (self.chance.pareto(1.5, count) + 1), 2000)
        examined = np.ceil(length * (1.25 if name == CANARY else 1.0)).astype(np.int64)
        accepted = self.chance.binomial(examined, np.clip(self._level(name, who, moment.second), 0.02, 0.98))
        on = self.chance.random(count) >= OFF
        if self.in_parts:
            on &= ~self.sessions.are_of("plain", who)
            self._count_parts(counts, who[on], accepted[on], examined[on])
            self._time_stretches(counts, who[on], length[on], moment)
        sums = (accepted, examined, np.ones(count))
        counts.rows += np.array([np.bincount(bucket[on], values[on], BUCKETS) for values in sums]).astype(np.int64)

    def _level(self, name: str, who: Places, second: int) -> Numbers:
        """The chance of a guess of each to be accepted."""
        level = 0.8 - FALL * min(1.0, second / FALL_SECONDS) + self.sessions.acceptance[who]
        if self.in_parts:
            level += self.sessions.leaning(who)
        if name == STABLE:
            return np.asarray(level)
        level -= self.drop.everywhere
        return level - self.drop.more * self.sessions.are_of(self.drop.segment, who) if self.drop.segment else level

    def _count_parts(self, counts: Counts, who: Places, accepted: Places, examined: Places) -> None:
        for name in SEGMENTS:
            its = self.sessions.are_of(name, who)
            counts.add_segment(name, self.sessions.bucket[who[its]], accepted[its], examined[its])

    def _time_stretches(self, counts: Counts, who: Places, length: Numbers, moment: Moment) -> None:
        """As the load and the session have it; in an outage one in twenty stands still for a second."""
        whose = np.repeat(who, (length // STRETCH_TOKENS).astype(np.int64))
        noise = self._of_stretches.normal(0, 0.2, len(whose))
        usual = STRETCH_TOKENS * TOKEN_MILLISECONDS * moment.load**STEP_GROWS
        took = usual * np.exp(self.sessions.pace[whose] + noise)
        took += 1000 * (self._of_stretches.random(len(whose)) < (0.05 if moment.outage else 0.002))
        bins = np.searchsorted(STRETCH_EDGES_MILLISECONDS, took)
        np.add.at(counts.stretches, (bins, self.sessions.bucket[whose]), 1)

    def _close_slots(self, second: int, policy: int, percent: int, load: float) -> None:
        for slot in range(-(-second // SLOT_SECONDS), -(-(second + LOOK_SECONDS) // SLOT_SECONDS)):
            self.pace = 0.4 * self.pace + math.sqrt(1 - 0.16) * self.chance.normal(0, 0.1, PODS)
            for pod in range(PODS):
                self._close_slot(f"pod-{pod}", slot, (policy, percent, load * math.exp(self.pace[pod])))

    def _close_slot(self, pod: str, slot: int, how: tuple[int, int, float]) -> None:
        policy, percent, pace = how
        arm = Arm.OFF if self.chance.random() < OFF else Arm.ON
        for name, share in ((CANARY, percent / 100), (STABLE, 1 - percent / 100)):
            tokens = int(self.chance.poisson(2000 * share)) + 1
            speed = 1.4 if arm is Arm.ON else 1.0
            spent = round(tokens * TOKEN_MILLISECONDS * pace * math.exp(self.chance.normal(0, 0.05)) / speed) + 1
            held = Slot(
                pod=pod,
                target=TARGET,
                slot=slot,
                arm=arm,
                policy=policy,
                revision=name,
                tokens=tokens,
                milliseconds=spent,
            )
            self.slots.append(held)

    def scrape(self, second: int, policy: int) -> Scrape:
        """What is new: of policies that are over, the last look has read all."""
        told = tuple(counts.stratum(*key) for key, counts in self.counts.items() if key[0] == policy)
        self.slots = self.slots[-40:]  # older ones were read
        document = Document(boot="b", policy=policy, strata=told, slots=tuple(self.slots))
        return Scrape(EPOCH + timedelta(seconds=second), {"gateway": document})
