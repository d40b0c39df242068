"""Knows Kubernetes quantities (`500m`, `1Gi`, `2e3`): their exact amount, and the spelling that the API server stores.

Knows nothing of what is measured in them. The server stores `1024Mi` as `1Gi` and `1000m` as `1`; comparing what a user
wrote with what came back would see a change where there is none, so a Quantity here is always in the stored spelling.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NewType

Quantity = NewType("Quantity", str)

_SHAPE = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?")
_BINARY = {"Ei": 2**60, "Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_DECIMAL = {"E": 10**18, "P": 10**15, "T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3}
_SMALL = {"m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}


def quantity(text: str) -> Quantity:
    """The stored spelling; raises ValueError when the text is no quantity. quantity("1024Mi") == "1Gi"."""
    _, suffix = _parts(text)
    return Quantity(_stored(amount(text), binary=suffix in _BINARY))


def amount(text: str) -> Fraction:
    """The exact amount; raises ValueError when the text is no quantity. amount("500m") == 1/2."""
    number, suffix = _parts(text)
    return Fraction(number) * _multiplier(suffix)


def _parts(text: str) -> tuple[str, str]:
    parts = _SHAPE.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    return parts[1], parts[2] or ""


def _multiplier(suffix: str) -> Fraction:
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return Fraction(10) ** int(suffix[1:])
    return Fraction(_BINARY.get(suffix) or _DECIMAL.get(suffix) or _SMALL.get(suffix) or 1)


def _stored(value: Fraction, *, binary: bool) -> str:
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
