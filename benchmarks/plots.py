"""Draws the figures of result files: `python -m benchmarks.plots` writes `results/NAME.svg` beside each it knows.

Refuses to measure. The same results give the same bytes: no dates, no random ids, text as text. Needs the dependency
group `bench` (matplotlib).
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

STYLE = {"svg.hashsalt": "tandem", "svg.fonttype": "none", "font.size": 9.0, "axes.grid": True, "grid.alpha": 0.3}
Figures = Mapping[str, float]


@contextmanager
def _drawn(path: Path, title: str) -> Iterator[Axes]:
    """Axes that are written to `path` as SVG when the block ends."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        yield axes
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


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
    with _drawn(path, "Tokens per second, share of the oracle's") as axes:
        shares = {name.removeprefix("share_"): value for name, value in figures.items() if name.startswith("share_")}
        _bars(axes, shares)
        axes.set_xlim(min([0.9, *shares.values()]) - 0.02, 1.01)


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


PLOTS: Mapping[str, Callable[[Mapping[str, Any], Figures, Path], None]] = {
    "rig_sequential": rig_sequential,
    "controller": controller,
    "never_worse": never_worse,
    "disable_latency": disable_latency,
    "capacity": capacity,
}


def _bars(axes: Axes, values: Figures) -> None:
    names = list(values)[::-1]
    axes.barh([name.replace("_", " ") for name in names], [values[name] for name in names])


def main() -> None:
    for name, draw in PLOTS.items():
        source = RESULTS / f"{name}.json"
        if source.exists():
            document = json.loads(source.read_text())
            draw(document["samples"], document["figures"], source.with_suffix(".svg"))
            print(f"drew {source.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
