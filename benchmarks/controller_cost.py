"""Measures what the K rule itself costs the gateway: CPU time of a choice and of learning from a round.

Refuses to know engines: rounds are made before, noise of 5 % in their seconds included, so that nothing but the rule
runs between two readings of the CPU's clock. `make bench NAME=controller_cost`. A session plays against the flat rig's
costs: with a draft that pays, the same where the target tells credits, with one that loses, so that speculation is off
but for probes, with one that tells its confidence, so that proposals end early, and with one that drafts ahead, as
drafts do unless told otherwise; and sixteen sessions share steps and a belief. Where nothing is proposed, one choice is
followed by RUN_TOKENS plain tokens, as in service, and after each it is asked whether proposals pay by now, which
counts as learning. Sums are made as a gateway makes them on this machine, or (`--python`) as they are spelled out. What
a reading of the clock costs is taken off. Figures are medians over lots of LOT choices, in microseconds: of a choice,
of learning from a round, and of all that a round costs; beside them stands the share of choices that proposed, so that
a case is seen to be what it says.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.record import record
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.lessons import IN_PYTHON, Lessons
from tandem_runtime.domain.lookahead import Belief, Bounds
from tandem_runtime.domain.session import RUN_TOKENS
from tandem_runtime.domain.tokens import Ahead, Round
from tandem_runtime.native_lessons import beginning

SEED = 5
LOTS, LOT, WARM_UP_LOTS = 15, 1000, 3
MOST = 8
NOISE = 0.05
VARIANTS = 499
"""Of noise in the seconds of rounds that are otherwise alike."""
HITS, WASTED = 0.7, 8
"""How often what was drafted ahead is what the target said next, and how many tokens were for nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """A draft that is right with chance `alpha`, and what may be done with it."""

    alpha: float
    early_stop: bool = False
    credits: bool = False
    sessions: int = 1
    overlap: Overlap = Overlap.OFF

    @property
    def bounds(self) -> Bounds:
        return Bounds(1, MOST, early_stop=self.early_stop, overlap=self.overlap)


CASES = {
    "one_session": Case(0.8),
    "credits": Case(0.8, credits=True),
    "off": Case(0.1),
    "early_stop": Case(0.8, early_stop=True),
    "sixteen": Case(0.8, sessions=16),
    "ahead": Case(0.8, overlap=Overlap.AUTO),
}


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of CPU by call and of a round, and the share of choices that proposed."""

    choose: float
    learn: float
    round: float
    proposing: float

    def sample(self) -> dict[str, float]:
        told = {
            "choose_us": self.choose,
            "learn_us": self.learn,
            "round_us": self.round,
            "proposing": self.proposing,
        }
        return {name: round(value, 3) for name, value in told.items()}


def rounds(case: Case, chance: Random) -> list[list[Round]]:
    """By K: what may become of a round."""
    return [[_round(k, case, chance) for _ in range(VARIANTS)] for k in range(MOST + 1)]


def _round(k: int, case: Case, chance: Random) -> Round:
    def noisy(seconds: float) -> float:
        return seconds * chance.gauss(1, NOISE)

    proposed = min(k, chance.randint(1, MOST)) if case.early_stop else k
    accepted, credits = 0, [_credit(case, chance)]
    while accepted < proposed and chance.random() < credits[-1]:
        accepted += 1
        credits.append(_credit(case, chance))
    ahead = Ahead(chance.random() < HITS, WASTED) if proposed and case.overlap is Overlap.AUTO else None
    drafting = 0.0 if ahead and ahead.hit else noisy(0.004) * proposed
    forward = noisy(0.018 if proposed else 0.015)
    confidences = tuple(chance.randrange(256) for _ in range(min(accepted + 1, proposed))) if case.early_stop else ()
    return Round(
        proposed, accepted, accepted + 1, drafting, forward, forward, drafting,
        seconds=drafting + forward + (0.001 if proposed else 0.0), confidences=confidences,
        credits=tuple(credits[:min(accepted + 1, proposed)]) if case.credits else (),
        rows=case.sessions, draft_rows=case.sessions, beside=(case.sessions - 1) * proposed,
        ahead=ahead, prepares=ahead is not None,
    )  # fmt: skip


def _credit(case: Case, chance: Random) -> float:
    """The chance that a guess stands: alpha, or min(1, p/q) as it may be where its mean is an alpha of .5 or more."""
    if not case.credits:
        return case.alpha
    return 1.0 if chance.random() < 2 * case.alpha - 1 else chance.random()


def clock_cost(readings: int = 20_000) -> float:
    """Nanoseconds of CPU that one reading of its clock takes."""
    began = time.process_time_ns()
    for _ in range(readings):
        time.process_time_ns()
    return (time.process_time_ns() - began) / readings


def lot(
    sessions: Sequence[Lookahead], bounds: Bounds, outcomes: Sequence[Sequence[Round]], now: float, reading: float
) -> Spent:
    """What LOT choices cost, and learning from what followed."""
    choosing = learning = learned = proposing = 0
    for number in range(LOT):
        at, lookahead = now + number * 0.03 / len(sessions), sessions[number % len(sessions)]
        began = time.process_time_ns()
        choice = lookahead.choose(bounds, MOST, at, warm=True)
        choosing += time.process_time_ns() - began
        proposing += choice.k > 0
        for further in range(1 if choice.k else RUN_TOKENS):
            outcome = outcomes[choice.k][(number + further) % VARIANTS]
            began = time.process_time_ns()
            lookahead.learn(outcome, at, warm=True)
            if not choice.k:
                lookahead.wakes(at)
            learning, learned = learning + time.process_time_ns() - began, learned + 1
    choose, learn = (choosing / LOT - reading) / 1e3, (learning / learned - reading) / 1e3
    return Spent(choose, learn, choose * LOT / learned + learn, proposing / LOT)


def measure(case: Case, untaught: Lessons) -> list[Spent]:
    cell, outcomes, reading = Shared(Belief(untaught)), rounds(case, Random(SEED)), clock_cost()
    sessions = [cell.begin() for _ in range(case.sessions)]
    lots = [lot(sessions, case.bounds, outcomes, at * LOT * 0.03, reading) for at in range(WARM_UP_LOTS + LOTS)]
    return lots[WARM_UP_LOTS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="store_true", help="as where there is no C compiler; nothing is written")
    in_python = parser.parse_args().python
    begun = IN_PYTHON if in_python else beginning()
    print(f"sums: {begun.about}")
    figures: dict[str, float] = {}
    samples: dict[str, object] = {}
    print("case            choose    learn   together   proposing   microseconds of CPU a round")
    for name, case in CASES.items():
        lots = measure(case, begun.untaught)
        middle = {
            "choose_us": statistics.median(each.choose for each in lots),
            "learn_us": statistics.median(each.learn for each in lots),
            "round_us": statistics.median(each.round for each in lots),
        }
        figures |= {f"{name}_{figure}": round(value, 2) for figure, value in middle.items()}
        samples[name] = [each.sample() for each in lots]
        print(
            f"{name:12} {middle['choose_us']:9.1f} {middle['learn_us']:8.1f} {middle['round_us']:10.1f} "
            f"{statistics.median(each.proposing for each in lots):11.2f}",
            flush=True,
        )
    if in_python:
        return
    figures["worst_round_us"] = max(figures[f"{name}_round_us"] for name in CASES)
    print(record("controller_cost", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
