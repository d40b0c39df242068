"""Knows how a request finds its revision and its pods: hashes against weights, then the least busy pod.

Refuses to know connections and load beyond a count of sessions.

Every hash is the first 8 bytes, big endian, of a SHA-256, so that all gateways agree without talking. The revision is
chosen by share(unit) = hash(unit|salt) / 2^64 against the weights laid end to end in the policy's order: with weights
90 and 10, shares in [0, .9) go to the first. A growing second weight takes over from the upper end only, so that a
session which has met the canary stays with it. The bucket of the evidence, hash(unit) mod 128, comes from another
hash, so that buckets and revisions are independent.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tandem_runtime.domain.policy import WHOLE_PERCENT, Assignment, PairRevision, Policy

BUCKETS = 128
_SPAN = 2**64
Name = TypeVar("Name", bound=str)


def hash64(text: str) -> int:
    """The first 8 bytes of SHA-256 as an integer."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def bucket_of(unit: str) -> int:
    """Which of the 128 buckets of evidence a unit belongs to."""
    return hash64(unit) % BUCKETS


def unit_of(policy: Policy, *, request: str, session: str | None) -> str:
    """What is assigned: the request's own id, or the session where sessions must stick (and say who they are)."""
    return session if policy.assignment is Assignment.SESSION and session is not None else request


def choose_revision(policy: Policy, unit: str) -> PairRevision:
    """The revision whose stretch of weights holds the unit's share; weights add up to 100, so there is one."""
    share = hash64(f"{unit}|{policy.salt}") * WHOLE_PERCENT
    edge = 0
    for revision in policy.revisions:
        edge += revision.weight
        if share < edge * _SPAN:
            return revision
    raise AssertionError("weights add up to 100, which parse_policy checks")


def least_busy(sessions: Mapping[Name, int], *, barred: Iterable[Name] = ()) -> Name | None:
    """The pod with the fewest sessions, the lowest name on ties; None when all are barred."""
    open_pods = sessions.keys() - set(barred)
    return min(open_pods, key=lambda pod: (sessions[pod], pod), default=None)
