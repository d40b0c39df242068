"""Knows what the operator's settings add to a decision: the image where a spec names none, and what accelerators are.

Refuses to know where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem_operator.domain.pools import AcceleratorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTerms:
    """`runtime_image` serves where `image` is absent; `accelerators` says what a name such as L4 stands for."""

    runtime_image: str
    accelerators: AcceleratorTable
