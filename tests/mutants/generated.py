"""Knows faults that nobody thought of: one operator or number of a verifying function, changed by rule.

Refuses to choose what is convenient: all places are listed in source order, and a fixed stride takes five of them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.fault import EXACT, INVARIANCE, SAME_LAW, SAMPLED, SENT_LAW, VERDICTS, Fault

PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "domain/verification.py": (
        ("verify_coupled", "verify_rejection", "residual", "keyed_chance"),
        (EXACT, VERDICTS, SAMPLED),
    ),
    "domain/block.py": (("verify_block", "_left", "_stands"), (EXACT, VERDICTS)),
    "engines/rejection.py": (
        ("_verify_coupled", "_verify_rejection", "_verify_block", "_residual", "_left"),
        (VERDICTS, SAMPLED, INVARIANCE),
    ),
    "engines/sampler.py": (("guess", "draw", "_law", "_ranked_filters"), (SAME_LAW, SENT_LAW, VERDICTS, SAMPLED)),
}
"""By file: the functions that are changed, and the tests that should see it. What only renormalises a row of q is not
among them: the row adds up to 1 within its rounding, so a change there is below what any sample can show."""

COUNT = 5

SWAPS: dict[type[ast.AST], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.Lt: ">",
    ast.LtE: ">",
    ast.Gt: "<",
    ast.GtE: "<",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
"""What stands for an operator instead. Comparisons are turned round, not made strict: whether u = h counts is a matter
of probability zero, so that mutant would be the same program."""

EQUIVALENT: dict[str, str] = {
    "engines/sampler.py _law 4: '1' becomes '2'": "with top-p 1 the filters keep all tokens, as the shorter way does",
}
"""Generated places whose change makes no other program, by name, with the reason."""


@dataclass(frozen=True)
class Place:
    line: int
    column: int
    end: int
    becomes: str


def generated(package: Path) -> tuple[Fault, ...]:
    """`COUNT` of all faults that the rules make of the sources in `package`."""
    every = [fault for file in PLACES for fault in _faults_of(package, file) if fault.name not in EQUIVALENT]
    stride = len(every) / COUNT
    return tuple(every[int((at + 0.5) * stride)] for at in range(COUNT))


def _faults_of(package: Path, file: str) -> Iterator[Fault]:
    source = (package / file).read_text()
    lines = source.splitlines()
    functions, tests = PLACES[file]
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and function.name in functions:
            for at, place in enumerate(_places(function, lines)):
                yield _fault(f"{file} {function.name} {at}", file, lines, place, tests)


def _fault(name: str, file: str, lines: list[str], place: Place, tests: tuple[str, ...]) -> Fault:
    line = lines[place.line]
    changed = f"{line[: place.column]}{place.becomes}{line[place.end :]}"
    before = f"{lines[place.line - 1]}\n"
    return Fault(
        f"{name}: {line[place.column : place.end]!r} becomes {place.becomes!r}",
        file,
        f"{before}{line}\n",
        f"{before}{changed}\n",
        f"generated: {line.strip()}",
        tests,
    )


def _places(function: ast.FunctionDef, lines: list[str]) -> Iterator[Place]:
    for node in ast.walk(function):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
                yield from _operator(left, op, right, lines)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SWAPS:
                yield from _operator(left, op, right, lines)
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                yield Place(node.lineno - 1, node.col_offset, _end(node), str(number + 1))


def _operator(left: ast.expr, op: ast.AST, right: ast.expr, lines: list[str]) -> Iterator[Place]:
    """The operator between two operands of one line."""
    if left.end_lineno != right.lineno:
        return
    row, start, stop = right.lineno - 1, _end(left), right.col_offset
    between = lines[row][start:stop]
    sign = between.strip(" ()")
    if sign:
        column = start + between.index(sign)
        yield Place(row, column, column + len(sign), SWAPS[type(op)])


def _end(node: ast.expr) -> int:
    assert node.end_col_offset is not None, "parsed code has ends"
    return node.end_col_offset
