"""Knows what a visit to an engine says, and how the figures of `engine_cpu` follow from visits.

Refuses to know engines, prompts and clocks: it computes from numbers, so that anyone can compute again.

A visit is one question: some prompts, decoded together. Prefill lasts until every stream has its first token; decode is
what comes after that, so a stream that began earlier counts from there. In a turn every configuration is asked the same
question, in an order that is reversed from turn to turn (A B, B A, ...). A ratio of two configurations is the geometric
mean, over the turns that both answered, of the ratio of their rates. Over several peers the ratio is the least: that to
the best of them.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.peers.lines import Stream

OURS = "tandem"
"""Among the engines."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One engine, one way of decoding, on so many threads."""

    engine: str
    way: str
    dtype: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.engine} {self.way} {self.dtype} x{self.threads}"


def is_self_draft(way: str) -> bool:
    """Such a draft is a copy of the model with rounded weights: it reads others than those of the class."""
    return way.startswith("self-")


@dataclass(frozen=True, slots=True)
class Visit:
    """`kind` is "mixed" where the prompts are of both. `parted`: where each text leaves the reference's, None where it
    does not; absent where an engine gives no ids. `others_share`: of the machine, while it took."""

    streams: int
    turn: int
    configuration: str
    kind: str
    prompts: tuple[str, ...]
    prompt_tokens: int
    tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    seconds: float
    others_share: float
    parted: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """The seconds of a question, and how many tokens came in which part."""

    tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    seconds: float


def course(streams: Sequence[Stream]) -> Course:
    """Two streams of 3 tokens at 1, 2, 3 s and at 2, 3, 4 s: prefill 2 s, then 3 tokens in 2 s."""
    begun = max(stream.events[0][0] for stream in streams)
    ended = max(stream.events[-1][0] for stream in streams)
    later = sum(count for stream in streams for at, count in stream.events if at > begun)
    total = sum(count for stream in streams for _, count in stream.events)
    return Course(total, round(begun, 5), later, round(ended - begun, 5), round(ended, 5))


Rate = Callable[[Visit], float]


def decode_rate(visit: Visit) -> float:
    return visit.decode_tokens / visit.decode_seconds


def prefill_rate(visit: Visit) -> float:
    return visit.prompt_tokens / visit.prefill_seconds


def whole_rate(visit: Visit) -> float:
    return visit.tokens / visit.seconds


RATES: dict[str, Rate] = {"decode": decode_rate, "prefill": prefill_rate, "whole": whole_rate}


def rate_of(visits: Iterable[Visit], rate: Rate) -> float | None:
    """Tokens per second, the geometric mean; None of no visits."""
    rates = [rate(visit) for visit in visits]
    return statistics.geometric_mean(rates) if rates else None


def ratios_by_turn(ours: Iterable[Visit], theirs: Iterable[Visit], rate: Rate) -> list[float]:
    """In the order of the turns that both answered."""
    known = {visit.turn: rate(visit) for visit in theirs}
    pairs = sorted((visit.turn, rate(visit)) for visit in ours if visit.turn in known)
    return [value / known[turn] for turn, value in pairs]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against the best peer; `quartiles` of the turns' ratios, equal to the ratio where there is but one turn."""

    ours: str
    peer: str
    ratio: float
    quartiles: tuple[float, float]


def compare(
    visits: Sequence[Visit], ours: Sequence[str], peers: Sequence[str], rate: Rate = decode_rate
) -> Comparison | None:
    """The best of ours, by its own rate, against the peer that it beats least. None where either has no visits."""
    of = {name: [visit for visit in visits if visit.configuration == name] for name in (*ours, *peers)}
    own = [(known, name) for name in ours if (known := rate_of(of[name], rate)) is not None]
    if not own:
        return None
    best = max(own)[1]
    against = [
        (statistics.geometric_mean(turns), peer, turns)
        for peer in peers
        if (turns := ratios_by_turn(of[best], of[peer], rate))
    ]
    if not against:
        return None
    ratio, peer, ratios = min(against)
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratio, ratio, ratio)
    return Comparison(best, peer, round(ratio, 4), (round(low, 4), round(high, 4)))


def by(visits: Iterable[Visit], *, streams: int, kind: str | None = None) -> list[Visit]:
    """Those with so many streams; of one kind, or of all."""
    return [visit for visit in visits if visit.streams == streams and kind in (None, visit.kind)]
