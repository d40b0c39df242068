"""What it takes to propose again: more where many share a step or the batch is strange; hope, where nobody scores."""

import random
from dataclasses import replace
from statistics import pstdev

import pytest
from tests.domain.known_pair import WIDE, costs, firm, plane

from tandem_runtime.domain.acceptance import UNKNOWN
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.costs import learned
from tandem_runtime.domain.lessons import Batch, Prediction, SpelledOut, View
from tandem_runtime.domain.lookahead import PROBE_LOSS, RETURN, Belief, Rule, choose, pays


def test_coming_back_needs_more_in_a_crowd_and_no_more_among_few() -> None:
    found = Prediction(3, 1.08)
    assert [pays(found, WIDE, 0, rows) for rows in (1, 4, 16, 64)] == [True, True, False, False]
    assert [pays(Prediction(3, 1.105), WIDE, 0, rows) for rows in (16, 64)] == [True, False]
    assert pays(found, WIDE, 3, 64), "to stay on needs no more than the least gain"


@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_the_margin_is_two_deviations_of_what_a_crowd_believes_its_steps_to_take(rows: int) -> None:
    """Each step takes 5 % more or less for all its sessions alike, and each of them teaches it."""
    chance, believed, known = random.Random(7), list[float](), plane(15)
    for step in range(500):
        seconds = 0.015 * chance.gauss(1, 0.05)
        for _ in range(rows):
            known = learned(known, seconds, 0, rows, 0.015 * step)
        believed.append(known.seconds(0, rows) / 0.015)
    margin = max(RETURN, 2 * pstdev(believed[100:]))
    needed = WIDE.min_gain + margin
    assert not pays(Prediction(3, 1 + 0.9 * needed), WIDE, 0, rows)
    assert pays(Prediction(3, 1 + 1.15 * needed), WIDE, 0, rows)


def test_proposing_does_not_begin_again_by_costs_that_were_measured_at_another_batch() -> None:
    """What a verify takes of 16 sessions is known; of one it is known to a quarter."""
    measured = plane(18)._replace(p02=-15 * 1e-7, p22=1e-7, p00=225 * 1e-7 + 1e-8)
    known = Belief(SpelledOut(firm(0.6), replace(costs(), forward=measured)), 0)
    assert choose(known, WIDE, 0.0, View(batch=Batch(16)))[0].why.rule is Rule.PAYS
    assert choose(known, WIDE, 0.0, View(batch=Batch(1)))[0].why.rule is Rule.LOSES
    assert choose(known, WIDE, 0.0, View(batch=Batch(1), k=4))[0].why.rule is Rule.PAYS


def test_a_crowd_that_met_dear_steps_waits_there_and_half_as_many_do_not() -> None:
    dear, cheap = (Belief(SpelledOut(firm(1.0), costs(t_v=t_v))) for t_v in (300, 18))
    crowd = Batch(17)
    _, stopped = choose(dear, WIDE, 0.0, View(batch=crowd, k=16))
    assert (stopped.k, stopped.dear_rows) == (0, 17)
    looks_cheap = stopped._replace(lessons=cheap.lessons)

    def rule(rows: int, now: float) -> Rule:
        return choose(looks_cheap, WIDE, now, View(batch=Batch(rows), k=0))[0].why.rule

    assert [rule(rows, 1.0) for rows in (17, 9, 8, 1)] == [Rule.LOSES, Rule.LOSES, Rule.PAYS, Rule.PAYS]
    assert stopped.dear_until > 17 * (0.300 + 16 * 0.004 - 17 * 0.015) / PROBE_LOSS, "not all guesses stand"
    assert [rule(17, stopped.dear_until + late) for late in (-1.0, 0.0)] == [Rule.LOSES, Rule.PAYS]


@pytest.mark.parametrize(("rows", "t_v"), [(1, 300), (17, 40)])
def test_nobody_waits_who_was_alone_or_whose_steps_were_of_the_order_of_plain_ones(rows: int, t_v: float) -> None:
    losing = Belief(SpelledOut(firm(0.3), costs(t_v=t_v)))
    _, stopped = choose(losing, WIDE, 0.0, View(batch=Batch(rows), k=2))
    assert stopped.k == stopped.dear_rows == 0


def test_a_session_that_hears_well_of_its_draft_goes_on_alone_while_its_crowd_waits() -> None:
    shared = Shared(Belief(SpelledOut(firm(1.0), costs(t_v=300))))
    shared.batch = Batch(17)
    session = shared.begin()
    assert session.choose(WIDE, 16, 0.0, warm=True).why.rule is Rule.LOSES
    heard = SpelledOut(firm(1.0), costs(), told=shared.belief.lessons.told + 1)
    shared.belief = shared.belief._replace(lessons=heard)
    assert not session.wakes(1.0)
    shared.belief = shared.belief._replace(dear_until=0.5, lessons=heard._replace(told=heard.told + 1))
    assert session.wakes(1.0)


def test_where_nobody_scores_hope_grows_with_each_wait_for_a_probe_until_there_is_one() -> None:
    known, rules = Belief(SpelledOut(UNKNOWN.heard(matched=0, examined=400), costs()), 0), []
    while Rule.PROBE not in rules:
        choice, known = choose(known._replace(plain_rounds=1 << 20), WIDE, 0.0, View())
        rules.append(choice.why.rule)
    assert 2 < len(rules) < 8
    assert rules[:-1] == [Rule.LOSES] * (len(rules) - 1)
