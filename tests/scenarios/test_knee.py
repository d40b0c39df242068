"""A load that crosses the batch at which speculation stops to pay: it costs nothing above, and comes back below."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import pytest
from benchmarks.simulator.acceptance import chance, truth
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import Rig, Rows, StepCost
from benchmarks.simulator.oracle import Watched
from benchmarks.simulator.world import ANSWER_TOKENS, ON, Answer, Setting, World

from tandem_runtime.domain.lookahead import OFF, Bounds, Rule
from tandem_runtime.domain.tokens import TokenId

PLAIN = 0.015
MOST_THAT_PAY = 16


@dataclass(frozen=True, slots=True)
class Knee(StepCost):
    """A verify takes 18 ms whatever K is, up to 16 requests at a time; above, as long as K + 1 plain steps."""

    at_work: Counter[int] = field(default_factory=Counter)
    """The requests."""

    def seconds(self, parts: Rows) -> float:
        longest = max((part.proposed for part in parts), default=0)
        if not longest:
            return self.step
        return self.step * (1 + longest) if self.at_work.total() > MOST_THAT_PAY else self.step + self.verify


@dataclass(frozen=True, slots=True)
class Phase:
    clients: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Chosen:
    at: float
    k: int
    rule: Rule


@dataclass(slots=True)
class Course:
    """What was chosen in the phases, when each began, and what was said."""

    begins: list[float]
    chosen: list[Chosen] = field(default_factory=list)
    texts: dict[int, list[TokenId]] = field(default_factory=dict)
    tokens: list[float] = field(default_factory=list)
    """The moments of all."""

    def within(self, phase: int, after: float = 0.0) -> list[Chosen]:
        begins, ends = self.begins[phase] + after, self.begins[phase + 1]
        return [each for each in self.chosen if begins <= each.at < ends]

    def rate(self, phase: int, after: float) -> float:
        """Tokens per second."""
        begins, ends = self.begins[phase] + after, self.begins[phase + 1]
        return sum(begins <= at < ends for at in self.tokens) / (ends - begins)


class Crossing(World):
    """As many clients ask as the phase says."""

    course: Course
    at_work: Counter[int]

    async def ask(self, text: int) -> Answer:
        self.at_work[text] += 1
        try:
            return await super().ask(text)
        finally:
            self.at_work[text] -= 1

    def said(self, text: int, tokens: Sequence[TokenId]) -> None:
        self.course.texts.setdefault(text, []).extend(tokens)
        self.course.tokens.extend([self.clock.monotonic()] * len(tokens))

    async def client(self, number: int, phases: Sequence[Phase]) -> None:
        for place, phase in enumerate(phases):
            asked = 0
            while number < phase.clients and self.clock.monotonic() < self.course.begins[place + 1]:
                await self.ask(1000 * (100 * place + number) + asked)
                asked += 1
            await asyncio.sleep(max(0.0, self.course.begins[place + 1] - self.clock.monotonic()))


def crossed(phases: Sequence[Phase], bounds: Bounds = ON) -> Course:
    async def main() -> Course:
        rule = Watched()
        knee = Knee(PLAIN, verify=0.003)
        setting = Setting(seed=1, rig=Rig(target=knee, noise=0.02))
        world = Crossing(setting, acceptance=chance(1.0, 1), lookahead=rule, bounds=lambda: bounds)
        world.at_work = knee.at_work
        course = world.course = Course([*accumulate((phase.seconds for phase in phases), initial=0.0)])

        def note() -> None:
            course.chosen.append(Chosen(world.clock.monotonic(), rule.chosen[-1], rule.rules[-1]))

        rule.told = note
        await asyncio.gather(*(world.client(number, phases) for number in range(17)))
        return course

    return run_virtually(main)


@dataclass(frozen=True, slots=True)
class Both:
    on: Course
    off: Course


COLD = (Phase(17, 12.0),)
"""Nothing was known below."""
PHASES = (Phase(8, 4), Phase(17, 8), Phase(16, 5), Phase(17, 5), Phase(16, 5), Phase(17, 5), Phase(8, 5))
FIRST_ABOVE, LAST_BELOW = 1, len(PHASES) - 1
ALL_JUDGED = 3.0
"""Seconds: what newcomers proposed before anything was known above is judged as their prompts are read, each in a step
of its own of .26 s."""


@pytest.fixture(scope="module")
def both() -> Both:
    return Both(crossed(PHASES), crossed(PHASES, OFF))


def test_above_the_knee_only_probes_propose_and_a_step_costs_what_it_costs_without() -> None:
    cold, settled = Both(crossed(COLD), crossed(COLD, OFF)), 6.0
    assert {each.rule for each in cold.on.within(0, settled) if each.k} <= {Rule.PROBE}
    assert cold.on.rate(0, settled) >= 0.98 * cold.off.rate(0, settled)


def test_who_comes_from_below_stops_and_asks_for_nothing_but_probes(both: Both) -> None:
    """Below, K was the same in all rounds, so what one guess costs was never seen, and a probe of one says too little
    of sixteen: they are not tried again for it."""
    settled = both.on.within(FIRST_ABOVE, ALL_JUDGED)
    assert {each.rule for each in settled if each.k} <= {Rule.PROBE}
    assert sum(each.k > 0 for each in settled) <= 0.02 * len(settled)
    assert both.on.rate(FIRST_ABOVE, ALL_JUDGED) >= 0.98 * both.off.rate(FIRST_ABOVE, ALL_JUDGED)


@pytest.mark.parametrize("place", range(FIRST_ABOVE + 1, LAST_BELOW))
def test_a_load_that_stays_about_the_knee_costs_what_it_costs_without(both: Both, place: int) -> None:
    assert {each.rule for each in both.on.within(place) if each.k} <= {Rule.PROBE}
    assert both.on.rate(place, 0.0) >= 0.98 * both.off.rate(place, 0.0)


def test_below_it_drafting_begins_again(both: Both) -> None:
    for place in (0, LAST_BELOW):
        assert both.on.rate(place, 2.0) >= 2 * both.off.rate(place, 2.0)


def test_a_load_that_moves_over_the_knee_and_back_makes_nobody_begin_and_end_in_turns(both: Both) -> None:
    for place in range(len(PHASES)):
        chosen = both.on.within(place)
        assert sum((one.k > 0) != (other.k > 0) for one, other in pairwise(chosen)) <= 0.05 * len(chosen), place


def test_what_is_said_is_the_same_whatever_was_crossed(both: Both) -> None:
    for said in (*both.on.texts.values(), *both.off.texts.values()):
        assert said == [truth(position) for position in range(ANSWER_TOKENS)]
