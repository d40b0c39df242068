"""Answers "how many L4 per H100?" from costs and acceptance that were measured: `python -m benchmarks.simulator plan`.

Refuses to know machines: every cost is an argument, and the defaults are the rig's (draft 4 ms, verify 18, plain 15).
The K rule, driver and session are the product's own; the table says what clients who ask again as soon as they are
answered would get, for none, one, two, ... drafts per verifier. `--plot FILE.svg` draws it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.simulator.capacity import Crowd
from benchmarks.simulator.costs import CROWDED, Rig, StepCost
from benchmarks.simulator.planning import Choice, advised, choices

DESCRIPTION = "Plan a pair: how many drafts one verifier can use."


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=DESCRIPTION)
    plan = parser.add_subparsers(dest="command", required=True).add_parser("plan", help="how many L4 per H100?")
    options: dict[str, tuple[float, str]] = {
        "alpha": (0.8, "share of a draft's guesses that are right"),
        "draft-ms": (4.0, "t_d, a draft step over one session"),
        "draft-session-ms": (0.12, "what each further session adds to a draft step"),
        "plain-ms": (15.0, "t_b, a target step that verifies nothing"),
        "verify-ms": (18.0, "t_v, a target step that verifies 5 tokens"),
        "row-ms": (0.06, "what each row beyond 256 adds to a target step"),
        "network-ms": (1.0, "network per round"),
    }
    for name, (value, meaning) in options.items():
        plan.add_argument(f"--{name}", type=_positive, default=value, help=f"{meaning} (default {value:g})")
    plan.add_argument("--clients", type=_whole, default=64, help="clients of one verifier (default 64)")
    plan.add_argument("--batch", type=_whole, default=16, help="sessions that a step takes at most (default 16)")
    plan.add_argument("--most", type=_whole, default=6, help="drafts to try (default 6)")
    plan.add_argument("--seed", type=int, default=1)
    plan.add_argument("--plot", type=Path, help="where to draw tokens per second over drafts, as SVG")
    return parser


def crowd_of(asked: argparse.Namespace) -> Crowd:
    """Raises SystemExit where the numbers are no costs."""
    if asked.verify_ms < asked.plain_ms:
        raise SystemExit(
            f"--verify-ms {asked.verify_ms:g} is less than --plain-ms {asked.plain_ms:g}; measure both again"
        )
    if asked.alpha > 1:
        raise SystemExit(f"--alpha {asked.alpha:g} is no share; give one from 0 to 1")
    per_proposed = (asked.verify_ms - asked.plain_ms) / 5
    rig = Rig(
        draft=StepCost(asked.draft_ms / 1000, session=asked.draft_session_ms / 1000),
        target=replace(
            CROWDED.target, step=asked.plain_ms / 1000, proposed=per_proposed / 1000, row=asked.row_ms / 1000
        ),
        network=asked.network_ms / 1000,
    )
    return Crowd(clients=asked.clients, rig=rig, alpha=asked.alpha, seed=asked.seed, sessions=asked.batch, requests=2)


def table(found: list[Choice]) -> list[str]:
    plain = found[0].load.tokens_per_second
    lines = ["drafts   tokens/s   over plain   tokens/s per client   mean K   verifier busy   drafts busy"]
    for choice in found:
        load = choice.load
        lines.append(
            f"{choice.drafts:6} {load.tokens_per_second:10.0f} {load.tokens_per_second / plain:12.2f} "
            f"{load.speed:21.1f} {load.mean_k:8.2f} {load.target_busy:15.2f} {load.draft_busy:13.2f}"
        )
    return lines


def _positive(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is negative or no number; give 0 or more")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is none; give 1 or more")
    return value


def main() -> None:
    asked = arguments().parse_args()
    found = list(choices(crowd_of(asked), asked.most))
    print("\n".join(table(found)))
    best = advised(found)
    print(f"\nEnough: {best.drafts} per verifier, {best.load.tokens_per_second:.0f} tokens/s; more bring little more.")
    if asked.plot:
        from benchmarks.plots import plan_plot  # noqa: PLC0415  (drawing needs the group `bench`, a table does not)

        plan_plot([(choice.drafts, choice.load.tokens_per_second) for choice in found], asked.plot)
        print(f"drew {asked.plot}")


if __name__ == "__main__":
    main()
