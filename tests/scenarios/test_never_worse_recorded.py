"""Recorded texts, asked by one client and by a crowd: a draft that was hardly ever right costs next to nothing."""

import pytest
from benchmarks.never_worse import serve_trace, traced
from benchmarks.simulator.acceptance import Recorded, recorded_traces

from tandem_runtime.domain.lookahead import OFF

TRACES = {trace.name: trace for trace in recorded_traces()}


def test_a_recorded_draft_that_is_hardly_ever_right_costs_less_than_a_hundredth() -> None:
    figures, samples = traced([TRACES["tiny-poor-rejection"]], seeds=1)
    assert set(figures) == set(samples) == {"trace_1_tiny-poor-rejection", "trace_16_tiny-poor-rejection"}
    assert min(figures.values()) >= 0.99


@pytest.mark.parametrize("clients", [1, 16])
def test_texts_of_a_trace_are_as_long_as_they_were(clients: int) -> None:
    trace = TRACES["smollm2-int8"]
    short = Recorded(trace.name, trace.how, trace.drafter, trace.texts[:4])
    books = serve_trace(short, clients, 1, OFF)
    assert {answer.tokens for answer in books.answers} == {len(text.bits) for text in short.texts}
