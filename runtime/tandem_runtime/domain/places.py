"""Knows who may have the last places of a gateway, of its waiting line, or of an engine, which tenants share.

Refuses to know what a place is for, who waits for one, and how fast those go on who have one.

A place is held for as long as an answer takes, so whoever has long ones could hold all of them, and nobody takes them
away. Therefore the last eighth is kept. **The law**, of N places, K of them kept: who would begin to use the last K
must be below its share afterwards, N w / (W + 1), where w is its weight and W the weights of all that hold places, its
own with them; the 1 stands for somebody who is not here yet. Who holds nothing may always have one.

So a tenant of weight w, whatever it asks for and however long its answers are, never holds more than N - K places, or
N w / (w + 1) where that is more; a tenant that comes then finds K at once, or what that share leaves, one at least. Of
64 places, whose last 8 are kept, an adversary of weight 1 has 56, and one of weight 100 has 63. From there on each that
comes free goes to whoever has least for its weight (`gateway.admission`), and is saved for who asks for several at once
only where it is owed them, so that shares are reached as answers end. Places are no speed: what those who are seated
get of a step is shared by weight (`domain.batching`).

Where nobody has a name, as where a gateway asks for no keys, there is nobody to keep a place for.
"""

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Held", "is_owed", "is_welcome", "kept", "most_of"]

Held: TypeAlias = Mapping[str | None, tuple[int, float]]
"""How many places each tenant holds, and its weight. Without a name ("" or None): those who have none, together."""

KEPT_PART = 8
FEWEST = 4
"""Of fewer places none is kept."""
NEWCOMER_WEIGHT = 1.0


def kept(places: int) -> int:
    """Of 64 places 8, of 4 to 15 one."""
    return max(places // KEPT_PART, 1) if places >= FEWEST else 0


def most_of(tenant: str | None, weight: float, places: int) -> int:
    """So many the tenant may hold at most, if it is alone."""
    if not tenant:
        return places
    return max(places - kept(places), int(places * weight / (weight + NEWCOMER_WEIGHT)))


def is_welcome(tenant: str | None, weight: float, count: int, *, held: Held, places: int) -> bool:
    """Whether the tenant may have `count` more places now."""
    after = sum(number for number, _ in held.values()) + count
    if after > places - kept(places) and (tenant or any(held)):
        return after <= places and _is_below_share(tenant, weight, count, held=held, places=places)
    return after <= places


def is_owed(tenant: str | None, weight: float, count: int, *, held: Held, places: int) -> bool:
    """Whether places that come free are saved until there are `count` for it, and given to nobody behind it."""
    is_shared = tenant and kept(places)
    return not is_shared or _is_below_share(tenant, weight, count, held=held, places=places)


def _is_below_share(tenant: str | None, weight: float, count: int, *, held: Held, places: int) -> bool:
    """Whether `count` more do not take it above its share: of 64 places, where one other tenant of the same weight
    holds some, 64 / 3 = 21."""
    mine = held[tenant][0] if tenant in held else 0
    others = sum(weight for name, (_, weight) in held.items() if name != tenant)
    share = places * weight / (others + weight + NEWCOMER_WEIGHT)
    return mine + count <= max(share, 1)
