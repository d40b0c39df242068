"""A paced model has the wrapped model's results and the table's times."""

import pytest

from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.engines.pace import TABLES, Cost, PacedModel, cost_named
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.ports import Row


class StillClock:
    """Stands still but for sleep and for `compute_seconds` per pass of the wrapped model."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


def paced(compute_seconds: float, table: str) -> tuple[PacedModel, StillClock]:
    clock = StillClock()

    def slow_chain(prefix: tuple[int, ...]) -> list[float]:
        clock.now += compute_seconds
        return chain_logits(prefix)

    return PacedModel(ScriptedModel(slow_chain), cost_named(table), clock=clock, sleep=clock.sleep), clock


@pytest.mark.parametrize(
    ("table", "outputs", "milliseconds"),
    [
        ("h100-70b", (1,), 15.0),
        ("h100-70b", (1, 6, 0), 18.0),
        ("h100-70b", (0,), 15.0),
        ("l4-8b", (1, 1), 4.0),
        ("l4-8b", (9,), 4.0),
    ],
)
def test_a_step_costs_what_its_table_says(table: str, outputs: tuple[int, ...], milliseconds: float) -> None:
    rows = [Row(slot, 0, (1,) * 10, count) for slot, count in enumerate(outputs)]
    assert TABLES[table].seconds(rows) == pytest.approx(milliseconds / 1000)


def test_a_step_is_stretched_by_what_remains_and_both_times_are_kept() -> None:
    model, clock = paced(0.001, "l4-8b")
    slot, began = model.allocate(), clock.now
    [logits] = model.forward([Row(slot, 0, (1, 5), 1)])
    assert logits.tolist() == [chain_logits((1, 5))]
    assert clock.now - began == pytest.approx(0.004)
    assert model.steps == 1
    assert model.paced_seconds == pytest.approx(0.004)
    assert model.unpaced_seconds == pytest.approx(0.001)


def test_a_step_that_takes_longer_than_its_table_is_not_shortened() -> None:
    model, clock = paced(0.020, "h100-70b")
    began = clock.now
    model.forward([Row(model.allocate(), 0, (1,), 1)])
    assert clock.now - began == pytest.approx(0.020)
    assert model.paced_seconds == model.unpaced_seconds


def test_everything_else_is_the_wrapped_model() -> None:
    wrapped = ScriptedModel(chain_logits, max_length=10, max_sessions=1)
    clock = StillClock()
    model = PacedModel(wrapped, Cost(1, 0), clock=clock, sleep=clock.sleep)
    slot = model.allocate()
    model.forward([Row(slot, 0, (1, 2), 1)])
    told = (model.vocab_size, model.max_length, model.determinism, model.kv_used)
    assert told == (7, 10, "Bitwise", 0.2)
    model.release(slot)
    assert model.kv_used == 0


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelRefused, match=r"tpu-9.*h100-70b, l4-8b"):
        cost_named("tpu-9")
