"""Which slots of a target pod are off under a policy, written a second time for worlds of decisions."""

import hashlib
from collections.abc import Mapping
from typing import Any


def is_off(policy: Mapping[str, Any], pod: str, slot: int) -> bool:
    """As gateways choose a pod's off slots."""
    text = f"{pod}|{slot}|{policy['salt']}".encode()
    draw = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
    return bool(draw < policy["control"]["offPercent"] / 100)
