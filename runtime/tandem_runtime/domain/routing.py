"""Knows how a request finds its revision and its pods: hashes against weights, then a pod by load and by its prefix.

Refuses to know connections and load beyond a count of sessions.

Every hash is the first 8 bytes, big endian, of a SHA-256, so that all gateways agree without talking. The revision is
chosen by share(unit) = hash(unit|salt) / 2^64 against the weights laid end to end in the policy's order: with weights
90 and 10, shares in [0, .9) go to the first. A growing second weight takes over from the upper end only, so that a
session which has met the canary stays with it. The bucket of the evidence, hash(unit) mod 128, comes from another
hash, so that buckets and revisions are independent.

Of the pods that are about as little busy as any, a request goes to the one that those before it went to which began the
same way: what they computed of a prompt may still stand in that pod's memory. Each pod's hash with the beginning is a
number, and the highest has it (Thaler and Ravishankar 1998, "rendezvous hashing"), so that a pod that comes or goes
moves its own part of the beginnings and no other.
"""

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tandem_runtime.domain.adapters import AdapterDigest
from tandem_runtime.domain.policy import WHOLE_PERCENT, Assignment, PairRevision, Policy
from tandem_runtime.domain.tokens import TokenId

BUCKETS = 128
_SPAN = 2**64
NEAR_SESSIONS = 2
"""So many sessions more than the least busy pod has are worth a prompt that is known already."""
PREFIX_TOKENS = 256
"""The turns of a chat differ behind these; while it is shorter, what is read anew is as short."""
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


def pin_of(tenant: str, adapter: AdapterDigest | None, prompt: Sequence[TokenId]) -> str:
    """What requests have in common that may find the same prefix known: prefixes cross no tenant and no adapter. Ids
    that no model knows are refused later."""
    whose = f"{len(tenant)}|{tenant}|{adapter or ''}|".encode()
    ids = array("Q", [token % _SPAN for token in prompt[:PREFIX_TOKENS]])
    return hashlib.sha256(whose + ids.tobytes()).hexdigest()


def choose_pod(pin: str, sessions: Mapping[Name, int], *, barred: Iterable[Name] = ()) -> Name | None:
    """The pinned one of those that have two sessions more than the least busy at most; None when all are barred."""
    open_pods = sessions.keys() - set(barred)
    most = min((sessions[pod] for pod in open_pods), default=0) + NEAR_SESSIONS
    near = (pod for pod in open_pods if sessions[pod] <= most)
    return max(near, key=lambda pod: (hash64(f"{pin}|{pod}"), pod), default=None)
