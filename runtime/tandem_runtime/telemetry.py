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
    pods that are sick       tandem_resting_targets > 0 for longer than a restart takes; which, /v1/speculation says
    speed-up                 (tandem_decode_seconds_total / tandem_output_tokens_total of arm="off") / (same of "on")

`drafts` are rounds with something proposed, as in vLLM. Decode seconds are summed over sequences and leave out the
rounds that read a prompt; output tokens do not. What was proposed has one label more: by which `drafter`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.replay import Result
from tandem_runtime.domain.tokens import Round

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
        self._replays = _Counter(
            self.registry,
            "exactness_replays",
            "Finished answers by what their replay without speculation showed.",
            ("revision", "result"),
        )
        self._target_failures = _Counter(
            self.registry,
            "target_failures",
            "Sessions that a target gave out beneath: lost, late, or without a law for the next token.",
            ("revision", "kind"),
        )
        self._first = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_BUCKETS
        )
        self._between = self._histogram(
            "inter_token_latency_seconds", "Between two emissions of a sequence.", INTER_TOKEN_BUCKETS
        )

    def add_round(self, round: Round, *, revision: str, arm: Arm) -> None:
        self._output.add(round.emitted, revision, arm)
        if not round.prefill:
            self._decode.add(round.seconds, revision, arm)
            self._between.add(round.seconds, revision, arm)
        if round.proposed:
            drafter = round.drafter
            self._drafts.add(1, revision, arm, drafter)
            self._proposed.add(round.proposed, revision, arm, drafter)
            self._accepted.add(round.accepted, revision, arm, drafter)
            self._unjudged.add(round.unjudged, revision, arm, drafter)
            for position in range(round.accepted):
                self._positions.add(1, revision, arm, drafter, position)
        if round.ahead is not None:
            self._prepared.add(1, revision, arm, "hit" if round.ahead.hit else "miss")
            self._wasted.add(round.ahead.wasted, revision, arm)

    def add_first_token(self, seconds: float, *, revision: str, arm: Arm) -> None:
        self._first.add(seconds, revision, arm)

    def add_request(self, code: int, *, revision: str = NO_REVISION, arm: Arm = Arm.OFF) -> None:
        self._requests.add(1, revision, arm, code)

    def add_replay(self, result: Result, *, revision: str) -> None:
        self._replays.add(1, revision, result.value)

    def add_target_failure(self, kind: str, *, revision: str) -> None:
        self._target_failures.add(1, revision, kind)

    def watch_targets(self, resting: Callable[[], int]) -> None:
        """Show how many targets are left alone for their failures."""
        about = "Target pods that get no new sessions now because they failed, while others serve."
        Gauge("tandem_resting_targets", about, registry=self.registry).set_function(resting)

    def watch_keys(self, is_stale: Callable[[], bool]) -> None:
        """Show whether API keys are in force that their file does not say any more."""
        about = "1 while the file of API keys is of no use and what it said last is in force."
        Gauge("tandem_api_keys_stale", about, registry=self.registry).set_function(is_stale)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)

    def _counter(self, name: str, about: str, *more_labels: str) -> "_Counter":
        return _Counter(self.registry, name, about, (*LABELS, *more_labels))

    def _histogram(self, name: str, about: str, edges: tuple[float, ...]) -> "_Histogram":
        return _Histogram(self.registry, name, about, LABELS, edges)


class _Counter(Collector):
    """Sums by labels. The library's own lock each of theirs, for threads that a gateway has not, and a round has a
    dozen."""

    def __init__(self, registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...]) -> None:
        self._name, self._about, self._labels = f"tandem_{name}", about, labels
        self._sums: defaultdict[tuple[str | int, ...], float] = defaultdict(float)
        registry.register(self)

    def add(self, amount: float, *labels: str | int) -> None:
        self._sums[labels] += amount

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, total in self._sums.items():
            family.add_metric([str(label) for label in labels], total)
        return (family,)


class _Histogram(Collector):
    """Likewise: how often something was at most as much as each edge, and what all of it was."""

    def __init__(
        self, registry: CollectorRegistry, name: str, about: str, labels: tuple[str, ...], edges: tuple[float, ...]
    ) -> None:
        self._name, self._about, self._labels = f"tandem_{name}", about, labels
        self._edges = (*edges, inf)
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._counts: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * len(self._edges))
        registry.register(self)

    def add(self, value: float, *labels: str) -> None:
        self._sums[labels] += value
        self._counts[labels][bisect_left(self._edges, value)] += 1

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        names = [*map(str, self._edges[:-1]), "+Inf"]
        for labels, counts in self._counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([str(label) for label in labels], buckets, self._sums[labels])
        return (family,)
