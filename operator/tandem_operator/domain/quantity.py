"""Knows Kubernetes quantities (`500m`, `1Gi`, `2e3`): their exact value, and the spelling that the API server stores.

Knows nothing of what is measured in them. `1024Mi` is stored as `1Gi` and `1000m` as `1`; comparing spellings would
see a change where there is none, so quantities here compare by value and print as the server prints them.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SHAPE = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY = {"Ei": 2**60, "Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_DECIMAL = {"E": 10**18, "P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3}
_SMALL = {"m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}


class Quantity:
    """An immutable amount; raises ValueError when the text is no quantity.

    Quantity("1024Mi") == Quantity("1Gi"), and str() of both is "1Gi".
    """

    __slots__ = ("_text", "value")

    _text: str
    value: Fraction

    def __init__(self, text: str) -> None:
        parts = _SHAPE.fullmatch(text.strip())
        if parts is None:
            raise ValueError(text)
        number, suffix = parts[1], parts[2] or ""
        object.__setattr__(self, "value", Fraction(number) * _multiplier(suffix))
        object.__setattr__(self, "_text", _canonical(self.value, binary=suffix in _BINARY))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Quantity does not change: {name}")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.value == other.value if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value)


def _multiplier(suffix: str) -> Fraction:
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return Fraction(10) ** int(suffix[1:])
    return Fraction(_BINARY.get(suffix) or _DECIMAL.get(suffix) or _SMALL.get(suffix) or 1)


def _canonical(value: Fraction, *, binary: bool) -> str:
    """The largest suffix that leaves a whole number; below one, thousandths and finer, rounded up at billionths."""
    sizes = _BINARY if binary and abs(value) >= 1024 and value.denominator == 1 else _DECIMAL
    for suffix, size in sizes.items():
        if value and (value / size).denominator == 1:
            return f"{value / size}{suffix}"
    if value.denominator == 1:
        return str(value)
    for suffix, part in _SMALL.items():
        if (value / part).denominator == 1:
            return f"{value / part}{suffix}"
    return f"{-(-value // _SMALL['n'])}n"
