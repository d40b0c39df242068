"""Engines under measurement, as processes: asked in turn, absent with a reason, late, or at fault."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.engine_processes import EngineProcess, Failed, Kind
from benchmarks.peers.lines import Absent, Setting

KIND = Kind("tests.seams.benchmark_peer", Path(sys.executable), Path("nowhere"), {}, of_one_way=False)
READY_SECONDS = 60


@contextmanager
def running(dtype: str = "whole") -> Iterator[EngineProcess]:
    with tempfile.TemporaryFile() as log:
        setting = Setting("nowhere", dtype, threads=1, way="", streams=2, length=64)
        process = EngineProcess(KIND, setting, log, limit_seconds=READY_SECONDS)
        try:
            yield process
        finally:
            process.end()


def test_an_engine_answers_questions_until_it_is_ended() -> None:
    with running() as process:
        first = process.ask([[1, 2], [7]], tokens=3, way="plain", limit_seconds=READY_SECONDS)
        again = process.ask([[4]], tokens=1, way="plain", limit_seconds=READY_SECONDS)
        assert [stream.ids for stream in (*first.streams, *again.streams)] == [[3, 4, 5], [8, 9, 10], [5]]
        assert [count for _, count in first.streams[0].events] == [1, 1, 1]
        assert 0 <= first.others_share <= 1
        assert process.about["about"] == "counts on from the last id of a prompt"
    assert not process.is_running


def test_an_engine_that_cannot_be_had_says_why() -> None:
    with pytest.raises(Absent, match="this machine lacks it"), running("absent"):
        pass


def test_a_fault_of_an_engine_is_its_answer_and_it_goes_on() -> None:
    with running() as process:
        with pytest.raises(Failed, match="ValueError: no such way"):
            process.ask([[1]], tokens=1, way="wrong", limit_seconds=READY_SECONDS)
        assert process.ask([[1]], tokens=1, way="plain", limit_seconds=READY_SECONDS).streams[0].ids == [2]


def test_an_engine_that_is_late_is_ended() -> None:
    with running() as process:
        with pytest.raises(Failed, match="no answer within 1 s"):
            process.ask([[1]], tokens=1, way="late", limit_seconds=1)
        assert not process.is_running
