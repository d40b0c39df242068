"""Knows the Prometheus metrics of a gateway: counters per (revision, arm), numerators and denominators, never ratios.

Refuses to know what they are judged by: the operator reads `/internal/evidence`; these are for dashboards.

    acceptance of proposed   sum by (revision) (rate(tandem_spec_decode_num_accepted_tokens_total[5m]))
                           / sum by (revision) (rate(tandem_spec_decode_num_draft_tokens_total[5m]))
    left out by targets      tandem_spec_decode_num_unjudged_tokens_total above: neither accepted nor rejected
    mean accepted length     1 + accepted tokens / drafts, the same way with tandem_spec_decode_num_drafts_total
    hits of overlap          sum by (revision) (rate(tandem_ahead_proposals_total{result="hit"}[5m])) over the same
                             without result; tandem_ahead_wasted_tokens_total beside
    broken exactness         sum by (revision) (increase(tandem_exactness_replays_total{result="different"}[1h])) > 0
    keys that cannot be read tandem_api_keys_stale > 0, of gateways that ask for keys
    speed-up                 (tandem_decode_seconds_total / tandem_output_tokens_total of arm="off") / (same of "on")

`drafts` are rounds with something proposed, as in vLLM. Decode seconds are summed over sequences and leave out the
rounds that read a prompt; output tokens do not. What was proposed has one label more: by which `drafter`.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.replay import Result
from tandem_runtime.domain.tokens import Round

Metric = TypeVar("Metric", Counter, Histogram)

LABELS = ("revision", "arm")
NO_REVISION = ""
"""The label of a request that was refused before a revision was chosen."""
FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """All metrics in one registry of their own, so that two gateways in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._drafts = self._counter("spec_decode_num_drafts", "Rounds with at least one proposed token.", "drafter")
        self._proposed = self._counter("spec_decode_num_draft_tokens", "Proposed tokens.", "drafter")
        self._accepted = self._counter(
            "spec_decode_num_accepted_tokens", "Proposed tokens that the target accepted.", "drafter"
        )
        self._unjudged = self._counter(
            "spec_decode_num_unjudged_tokens",
            "Proposed tokens that a target left out, for want of room in its step.",
            "drafter",
        )
        self._positions = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by position in the proposal.",
            "drafter",
            "position",
        )
        self._prepared = self._counter(
            "ahead_proposals", "Proposals that something was drafted ahead for, by whether it was of use.", "result"
        )
        self._wasted = self._counter("ahead_wasted_tokens", "Tokens drafted ahead for what did not happen.")
        self._output = self._counter("output_tokens", "Tokens of answers, end tokens included.")
        self._decode = self._counter("decode_seconds", "Seconds of decoding, summed over sequences.")
        self._requests = self._counter("requests", "Requests by HTTP status; 499 is a caller that left.", "code")
        self._replays = Counter(
            "tandem_exactness_replays",
            "Finished answers by what their replay without speculation showed.",
            ("revision", "result"),
            registry=self.registry,
        )
        self._first = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_BUCKETS
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "Between two emissions of a sequence.", INTER_TOKEN_BUCKETS
        )

    def add_round(self, round: Round, *, revision: str, arm: Arm) -> None:
        self._output.of(revision, arm).inc(round.emitted)
        if not round.prefill:
            self._decode.of(revision, arm).inc(round.seconds)
            self._between.of(revision, arm).observe(round.seconds)
        if round.proposed:
            labels = revision, arm, round.drafter
            self._drafts.of(*labels).inc()
            self._proposed.of(*labels).inc(round.proposed)
            self._accepted.of(*labels).inc(round.accepted)
            self._unjudged.of(*labels).inc(round.unjudged)
            for position in range(round.accepted):
                self._positions.of(*labels, position).inc()
        if round.ahead is not None:
            self._prepared.of(revision, arm, "hit" if round.ahead.hit else "miss").inc()
            self._wasted.of(revision, arm).inc(round.ahead.wasted)

    def add_first_token(self, seconds: float, *, revision: str, arm: Arm) -> None:
        self._first.of(revision, arm).observe(seconds)

    def add_request(self, code: int, *, revision: str = NO_REVISION, arm: Arm = Arm.OFF) -> None:
        self._requests.of(revision, arm, code).inc()

    def add_replay(self, result: Result, *, revision: str) -> None:
        self._replays.labels(revision, result.value).inc()

    def watch_keys(self, is_stale: Callable[[], bool]) -> None:
        """Show whether API keys are in force that their file does not say any more."""
        about = "1 while the file of API keys is of no use and what it said last is in force."
        Gauge("tandem_api_keys_stale", about, registry=self.registry).set_function(is_stale)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *more_labels: str) -> "_Labelled[Counter]":
        return _Labelled(Counter(f"tandem_{name}", help_text, (*LABELS, *more_labels), registry=self.registry))

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> "_Labelled[Histogram]":
        return _Labelled(Histogram(f"tandem_{name}", help_text, LABELS, buckets=buckets, registry=self.registry))


class _Labelled(Generic[Metric]):
    """A metric whose cells are kept by their labels: the library makes texts of all of them, under a lock, at each
    look-up, and a round has a dozen."""

    def __init__(self, metric: Metric) -> None:
        self._metric: Metric = metric
        self._cells: dict[tuple[str | int, ...], Metric] = {}

    def of(self, *labels: str | int) -> Metric:
        cell = self._cells.get(labels)
        if cell is None:
            cell = self._cells[labels] = self._metric.labels(*labels)
        return cell
