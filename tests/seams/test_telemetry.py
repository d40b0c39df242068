"""What a gateway's own sums show to Prometheus is what the library's counters and histograms would."""

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.tokens import Round
from tandem_runtime.telemetry import FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS, LABELS, Metrics

Shown = dict[tuple[str, frozenset[tuple[str, str]]], float]


def shown(text: bytes, *names: str) -> Shown:
    """All samples of these metrics but the moments at which the library's began."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if family.name in names and not sample.name.endswith("_created")
    }


def test_times_fall_into_the_buckets_of_the_librarys_histogram() -> None:
    ours, theirs, chance = Metrics(), CollectorRegistry(), random.Random(5)
    names = ("tandem_time_to_first_token_seconds", "tandem_inter_token_latency_seconds")
    edges = (FIRST_TOKEN_BUCKETS, INTER_TOKEN_BUCKETS)
    first, between = (
        Histogram(name, "x", LABELS, buckets=each, registry=theirs) for name, each in zip(names, edges, strict=True)
    )
    times = [chance.expovariate(10) for _ in range(200)] + [*FIRST_TOKEN_BUCKETS, *INTER_TOKEN_BUCKETS, 100.0]
    for seconds in times:
        arm = chance.choice([Arm.ON, Arm.OFF])
        ours.add_first_token(seconds, revision="r", arm=arm)
        first.labels("r", arm).observe(seconds)
        ours.add_round(Round(0, 0, 1, 0.0, 0.0, seconds=seconds), revision="r", arm=arm)
        between.labels("r", arm).observe(seconds)
    assert shown(ours.render(), *names) == pytest.approx(shown(generate_latest(theirs), *names))


def test_what_was_proposed_is_counted_as_by_the_librarys_counters() -> None:
    ours, theirs = Metrics(), CollectorRegistry()
    name = "tandem_spec_decode_num_accepted_tokens_per_pos"
    positions = Counter(name, "x", (*LABELS, "drafter", "position"), registry=theirs)
    for accepted in (3, 0, 1):
        ours.add_round(Round(4, accepted, accepted + 1, 0.0, 0.0), revision='a "b"', arm=Arm.ON)
        for position in range(accepted):
            positions.labels('a "b"', Arm.ON, "Model", position).inc()
    assert shown(ours.render(), name) == shown(generate_latest(theirs), name)
    assert len(shown(ours.render(), name)) == 3
