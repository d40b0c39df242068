"""Knows the switchback: which time slots of a target pod run without speculation, and which of their seconds count.

Refuses to know clocks and policies: time and shares are arguments.

Whether a slot is off is a hash, the same in every gateway without talking, so that all sessions of a target pod are on
or off together: a plain request inside a speculating batch would pay for the others' verify rows and prove nothing.
The start of a slot still holds rounds that the slot before began, so it is not counted.
"""

import hashlib
import math
from functools import lru_cache

UNCOUNTED_SHARE = 0.15
UNCOUNTED_MOST_SECONDS = 3.0


def slot_number(now: float, slot_seconds: float) -> int:
    """`now` in seconds since 1970: slot_number(47, 20) = 2."""
    return math.floor(now / slot_seconds)


@lru_cache(maxsize=1024)  # asked twice a round, of some pods and the slot of the moment
def is_off(pod_uid: str, slot: int, salt: str, off_percent: int) -> bool:
    """True in `off_percent` of each pod's slots: the first 8 bytes of SHA-256("uid|slot|salt") as a share of 2^64."""
    digest = hashlib.sha256(f"{pod_uid}|{slot}|{salt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * 100 < off_percent << 64


def uncounted_seconds(slot_seconds: float) -> float:
    """How long after a slot's start nothing counts: 15 % of it, 3 seconds at most."""
    return min(UNCOUNTED_SHARE * slot_seconds, UNCOUNTED_MOST_SECONDS)


def counted_slot(started: float, ended: float, slot_seconds: float) -> int | None:
    """The slot in whose counted part the whole interval lies (seconds since 1970), or None if there is no such slot."""
    slot = slot_number(started, slot_seconds)
    begins = slot * slot_seconds
    inside = begins + uncounted_seconds(slot_seconds) <= started and ended <= begins + slot_seconds
    return slot if inside else None
