"""Knows the Prometheus metrics of a gateway: counters per (revision, arm), numerators and denominators, never ratios.

Refuses to know what they are judged by: the operator reads `/internal/evidence`; these are for dashboards.

    acceptance of proposed   sum by (revision) (rate(tandem_spec_decode_num_accepted_tokens_total[5m]))
                           / sum by (revision) (rate(tandem_spec_decode_num_draft_tokens_total[5m]))
    left out by targets      tandem_spec_decode_num_unjudged_tokens_total above: neither accepted nor rejected
    mean accepted length     1 + accepted tokens / drafts, the same way with tandem_spec_decode_num_drafts_total
    target steps per token   sum by (revision) (rate(tandem_rounds_total[5m])) / (same of tandem_output_tokens_total)
    proposals that stand whole tandem_spec_decode_num_full_proposals_total / tandem_spec_decode_num_drafts_total
    which K, and how often   tandem_round_proposed_tokens, a histogram; le="0" are rounds of plain decoding
    where time goes          sum by (revision, stage) (rate(tandem_stage_seconds_total[5m])) over decode seconds, of
                             which it is the parts
    hits of overlap          sum by (revision) (rate(tandem_ahead_proposals_total{result="hit"}[5m])) over the same
                             without result; tandem_ahead_wasted_tokens_total beside
    broken exactness         sum by (revision) (increase(tandem_exactness_replays_total{result="different"}[1h])) > 0
    keys that cannot be read tandem_api_keys_stale > 0, of gateways that ask for keys
    pods that are sick       tandem_resting_targets > 0 for longer than a restart takes; which, /v1/speculation says
    how full a gateway is    tandem_gateway_sessions, and tandem_gateway_waiting_requests in its line
    speed-up                 (tandem_decode_seconds_total / tandem_output_tokens_total of arm="off") / (same of "on")

`drafts` are rounds with something proposed, as in vLLM. Decode seconds are summed over sequences and leave out the
rounds that read a prompt; output tokens and the number of rounds do not. What was proposed has one label more: by
which `drafter`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tandem_runtime.domain.evidence import Arm
from tandem_runtime.domain.replay import Result
from tandem_runtime.domain.tokens import Drafter, Round

LABELS = ("revision", "arm")
NO_REVISION = ""
"""The label of a request that was refused before a revision was chosen."""
FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
PROPOSED_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
STAGES = ("draft", "draft_network", "queue", "verify", "target_network", "gateway")
"""What a round's time is made of: the draft's work and the way there and back; in the target's line and its step, and
the way there and back; and what is left, the gateway's own."""


class Metrics:
    """All metrics in one registry of their own, so that two gateways in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rounds = _Rounds(self.registry)
        about = "Requests by HTTP status; 499 is a caller that left."
        self._requests = _Counter(self.registry, "requests", about, (*LABELS, "code"))
        about = "Finished answers by what their replay without speculation showed."
        self._replays = _Counter(self.registry, "exactness_replays", about, ("revision", "result"))
        about = "Sessions that a target gave out beneath: lost, late, or without a law for the next token."
        self._target_failures = _Counter(self.registry, "target_failures", about, ("revision", "kind"))
        about = "From the request to its first token."
        self._first = _Histogram(self.registry, "time_to_first_token_seconds", about, FIRST_TOKEN_BUCKETS)

    def add_round(self, round: Round, *, revision: str, arm: Arm) -> None:
        self._rounds.places[revision, arm].add(round)

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

    def watch_room(self, sessions: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Show how full a gateway is at the moment of asking."""
        about = "Choices in progress."
        Gauge("tandem_gateway_sessions", about, registry=self.registry).set_function(sessions)
        about = "Requests that wait until there is room for their choices."
        Gauge("tandem_gateway_waiting_requests", about, registry=self.registry).set_function(waiting)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)


class _Counter(Collector):
    """Sums by labels. The library's own lock each of theirs, for threads that a gateway has not."""

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

    def __init__(self, registry: CollectorRegistry, name: str, about: str, edges: tuple[float, ...]) -> None:
        self._name, self._about, self._edges = f"tandem_{name}", about, edges
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._counts: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (len(edges) + 1))
        registry.register(self)

    def add(self, value: float, *labels: str) -> None:
        self._sums[labels] += value
        self._counts[labels][bisect_left(self._edges, value)] += 1

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=LABELS)
        for labels, counts in self._counts.items():
            family.add_metric([str(label) for label in labels], _buckets(self._edges, counts), self._sums[labels])
        return (family,)


def _buckets(edges: Sequence[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    """As Prometheus has them: each holds what all before it hold."""
    return list(zip([*map(str, edges), "+Inf"], accumulate(counts), strict=True))


class _Proposals:
    """The proposals of one drafter in one place."""

    __slots__ = ("by_accepted", "full", "proposed", "unjudged")

    def __init__(self) -> None:
        self.proposed = self.unjudged = self.full = 0
        self.by_accepted: defaultdict[int, int] = defaultdict(int)
        """How many had so many tokens accepted: drafts, accepted tokens and those by position are read off it."""

    def add(self, round: Round) -> None:
        self.proposed += round.proposed
        self.unjudged += round.unjudged
        self.full += round.accepted == round.proposed
        self.by_accepted[round.accepted] += 1

    def by_position(self) -> list[int]:
        """How often the token at each position was accepted."""
        return [
            sum(count for accepted, count in self.by_accepted.items() if accepted > position)
            for position in range(max(self.by_accepted))
        ]


class RoundSums:
    """Of the rounds of one (revision, arm), found by one look-up as they are two dozen numbers, or of one request."""

    __slots__ = (
        "by_proposed",
        "decode",
        "draft",
        "draft_network",
        "gaps",
        "gateway",
        "hits",
        "misses",
        "output",
        "proposals",
        "queue",
        "target_network",
        "verify",
        "wasted",
    )

    def __init__(self) -> None:
        self.output = self.hits = self.misses = self.wasted = 0
        self.decode = 0.0
        self.draft = self.draft_network = self.queue = self.verify = self.target_network = self.gateway = 0.0
        self.gaps = [0] * (len(INTER_TOKEN_BUCKETS) + 1)
        self.by_proposed: defaultdict[int, int] = defaultdict(int)
        self.proposals: defaultdict[Drafter, _Proposals] = defaultdict(_Proposals)

    def add(self, round: Round) -> None:
        self.output += round.emitted
        self.by_proposed[round.proposed] += 1
        if not round.prefill:
            self.decode += round.seconds
            self.gaps[bisect_left(INTER_TOKEN_BUCKETS, round.seconds)] += 1
            self._add_stages(round)
        if round.proposed:
            self.proposals[round.drafter].add(round)
        if round.ahead is not None:
            self.hits += round.ahead.hit
            self.misses += not round.ahead.hit
            self.wasted += round.ahead.wasted

    def _add_stages(self, round: Round) -> None:
        """The parts of `seconds`. Of what a draft did ahead, or a target while the caller was slow to read, only what
        the round waited for; each part is a sum of its own, as a difference of sums could shrink by rounding."""
        if round.draft_seconds:
            drafting = min(round.drafting_seconds, round.draft_seconds)
            self.draft += drafting
            self.draft_network += round.draft_seconds - drafting
        told = round.queue_seconds + round.forward_seconds
        self.queue += round.queue_seconds
        self.verify += round.forward_seconds
        if round.verify_seconds > told:
            self.target_network += round.verify_seconds - told
        rest = round.seconds - round.draft_seconds - round.verify_seconds
        if rest > 0:
            self.gateway += rest

    def accepted(self) -> int:
        return sum(tokens * count for each in self.proposals.values() for tokens, count in each.by_accepted.items())

    def stages(self) -> Iterable[tuple[str, float]]:
        return ((stage, getattr(self, stage)) for stage in STAGES)


class _Rounds(Collector):
    """All that is told of rounds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.places: defaultdict[tuple[str, Arm], RoundSums] = defaultdict(RoundSums)
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        yield from self._of_places()
        yield from self._of_proposals()
        yield from self._of_positions()

    def _of_places(self) -> Iterable[Metric]:
        rounds = _counter("rounds", "Rounds of all kinds, also those with nothing proposed.")
        output = _counter("output_tokens", "Tokens of answers, end tokens included.")
        decode = _counter("decode_seconds", "Seconds of decoding, summed over sequences.")
        stages = _counter("stage_seconds", "Decode seconds by what they were spent on.", "stage")
        prepared = _counter(
            "ahead_proposals", "Proposals that something was drafted ahead for, by whether it was of use.", "result"
        )
        wasted = _counter("ahead_wasted_tokens", "Tokens drafted ahead for what did not happen.")
        gaps = _histogram("inter_token_latency_seconds", "Between two emissions of a sequence.")
        sizes = _histogram("round_proposed_tokens", "Tokens proposed in a round; none in plain decoding.")
        for (revision, arm), place in self.places.items():
            labels = [revision, arm.value]
            rounds.add_metric(labels, sum(place.by_proposed.values()))
            output.add_metric(labels, place.output)
            decode.add_metric(labels, place.decode)
            for stage, seconds in place.stages():
                stages.add_metric([*labels, stage], seconds)
            for result, count in (("hit", place.hits), ("miss", place.misses)):
                prepared.add_metric([*labels, result], count)
            wasted.add_metric(labels, place.wasted)
            gaps.add_metric(labels, _buckets(INTER_TOKEN_BUCKETS, place.gaps), place.decode)
            sizes.add_metric(labels, *_sizes(place.by_proposed))
        return rounds, output, decode, stages, prepared, wasted, gaps, sizes

    def _of_proposals(self) -> Iterable[Metric]:
        drafts = _counter("spec_decode_num_drafts", "Rounds with at least one proposed token.", "drafter")
        proposed = _counter("spec_decode_num_draft_tokens", "Proposed tokens.", "drafter")
        accepted = _counter("spec_decode_num_accepted_tokens", "Proposed tokens that the target accepted.", "drafter")
        about = "Proposed tokens that a target left out, for want of room in its step."
        unjudged = _counter("spec_decode_num_unjudged_tokens", about, "drafter")
        full = _counter("spec_decode_num_full_proposals", "Proposals of which every token was accepted.", "drafter")
        for labels, proposals in self._proposals():
            counts = proposals.by_accepted
            drafts.add_metric(labels, sum(counts.values()))
            proposed.add_metric(labels, proposals.proposed)
            accepted.add_metric(labels, sum(tokens * count for tokens, count in counts.items()))
            unjudged.add_metric(labels, proposals.unjudged)
            full.add_metric(labels, proposals.full)
        return drafts, proposed, accepted, unjudged, full

    def _of_positions(self) -> Iterable[Metric]:
        about = "Accepted tokens by position in the proposal."
        positions = _counter("spec_decode_num_accepted_tokens_per_pos", about, "drafter", "position")
        for labels, proposals in self._proposals():
            for position, count in enumerate(proposals.by_position()):
                positions.add_metric([*labels, str(position)], count)
        return (positions,)

    def _proposals(self) -> Iterator[tuple[list[str], _Proposals]]:
        for (revision, arm), place in self.places.items():
            for drafter, proposals in place.proposals.items():
                yield [revision, arm.value, drafter.value], proposals


def _sizes(by_proposed: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """The buckets of K, and what all of it was."""
    counts = [0] * (len(PROPOSED_BUCKETS) + 1)
    for tokens, count in by_proposed.items():
        counts[bisect_left(PROPOSED_BUCKETS, tokens)] += count
    return _buckets(PROPOSED_BUCKETS, counts), sum(tokens * count for tokens, count in by_proposed.items())


def _counter(name: str, about: str, *more_labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"tandem_{name}", about, labels=(*LABELS, *more_labels))


def _histogram(name: str, about: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"tandem_{name}", about, labels=LABELS)
