"""Draws the figures of result files: `python -m benchmarks.plots` writes `results/NAME.svg` beside each it knows.

Refuses to measure. What was recorded from real pairs, or replayed from real texts, has axes of its own beside what is
independent by construction. The same results give the same bytes: no dates, no random ids, text as text. Needs the
dependency group `bench` (matplotlib).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.record import RESULTS
from benchmarks.recorded import Trace, read_traces

KINDS = ("task", "temperature", "lot")
Figures = Mapping[str, float]


@contextmanager
def _styled() -> Iterator[None]:
    """While figures are made and written: letters stay letters, ids are the same each time."""
    with mpl.rc_context():
        mpl.rc("svg", hashsalt="tandem", fonttype="none")
        mpl.rc("font", size=9.0)
        mpl.rc("axes", grid=True)
        mpl.rc("grid", alpha=0.3)
        yield


def _write(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


@contextmanager
def _drawn(path: Path, title: str) -> Iterator[Axes]:
    """Axes that are written to `path` as SVG when the block ends."""
    with _styled():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        yield axes
        _write(figure, path)


def _bar_panels(path: Path, panels: Mapping[str, Figures], *, mark: float = 1.0) -> None:
    """Bars by title, one above the other, with a line at `mark` to compare with; those without bars are left out."""
    shown = {title: bars for title, bars in panels.items() if bars}
    heights = [len(bars) + 2 for bars in shown.values()]
    with _styled():
        figure = Figure(figsize=(6.4, 0.25 * sum(heights) + 0.4), layout="constrained")
        grid = figure.add_gridspec(len(shown), 1, height_ratios=heights)
        for place, (title, bars) in enumerate(shown.items()):
            axes = figure.add_subplot(grid[place, 0])
            axes.set_title(title)
            axes.axvline(mark, color="black", linewidth=0.8)
            _bars(axes, bars)
            axes.set_xlim(0, 1.12 * max(bars.values()))
        _write(figure, path)


def plan_plot(points: Sequence[tuple[int, float]], path: Path) -> None:
    """Tokens per second over drafts per verifier."""
    with _drawn(path, "Tokens per second of one verifier") as axes:
        axes.plot([drafts for drafts, _ in points], [rate for _, rate in points], marker="o")
        axes.set_xlabel("drafts per verifier")
        axes.set_ylabel("tokens/s")
        axes.set_ylim(bottom=0)


def rig_sequential(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    with _drawn(path, "Speed-up over plain decoding on the rig, and the optimum") as axes:
        for rig, colour in (("flat", "C0"), ("sloped", "C1")):
            keys = [key for key in samples if key.startswith(rig)]
            alphas = [float(key.partition("_")[2]) for key in keys]
            axes.plot(alphas, [samples[key]["optimum"] for key in keys], colour, linestyle=":", label=f"{rig}: optimum")
            axes.plot(alphas, [figures[f"speedup_{key}"] for key in keys], colour, marker="o", label=f"{rig}: measured")
        axes.set_xlabel("acceptance")
        axes.legend()


def controller(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    shares = _named("share_", figures)
    recorded = _named("recorded_", shares)
    courses = {name: share for name, share in shares.items() if not name.startswith("recorded_")}
    panels = {
        "i.i.d. acceptance: tokens per second, share of the oracle's": courses,
        "recorded and replayed: share of the best fixed K's": recorded,
    }
    _bar_panels(path, panels)


def drafters(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    gains = {name.removesuffix("_speedup"): value for name, value in figures.items() if name.endswith("_speedup")}
    panels = {
        f"replayed texts, {rig} verify: speed-up over plain decoding": {
            name.replace(f"_{rig}", ""): gain for name, gain in gains.items() if f"_{rig}_" in name
        }
        for rig in ("flat", "sloped")
    }
    _bar_panels(path, panels)


def segments(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    panels = {f"recorded: gain of a belief per {kind}": _named(f"{kind}_gain_", figures) for kind in KINDS}
    ends = ("least", "most")
    _bar_panels(path, {title: {n: v for n, v in bars.items() if n not in ends} for title, bars in panels.items()})


def traces(found: Sequence[Trace], path: Path) -> None:
    """A box over texts for each trace and task."""
    rows = {f"{trace.name}, {task}": trace.of(task) for trace in found for task in sorted(trace.prompts)}
    shares = [[each.right / len(each.bits) for each in of] for of in rows.values()]
    with _styled():
        figure = Figure(figsize=(8.0, 0.22 * len(rows) + 0.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title("Share of a text's positions where the first guess was right (5, 25, 50, 75, 95 % of texts)")
        axes.boxplot(shares, orientation="horizontal", tick_labels=list(rows), whis=(5, 95), showfliers=False)
        axes.invert_yaxis()
        _write(figure, path)


def never_worse(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    with _drawn(path, "Speed over plain decoding, by load and acceptance") as axes:
        points = [name.rpartition("_alpha_") for name in figures if "_alpha_" in name]
        for setting in dict.fromkeys(setting for setting, _, _ in points):
            alphas = [alpha for other, _, alpha in points if other == setting]
            rates = [figures[f"{setting}_alpha_{alpha}"] for alpha in alphas]
            axes.plot([float(alpha) for alpha in alphas], rates, marker="o", label=setting.replace("_", " "))
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xlabel("acceptance")
        axes.legend(ncols=2)


def disable_latency(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    with _drawn(path, "Share of trials by then") as axes:
        for key, label in (
            ("rounds", "rounds from the fall to K = 0"),
            ("back_tokens", "tokens from the rise until back"),
        ):
            values = sorted(trial[key] for trial in samples["trials"])
            axes.step(values, [(place + 1) / len(values) for place in range(len(values))], where="post", label=label)
        axes.legend()


def capacity(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    with _drawn(path, "Clients of one verifier, at the same speed each") as axes:
        ratio = figures["clients_ratio"]
        over_plain = figures["clients_ratio_over_plain"]
        _bars(axes, {"plain": ratio / over_plain, "co-located": 1.0, "offloaded": ratio, "bound": figures["bound"]})


def rig_overlap(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    """Drafting ahead, with the share of proposals that were ready, beside drafting on demand."""

    def bars(names: Sequence[str]) -> dict[str, float]:
        ahead = {f"{name}, ahead ({figures[f'hit_rate_{name}']:.0%} ready)": f"speedup_{name}" for name in names}
        both = ahead | {f"{name}, on demand": f"sequential_{name}" for name in names}
        return {told: figures[both[told]] for told in sorted(both)}

    pairs = [name for name in samples if name.endswith("_pair")]
    panels = {
        "rows of a stated acceptance: speed-up over plain decoding": bars([n for n in samples if n not in pairs]),
        "rows of the trained pair": bars(pairs),
    }
    _bar_panels(path, panels)


def fairness(samples: Mapping[str, Any], figures: Figures, path: Path) -> None:
    """What the honest tenant has beside one that asks for much more; the line is what it should have."""
    held = {name: figures[f"{name}_share"] for name in samples}
    first_come = {name: figures[f"{name}_share_first_come"] for name in held if f"{name}_share_first_come" in figures}
    panels = {
        "fair shares: the honest tenant's share of rows (three quarters at 3 to 1)": held,
        "whoever comes first": first_come,
    }
    _bar_panels(path, panels, mark=0.5)


PLOTS: Mapping[str, Callable[[Mapping[str, Any], Figures, Path], None]] = {
    "rig_sequential": rig_sequential,
    "rig_overlap": rig_overlap,
    "controller": controller,
    "drafters": drafters,
    "segments": segments,
    "never_worse": never_worse,
    "disable_latency": disable_latency,
    "capacity": capacity,
    "fairness": fairness,
}


def _named(prefix: str, figures: Figures) -> dict[str, float]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def _bars(axes: Axes, values: Figures) -> None:
    names = list(values)[::-1]
    bars = axes.barh([name.replace("_", " ") for name in names], [values[name] for name in names])
    axes.bar_label(bars, [f"{values[name]:.3g}" for name in names], padding=2)


def main() -> None:
    traces(read_traces(), RESULTS / "traces.svg")
    for name, draw in PLOTS.items():
        source = RESULTS / f"{name}.json"
        if source.exists():
            document = json.loads(source.read_text())
            draw(document["samples"], document["figures"], source.with_suffix(".svg"))
            print(f"drew {source.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
