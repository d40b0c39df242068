"""What `rpc` and `gateway_load` make of moments: what was added, and percentiles; and how streams tell engines who they
are."""

import json
import math

import pytest
from benchmarks.rpc import bytes_of_a_verify
from benchmarks.stage.added import added_ms, counted, first_added_ms, percentile
from benchmarks.stage.prompts import Told, prompt_of, told_by
from benchmarks.stage.streams import Stream, completion

ROUNDS = [(0.0, 0.02, 0.021, 0.039), (0.0405, 0.0605, 0.061, 0.079), (0.08, 0.1, 0.101, 0.119)]
"""20 ms for a guess, 18 for a verdict."""


def test_what_was_added_is_the_gap_less_what_the_engines_took() -> None:
    assert added_ms([0.040, 0.080, 0.1195], ROUNDS, skipped=1) == pytest.approx([2.0, 1.5])
    assert added_ms([0.040, 0.080, 0.1195], ROUNDS, skipped=2) == pytest.approx([1.5])
    assert first_added_ms(-0.001, [0.040], ROUNDS) == pytest.approx(3.0)


def test_percentiles_follow_from_counts() -> None:
    counts = counted([1.0, 2.004, 1.996, 10.0])
    assert counts == {"1.00": 1, "2.00": 2, "10.00": 1}
    assert [percentile(counts, share) for share in (0.25, 0.5, 0.75, 0.76, 1.0)] == [1.0, 2.0, 2.0, 10.0, 10.0]
    assert percentile({}, 0.5) == math.inf


@pytest.mark.parametrize("told", [Told(1030, 4.0, 18.0), Told(7, 0.5, None)])
def test_a_prompt_tells_who_asks_and_what_it_takes(told: Told) -> None:
    assert told_by(prompt_of(told)) == told


def test_events_are_counted_wherever_the_bytes_are_cut() -> None:
    sent = b'HTTP/1.1 200 OK\r\n\r\n9\r\ndata: {"a"}\n\n\r\ndata: {"b"}\n\ndata: {}\n\ndata: [DONE]\n\n'
    for cut in range(len(sent)):
        stream = Stream(b"")
        stream.data_received(sent[:cut])
        stream.data_received(sent[cut:])
        assert (len(stream.pieces(2)), stream.whole) == (2, True)
    refused = Stream(b"")
    refused.data_received(sent.replace(b"200", b"503"))
    assert refused.pieces(2) == []


def test_a_request_is_whole_http() -> None:
    head, _, body = completion(Told(1, 1.0, 2.0), tokens=30).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["max_tokens"] == 30


def test_a_coupled_verify_takes_at_most_128_bytes_each_way() -> None:
    assert max(bytes_of_a_verify()) <= 128
