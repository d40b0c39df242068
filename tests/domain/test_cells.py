"""What sessions of a segment share: choices that stand while nothing is said against them, and what is learnt late."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem_runtime.domain import cells
from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.cells import STANDS_ROUNDS, Lookahead, Shared
from tandem_runtime.domain.lookahead import Belief, Bounds, Choice, Mode, Rule
from tandem_runtime.domain.tokens import Round

BOUNDS = Bounds(1, 8)


def a_round(k: int, accepted: int, *, rows: int = 1, slowed: float = 1.0) -> Round:
    """t_d 4, t_v 18, o 1 and t_b 15 milliseconds."""
    forward, drafting = (0.018 if k else 0.015) * slowed, 0.004 * k * slowed
    seconds = forward + drafting + (0.001 if k else 0.0)
    return Round(k, accepted, accepted + 1, drafting, forward, forward, drafting, seconds=seconds, rows=rows)


def settled(alpha: int = 8, *, plain: bool = True) -> Shared:
    """A cell that knows its costs, of whose ten proposed tokens so many stood."""
    cell = Shared()
    lookahead = cell.begin()
    for number in range(200):
        lookahead.learn(a_round(1, int(number % 10 < alpha)), 0.0, warm=True)
        if plain:
            lookahead.learn(a_round(0, 0), 0.0, warm=True)
    return cell


def choose(lookahead: Lookahead, bounds: Bounds = BOUNDS, most: int = 8) -> Choice:
    return lookahead.choose(bounds, most, 0.0, warm=True)


def as_believed(choice: Choice) -> Round:
    """A round that surprises nobody: each position's credit is the chance that was believed."""
    before = (1.0, *choice.survivals)
    credits = tuple(after / earlier for after, earlier in zip(choice.survivals, before, strict=False))
    return replace(a_round(choice.k, choice.k), credits=credits)


def test_a_choice_stands_while_rounds_are_what_was_believed_and_then_is_made_anew() -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    for _ in range(STANDS_ROUNDS):
        assert choose(lookahead) is first
        lookahead.learn(as_believed(first), 0.0, warm=True)
    assert choose(lookahead) is not first


@pytest.mark.parametrize("accepted", [0, 8])
def test_a_choice_falls_as_soon_as_rounds_are_not_what_was_believed(accepted: int) -> None:
    lookahead, bounds = settled().begin(), Bounds(8, 8)
    first, rounds = choose(lookahead, bounds), 0
    while choose(lookahead, bounds) is first:
        lookahead.learn(a_round(8, accepted), 0.0, warm=True)
        rounds += 1
    assert rounds <= 2


@pytest.mark.parametrize(
    "other", [Bounds(1, 3), Bounds(1, 8, Mode.ALWAYS), Bounds(1, 8, min_gain=0.2), Bounds(1, 8, early_stop=True)]
)
def test_a_choice_stands_only_within_the_bounds_that_it_was_made_in(other: Bounds) -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    assert choose(lookahead, Bounds(1, 8)) is first
    assert choose(lookahead, other).why.bounds == other


def test_a_choice_stands_only_in_the_company_that_it_was_made_in() -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    lookahead.learn(replace(as_believed(first), rows=2), 0.0, warm=True)
    assert choose(lookahead).why.view.batch.rows == 2


def test_a_choice_that_stands_is_cut_to_the_room_and_whole_again() -> None:
    lookahead = settled().begin()
    first = choose(lookahead)
    cut = choose(lookahead, most=2)
    assert (cut.k, cut.survivals) == (2, first.survivals[:2])
    assert choose(lookahead) is first


def test_the_draft_looks_ahead_of_a_choice_that_stands_too() -> None:
    lookahead, bounds = settled().begin(), Bounds(1, 8, overlap=Overlap.ON)
    first = choose(lookahead, bounds)
    again = choose(lookahead, bounds)
    assert again.why is first.why
    assert again.outlook is not None


def test_what_is_ready_in_time_has_no_part_in_how_much_is_offered_where_there_is_one_k() -> None:
    lookahead, bounds = settled().begin(), Bounds(4, 4, overlap=Overlap.ON)
    choice = choose(lookahead, bounds)
    assert choice.outlook is not None
    assert (choice.k, len(choice.outlook.survivals), choice.outlook.enough) == (4, 4, None)


def test_what_is_not_learnt_yet_is_learnt_when_somebody_asks() -> None:
    cell = settled()
    lookahead = cell.begin()
    choice = choose(lookahead)
    before = cell.learnt
    lookahead.learn(a_round(choice.k, choice.k), 0.0, warm=True)
    assert cell.learnt is before
    assert cell.belief.acceptance.survivals(1) > before.acceptance.survivals(1)
    assert cell.belief is cell.learnt


def test_rounds_of_sessions_that_are_gone_are_learnt_from() -> None:
    cell = settled()
    cell.begin().learn(a_round(4, 0), 0.0, warm=True)
    assert cell.belief.acceptance.survivals(1) < cell.learnt.acceptance.survivals(1) or not cell._unlearnt
    assert cell.begin().belief is cell.learnt


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Belief]:
    """The beliefs that a function of the rule is asked about from now on."""
    asked: list[Belief] = []
    real: Callable[..., object] = getattr(cells, name)

    def counting(belief: Belief, *args: object, **named: object) -> object:
        asked.append(belief)
        return real(belief, *args, **named)

    monkeypatch.setattr(cells, name, counting)
    return asked


def test_a_plain_round_costs_no_prediction_unless_something_was_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    lookahead = settled(1).begin()
    assert choose(lookahead).why.rule is Rule.LOSES
    predicted, learnt = counted(monkeypatch, "predict"), counted(monkeypatch, "learn")
    for _ in range(STANDS_ROUNDS - 1):
        lookahead.learn(a_round(0, 0), 0.0, warm=False)
        assert not lookahead.wakes(0.0)
    assert (predicted, learnt) == ([], [])
    lookahead.hear(matched=0, examined=8)
    assert [lookahead.wakes(0.0) for _ in range(4)] == [False] * 4
    assert (len(predicted), len(learnt)) == (1, 1)


def test_a_session_wakes_once_its_draft_is_heard_to_be_right() -> None:
    lookahead = settled(1).begin()
    choose(lookahead)
    assert not lookahead.wakes(0.0)
    lookahead.hear(matched=64, examined=64)
    assert lookahead.wakes(0.0)
    assert lookahead.wakes(0.0)
    assert choose(lookahead).k > 0
