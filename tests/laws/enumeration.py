"""Knows all that can come of a rule when its chance is enumerated: exact laws, in fractions, without a generator.

Refuses to know any rule.

A process reads uniform numbers by name. Each number is an interval, at first (0, 1); where the process compares it with
a threshold inside the interval, both outcomes are followed, each with the share of the interval that leads to it. What
comes out is the law of the process, exactly, whatever its thresholds are, if only they are rational.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeVar, cast, overload

from tandem_runtime.domain.sampling import Distribution, Probability
from tandem_runtime.domain.tokens import TokenId

Outcome = TypeVar("Outcome", bound=Hashable)
Prefix: TypeAlias = tuple[TokenId, ...]
Model: TypeAlias = Callable[[Prefix], Distribution]
Name: TypeAlias = tuple[Hashable, ...]


class _Fork(Exception):
    """A number was compared with a threshold inside its interval."""

    def __init__(self, name: Name, threshold: Fraction) -> None:
        super().__init__(name)
        self.name, self.threshold = name, threshold


@dataclass(frozen=True, slots=True)
class Uniform:
    """`scale` times the number `name`, of which only its interval (low, high) is known."""

    name: Name
    low: Fraction
    high: Fraction
    scale: Fraction = Fraction(1)

    def __mul__(self, factor: int | Fraction) -> Uniform:
        return Uniform(self.name, self.low, self.high, self.scale * factor)

    __rmul__ = __mul__

    def __lt__(self, threshold: int | Fraction) -> bool:
        if self.scale == 0:
            return threshold > 0
        edge = Fraction(threshold) / self.scale
        if self.low < edge < self.high:
            raise _Fork(self.name, edge)
        return self.high <= edge

    def __ge__(self, threshold: int | Fraction) -> bool:
        return not self < threshold


class Numbers:
    """The numbers of one run of a process. `numbers("accept", 3)` is the one of that name, the same each time."""

    def __init__(self, intervals: Mapping[Name, tuple[Fraction, Fraction]]) -> None:
        self._intervals = intervals

    def __call__(self, *name: Hashable) -> Probability:
        return cast(Probability, Uniform(name, *self._intervals.get(name, (Fraction(0), Fraction(1)))))

    def all_of(self, *name: Hashable) -> Sequence[Probability]:
        """As many as are asked for: number i is the one named (*name, i)."""
        return _Endless(self, name)


class _Endless(Sequence[Probability]):
    def __init__(self, numbers: Numbers, name: Name) -> None:
        self._numbers, self._name = numbers, name

    @overload
    def __getitem__(self, index: int) -> Probability: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Probability]: ...
    def __getitem__(self, index: int | slice) -> Probability | Sequence[Probability]:
        assert isinstance(index, int), "numbers are read one by one"
        return self._numbers(*self._name, index)

    def __len__(self) -> int:
        raise AssertionError("there are as many numbers as are asked for")


def law_of_process(process: Callable[[Numbers], Outcome]) -> dict[Outcome, Fraction]:
    """Every outcome with its probability."""
    found: dict[Outcome, Fraction] = defaultdict(Fraction)
    waiting: list[tuple[dict[Name, tuple[Fraction, Fraction]], Fraction]] = [({}, Fraction(1))]
    while waiting:
        intervals, weight = waiting.pop()
        try:
            found[process(Numbers(intervals))] += weight
        except _Fork as fork:
            low, high = intervals.get(fork.name, (Fraction(0), Fraction(1)))
            for part in ((low, fork.threshold), (fork.threshold, high)):
                share = (part[1] - part[0]) / (high - low)
                waiting.append(({**intervals, fork.name: part}, weight * share))
    return dict(found)


def probability(model: Model, ids: Prefix) -> Fraction:
    """Of a sequence from the empty prefix."""
    found = Fraction(1)
    for count, token in enumerate(ids):
        found *= Fraction(model(ids[:count]).get(token, 0))
    return found


def continued(law: Mapping[Prefix, Fraction], model: Model, *, length: int) -> dict[Prefix, Fraction]:
    """The law of the first `length` tokens when what came so far goes on by plain decoding. Where the model has no law
    the text ends, and is an outcome as it stands."""
    whole: dict[Prefix, Fraction] = defaultdict(Fraction)
    waiting = [(ids[:length], mass) for ids, mass in law.items()]
    while waiting:
        ids, mass = waiting.pop()
        if len(ids) == length or not model(ids):
            whole[ids] += mass
            continue
        waiting += [((*ids, token), mass * Fraction(share)) for token, share in model(ids).items() if share]
    return {ids: mass for ids, mass in whole.items() if mass}


def plain_law(model: Model, *, length: int) -> dict[Prefix, Fraction]:
    """The law of the first `length` tokens of plain decoding."""
    return continued({(): Fraction(1)}, model, length=length)


def of_weights(*rows: Sequence[int]) -> Model:
    """A model whose law after a prefix is the row numbered by a hash of the prefix."""

    def law(prefix: Prefix) -> Distribution:
        row = rows[(len(prefix) + 2 * sum(prefix)) % len(rows)]
        return {token: Fraction(weight, sum(row)) for token, weight in enumerate(row) if weight}

    return law
