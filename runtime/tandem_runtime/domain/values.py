"""Knows how a value is declared that is made in each round: frozen to who reads and checks the code, cheap to make.

Refuses to know which values those are; any other is an ordinary frozen dataclass.

A frozen dataclass sets every field by `object.__setattr__`, so that making one takes three times as long: with two
dozen fields several microseconds, and a round makes a dozen of them. The type checker holds all code to what is frozen,
so at run time nothing need stand guard.

    @value(frozen=True, slots=True)
    class Round: ...
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen, slots):
        """Equal and hashed by its fields, as if it were frozen."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["value"]
