"""Knows which guesses a target's budget leaves out, from what it left out of a session's earlier proposals.

Refuses to know loads, other sessions, and why a guess is dear.

A target that shares its steps judges the guesses that are worth their seconds (`budget`): those whose survival is above
a *price*, which rises with the load and falls with the tenant's share. A gateway sees it only by its verdicts: of a
proposal with survivals s_1 > s_2 > ... of which m were judged, the price lies between s_(m + 1) and s_m. It is followed
from cut to cut. Whatever was judged whole says that it was no higher than that, and it may have fallen meanwhile: so it
fades, until a guess more is tried. A guess below the price brings nothing and costs its drafting.
"""

from collections.abc import Sequence
from typing import Final

__all__ = ["FREE", "judged_alone", "price_after"]

FREE: Final = 0.0
"""Nothing was ever left out, or not for long."""
FOLLOWED: Final = 0.5
"""How far a cut moves the price: one step that was full by chance does not cost all of a proposal's length."""
FADES: Final = 0.998
"""Per round: a guess more is tried in one of some ten, for its drafting."""
FORGOTTEN: Final = 0.05


def price_after(price: float, survivals: Sequence[float], left_out: int) -> float:
    """After a round whose guesses stood with these chances, of which the last `left_out` were not judged.

    With (.8, .64, .51, .41) and two left out, the price moves half of the way to .58.
    """
    if left_out == 0:
        return price * FADES if price > FORGOTTEN else FREE
    judged = len(survivals) - left_out
    told = (survivals[judged] + (survivals[judged - 1] if judged else 1.0)) / 2
    return price + FOLLOWED * (told - price)


def judged_alone(survivals: tuple[float, ...], price: float) -> tuple[float, ...]:
    """What guesses bring where those below the price are not judged."""
    return tuple([survival if survival >= price else 0.0 for survival in survivals]) if price else survivals
