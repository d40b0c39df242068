"""Knows what a trace holds: at each position of real outputs, whether a draft's guess there would have been accepted.

Refuses to know models, text and who replays it. A trace has bits and no tokens:

    bits          "1" where the guess, made after the true prefix, is what the target said; position 0 first
    offered       "0" where a drafter had no guess (its bit is then "0"); absent where it always has one
    credits       the chance that the guess stood before chance was drawn, min(1, p/q), where chance is drawn at all
    confidences   the largest probability of the draft's softmax at temperature 1; absent without a model
    told          the byte that the draft tells as its confidence (`domain.calibration`); absent in older recordings

A draft at depth i of a round has seen i of its own guesses; while they stand they are the true prefix, so its bit there
is that of its position. What a lookup learns from tokens that a round brings together it learns one by one here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACES = Path(__file__).with_name("traces")


class NotATrace(Exception):
    """The file is no trace; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Of one output. `prompt` and `group` name whence its prompt came."""

    task: str
    prompt: str
    temperature: float
    prompt_tokens: int
    bits: str
    offered: str | None = None
    credits: tuple[float, ...] | None = None
    confidences: tuple[float, ...] | None = None
    told: tuple[int, ...] | None = None
    group: str | None = None

    @property
    def right(self) -> int:
        return self.bits.count("1")


@dataclass(frozen=True, slots=True)
class Trace:
    """`how`: "recorded" from models that ran, or "replayed" from texts that people wrote."""

    name: str
    how: str
    pair: str
    drafter: str
    verification: str
    tokenizer: str
    prompts: Mapping[str, str]
    sequences: tuple[Outcomes, ...]

    @property
    def acceptance(self) -> float:
        """Of the first guess after a true prefix, over all positions."""
        return sum(each.right for each in self.sequences) / sum(len(each.bits) for each in self.sequences)

    def of(self, task: str) -> list[Outcomes]:
        return [each for each in self.sequences if each.task == task]


def write_trace(trace: Trace, made: Mapping[str, Any], folder: Path = TRACES) -> Path:
    """`made`: when, where and with what. A line for each sequence."""
    head = {name: getattr(trace, name) for name in Trace.__slots__ if name != "sequences"}
    lines = ",\n".join(f"  {json.dumps(_written(each))}" for each in trace.sequences)
    path = folder / f"{trace.name}.json"
    path.write_text(f'{json.dumps({**head, "made": made}, indent=1)[:-2]},\n "sequences": [\n{lines}\n ]\n}}\n')
    return path


def read_trace(path: Path) -> Trace:
    """Raises NotATrace, naming file, place and value."""
    try:
        told = json.loads(path.read_text())
        sequences = tuple(_read(path, at, each) for at, each in enumerate(told["sequences"]))
        return Trace(**{name: told[name] for name in Trace.__slots__ if name != "sequences"}, sequences=sequences)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise NotATrace(f"{path}: {error!r}; record it anew with python -m benchmarks.record_traces") from error


def read_traces(folder: Path = TRACES) -> list[Trace]:
    """All there are, by name."""
    return [read_trace(path) for path in sorted(folder.glob("*.json"))]


def _written(outcomes: Outcomes) -> dict[str, Any]:
    named = ((name, getattr(outcomes, name)) for name in Outcomes.__slots__)
    return {name: value for name, value in named if value is not None}


def _read(path: Path, at: int, told: Mapping[str, Any]) -> Outcomes:
    place = f"{path}: sequences[{at}]"
    held: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    outcomes = Outcomes(**held)
    for fault in _faults(outcomes):
        raise NotATrace(f"{place}.{fault}")
    return outcomes


def _faults(outcomes: Outcomes) -> Iterator[str]:
    bits, length = outcomes.bits, len(outcomes.bits)
    if not bits or set(bits) - {"0", "1"}:
        yield f"bits is {bits[:20]!r}; it must be zeros and ones, one at least"
    rows: Mapping[str, str | Sequence[float] | None] = {
        "offered": outcomes.offered,
        "credits": outcomes.credits,
        "confidences": outcomes.confidences,
        "told": outcomes.told,
    }
    for name, row in rows.items():
        if row is not None and len(row) != length:
            yield f"{name} has {len(row)} entries; it needs one for each of {length} bits"
    for name in ("credits", "confidences"):
        for value in rows[name] or ():
            if not 0 <= float(value) <= 1:
                yield f"{name} holds {value}; a probability is wanted"
