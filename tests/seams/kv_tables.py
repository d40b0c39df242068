"""Blocks of a model's memory for tests that step it themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from tandem_runtime.domain.blocks import BlockId, Table
from tandem_runtime.ports import StepModel


def own_blocks(model: StepModel) -> tuple[BlockId, ...]:
    """For one sequence at full length, for good."""
    table = Table(None)
    assert model.blocks.extend(table, model.max_length) == ()
    return tuple(table.blocks)


@contextmanager
def lent_blocks(model: StepModel) -> Iterator[tuple[BlockId, ...]]:
    """For one sequence at full length, while the block lasts."""
    table = Table(None)
    assert model.blocks.extend(table, model.max_length) == ()
    yield tuple(table.blocks)
    model.blocks.roll_back(table, 0)
