"""Knows how a word on the command line is read: a port, a number, a share, a name with its folder, a table of costs.

Refuses to know which flag it stands behind. What does not fit is told in a sentence that says what would.
"""

import argparse
from pathlib import Path

from tandem_runtime.domain import policy

LARGEST_NUMBER = 10_000_000
"""Of sessions, tokens, threads and seconds: more is a slip of the finger, and would overflow what it is given to."""

LARGEST_MEMORY = 10**15
"""Of bytes."""


def port_number(text: str) -> int:
    """0 lets the system choose."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def positive_number(text: str, *, least: int = 1, most: int = LARGEST_NUMBER) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def named_path(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PATH")
    return name, Path(path)


def pace_table(text: str) -> str:
    from tandem_runtime.engines.pace import TABLES  # noqa: PLC0415  # numpy, only for who paces

    if text not in TABLES:
        raise argparse.ArgumentTypeError(f"there is no table {text!r}; the tables are {', '.join(sorted(TABLES))}")
    return text


def percent(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole percentage from 0 to 100")
    return int(text)


def basis_points(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > policy.BASIS_POINTS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {policy.BASIS_POINTS}")
    return int(text)
