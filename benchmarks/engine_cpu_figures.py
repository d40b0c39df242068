"""Knows the figures of `engine_cpu`: each follows from the samples of the result file, and from nothing else.

Refuses to know where samples come from; so a test, or a reader, makes the same figures out of the file.

    plain_ratio_N        off, over the best peer's plain decoding, N streams, decoded tokens per second
    best_ratio_1         our best over the best peer's best, edit-or-quote prompts; best_ratio_1_free: on free ones
    on_over_off_1        ours with drafts that are looked up over ours without; self_draft_over_off_1 is apart
    ..._whole, _prefill  the same for whole questions, and for prompt tokens per second
    tb_ms, tv4_over_tb   a step of one row, and how much five rows cost; as they are for the winner's dtype and threads
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.engine_cpu_samples import OURS, RATES, Comparison, Visit, by, compare, is_self_draft, rate_of
from benchmarks.engine_cpu_steps import step_figures

PLAIN = ("off", "plain", "eager", "compiled")
"""Ways without speculation."""
STREAMS = (1, 4, 16)
CLEAN_SHARE = 0.05
"""A visit during which others took more of the machine counts as disturbed."""

Samples = Mapping[str, Any]


def visits_of(samples: Samples) -> list[Visit]:
    """As they were written."""
    return [
        Visit(**{**each, "prompts": tuple(each["prompts"]), "parted": each["parted"] and tuple(each["parted"])})
        for each in samples["visits"]
    ]


def figures_of(samples: Samples) -> dict[str, float]:
    visits = visits_of(samples)
    found = dict(_comparisons(samples, visits))
    figures: dict[str, float] = {}
    for name, comparison in found.items():
        figures[name] = comparison.ratio
        figures |= {f"{name}_q1": comparison.quartiles[0], f"{name}_q3": comparison.quartiles[1]}
    figures |= dict(_rates(visits))
    figures |= dict(_texts(visits))
    figures |= _step_figures(samples)
    figures |= {f"startup_s {name}": float(told["seconds"]) for name, told in samples["started"].items()}
    disturbed = [visit for visit in visits if visit.others_share > CLEAN_SHARE]
    return figures | {
        "busy_share_before": samples["busy_share_before"],
        "disturbed_visits": len(disturbed),
        "visits": len(visits),
    }


def _comparisons(samples: Samples, visits: Sequence[Visit]) -> Iterator[tuple[str, Comparison]]:
    """All that there are visits for: with our class, then with 4 bits, labelled."""
    for label, weights in (("", "16 or 32 bits"), ("_over_4_bits", "4 bits")):
        peers = [name for name, of in samples["weights"].items() if of == weights and name != OURS]
        for streams in STREAMS:
            ours = _named(samples, streams, [OURS], _is_plain)
            plain = _named(samples, streams, peers, _is_plain)
            yield from _found(f"plain_ratio_{streams}{label}", by(visits, streams=streams), ours, plain)
        ours, every = _named(samples, 1, [OURS]), _named(samples, 1, peers)
        yield from _found(f"best_ratio_1{label}", by(visits, streams=1, kind="edit"), ours, every)
        yield from _found(f"best_ratio_1_free{label}", by(visits, streams=1, kind="free"), ours, every)
    off = _named(samples, 1, [OURS], _is_plain)
    for name, of_way in (("on_over_off_1", _looks_up), ("self_draft_over_off_1", is_self_draft)):
        on = _named(samples, 1, [OURS], of_way)
        yield from _found(name, by(visits, streams=1, kind="edit"), on, off)
        yield from _found(f"{name}_free", by(visits, streams=1, kind="free"), on, off)


def _found(
    name: str, visits: Sequence[Visit], ours: Sequence[str], peers: Sequence[str]
) -> Iterator[tuple[str, Comparison]]:
    for label, rate in RATES.items():
        comparison = compare(visits, ours, peers, rate)
        if comparison is not None:
            yield name if label == "decode" else f"{name}_{label}", comparison


def _is_plain(way: str) -> bool:
    return way in PLAIN


def _looks_up(way: str) -> bool:
    return not _is_plain(way) and not is_self_draft(way)


def _of_the_class(way: str) -> bool:
    return not is_self_draft(way)


def _named(
    samples: Samples, streams: int, engines: Sequence[str], of_way: Callable[[str], bool] = _of_the_class
) -> list[str]:
    """Of the settings that took turns with so many streams."""
    settings: Sequence[Mapping[str, Any]] = samples["chosen"].get(str(streams), [])
    return [name_of(each) for each in settings if each["engine"] in engines and of_way(each["way"])]


def name_of(setting: Mapping[str, Any]) -> str:
    """As `Configuration.name`."""
    return f"{setting['engine']} {setting['way']} {setting['dtype']} x{setting['threads']}"


def _rates(visits: Sequence[Visit]) -> Iterator[tuple[str, float]]:
    """Tokens per second of every setting, decode and prefill apart, by kind where a question is of one."""
    groups = sorted({(visit.configuration, visit.streams, visit.kind) for visit in visits})
    for configuration, streams, kind in groups:
        of = [visit for visit in by(visits, streams=streams, kind=kind) if visit.configuration == configuration]
        for label, rate in RATES.items():
            value = rate_of(of, rate)
            assert value is not None
            yield f"{label}_tokens_per_s {configuration}, {streams} streams, {kind}", round(value, 2)


def _texts(visits: Sequence[Visit]) -> Iterator[tuple[str, float]]:
    """How many texts differ from the reference in their dtype, of those compared."""
    compared: dict[str, list[int | None]] = {}
    for visit in visits:
        if visit.parted is not None:
            compared.setdefault(visit.configuration, []).extend(visit.parted)
    for configuration, parted in compared.items():
        yield f"texts_differing {configuration}", sum(at is not None for at in parted)
        yield f"texts_compared {configuration}", len(parted)


def _step_figures(samples: Samples) -> dict[str, float]:
    steps = samples["steps"]
    figures: dict[str, float] = {}
    for name in steps["milliseconds"]:
        dtype, _, threads = name.partition(" x")
        figures |= step_figures(steps, dtype=dtype, threads=int(threads))
    winner = next(iter(_named(samples, 1, [OURS], _is_plain)), "bf16 x1")
    end = "_" + "_".join(winner.split()[-2:])
    names = ("tb_ms", "tv4_over_tb", "tv8_over_tb", "read_share")
    figures |= {name: figures[name + end] for name in names}
    return figures | {f"read_gb_per_s_x{threads}": speed for threads, speed in steps["read_gb_per_s"].items()}


def tables(samples: Samples, figures: Mapping[str, float]) -> Iterator[str]:
    """What a person reads: ratios with their quartiles, rates, who is absent."""
    yield ""
    for name, comparison in _comparisons(samples, visits_of(samples)):
        low, high = comparison.quartiles
        ratio = f"{comparison.ratio:6.3f} (quartiles {low:.3f} to {high:.3f})"
        yield f"{name:34} {ratio}   {comparison.ours} / {comparison.peer}"
    for name in ("tb_ms", "tv4_over_tb", "tv8_over_tb", "read_share"):
        yield f"{name:34} {figures[name]:6.3f}"
    for name, value in figures.items():
        if name.startswith(("decode", "texts_differing", "startup")):
            yield f"{name:74} {value:9.1f}"
    for name, reason in [*samples["absent"].items(), *samples["left"].items()]:
        yield f"{name}: {reason}"
    shares = [visit["others_share"] for visit in samples["visits"]]
    if shares:
        disturbed = f"{figures['disturbed_visits']:.0f} of {len(shares)} visits disturbed"
        yield f"others took {statistics.median(shares):.1%} of the machine, median; {disturbed}"
