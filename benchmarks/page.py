"""Knows which committed figures docs/benchmarks.md tells, and writes its tables: `python -m benchmarks.page`.

Refuses to measure. What stands between two marks on the page is drawn from `benchmarks/results` and
`benchmarks/traces`; a test compares, so that the page never tells other figures than those that are committed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS
from benchmarks.recorded import Outcomes, Trace, read_traces

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure of a result, what it is, and what it must be where a target is set."""

    figure: str
    told: str
    must: str = ""


SCALE = (
    Headline("apply_p99_s", "seconds from an edit to its child, the second longest of a hundred", "≤ 2"),
    Headline("steady_writes", "API writes of objects at rest, with traffic, but Leases", "0"),
    Headline("rss_mb", "memory of the operator at rest, MB", "≤ 300"),
    Headline("restart_s", "seconds from a new process until every object is at rest again", "≤ 60"),
    Headline("steady_cores", "processors that the operator uses at rest"),
)
HEADLINES: Mapping[str, tuple[Headline, ...]] = {
    "canary_power": (
        Headline("false_abort_upper", "canaries equal to stable that any check refuses, upper 95 % bound", "≤ .05"),
        Headline("power_drop_5_at_2000", "drops of 5 points found within 2,000 requests of the canary", "≥ .90"),
        Headline("requests_to_drop_5_median", "requests of the canary until then, median"),
        Headline("requests_to_promotion_median", "requests of an equal canary until its promotion, median"),
        Headline("naive_abort_rate", "equal canaries that a z test at every look refuses", "> .15"),
        Headline("pooled_abort_rate", "that sums pooled over the weights refuse", "> .50"),
        Headline(
            "parts_false_abort_upper", "equal canaries refused where segments and stutter are checked too", "≤ .05"
        ),
        Headline("power_segment_drop_at_2000", "15 points less in a seventh of the traffic, found likewise"),
        Headline("requests_to_segment_drop_median", "requests of the canary until then, median"),
    ),
    "capacity": (
        Headline("clients_ratio", "clients of one verifier at equal speed, drafts elsewhere over on it", "≥ 1.9"),
        Headline("clients_ratio_over_plain", "the same over plain decoding"),
    ),
    "controller": (
        Headline("share_constant_0.8", "of the oracle's speed at a constant alpha of .8", "≥ .98"),
        Headline("share_constant_0.3", "at .3", "≥ .95"),
        Headline("share_every_300", ".9 and .5 in turns of 300 cycles", "≥ .95"),
        Headline("share_every_40", "in turns of 40", "≥ .90"),
        Headline("share_four_regimes", ".85, .35, .7, .95 in turns of 300", "≥ .95"),
        Headline("share_ramp", "a ramp", "≥ .98"),
        Headline("changes_per_100", "changes of K per 100 cycles at constant alpha", "≤ 5"),
    ),
    "controller_cost": (
        Headline("worst_round_us", "microseconds of CPU that the K rule takes a round, at most of its cases", "< 20"),
        Headline("one_session_round_us", "where proposals pay"),
        Headline("off_round_us", "where speculation is off"),
        Headline("early_stop_round_us", "where proposals end early"),
        Headline("ahead_round_us", "where the draft works ahead"),
    ),
    "coupled_verify": (Headline("ratio", "a coupled verify's time over a rejection verify's"),),
    "disable_latency": (
        Headline("rounds_p95", "rounds from a collapse of acceptance to K = 0", "≤ 20"),
        Headline("back_tokens_p95", "tokens until K > 0 again", "≤ 30"),
        Headline("back_tokens_hopeless_p95", "the same where the draft had been without hope for thousands of tokens"),
        Headline("operator_s", "seconds from a collapse until the operator's policy is off, at most", "≤ 305"),
        Headline("saturated_true", "true speed-up of a saturated batch"),
        Headline("saturated_by_slots", "what slots read of it, by which it is switched off"),
        Headline("saturated_by_requests", "what requests side by side would have read"),
    ),
    "drafters": (
        Headline("rig_speedup", "suffix over plain on replayed edits and quotes, virtual time", "≥ 3"),
        Headline("cpu_speedup", "the same on the real engine", "≥ 1.5"),
    ),
    "early_stop": (
        Headline("gain_mean", "ending proposals early over K alone, recorded traces, geometric mean"),
        Headline("gain_worst", "the worst of them"),
        Headline("gain_best", "the best"),
    ),
    "engine_cpu": (
        Headline("plain_ratio_1", "plain, 1 stream, over the best peer", "≥ 1.0"),
        Headline("plain_ratio_4", "4 streams"),
        Headline("plain_ratio_16", "16 streams"),
        Headline("best_ratio_1", "our best over the best peer's best, edit-or-quote, 1 stream", "≥ 1.3"),
        Headline("tv4_over_tb", "a verify of 4 tokens over a plain step", "≤ 1.3"),
        Headline("tv8_over_tb", "of 8 tokens"),
    ),
    "engine_profile": (
        Headline("token_ms_bf16", "milliseconds of a token, bf16"),
        Headline("products_ms_bf16", "of them in products"),
    ),
    "fairness": (Headline("max_share_error", "largest distance of a tenant's share from its weight's", "≤ .05"),),
    "gateway_load": (
        Headline("rounds_per_s", "rounds a second that one gateway carries within 20 ms, 256 sessions", "≥ 2000"),
        Headline("carried_rounds_per_s", "rounds a second that it carries of the first 2,000 offered", "≥ 2000"),
        Headline("added_p99_ms", "milliseconds added to a round at 2,000 a second, slowest hundredth", "≤ 20"),
        Headline("dropped", "streams dropped at it", "0"),
        Headline("bytes_per_idle_stream", "bytes of an idle stream, of 1,000", "≤ 200000"),
    ),
    "gathering": (
        Headline("closed_ahead_2", "rounds of two sessions that draft ahead, steps that wait over steps that do not"),
        Headline("closed_lookup_16", "of sixteen that look up"),
        Headline("worst_gain", "the worst of all loads", "≥ .995"),
    ),
    "never_worse": (
        Headline("worst_ratio", "worst speed over plain decoding", "≥ .99"),
        Headline("worst_recorded", "over recorded texts, 1 and 16 clients", "≥ .99"),
    ),
    "off_overhead": (Headline("ratio", "plain decoding through Tandem over the engine alone, seconds", "≤ 1.01"),),
    "operator_look": (Headline("median_ms", "CPU milliseconds of one look"),),
    "operator_scale": SCALE,
    "operator_scale_100": SCALE,
    "operator_scale_300": SCALE,
    "pair_speed": (
        Headline("unpaced_speedup", "the trained pair on over off, as fast as it goes"),
        Headline("paced_speedup", "the same, stretched to stated costs"),
    ),
    "quantised_draft": (
        Headline("equal_t0_pair_int4", "of a target's greedy tokens its copy in 4 bits guesses, weights never rounded"),
        Headline("equal_t1_pair_int4", "at T = 1"),
        Headline("equal_t0_smollm2_int4", "SmolLM2, whose weights were rounded before"),
    ),
    "rig_overlap": (
        Headline("speedup_at_0.8", "speed-up with drafting ahead at alpha .8", "≥ 2.2"),
        Headline("speedup_at_0.9", "at .9", "≥ 2.5"),
    ),
    "rig_twin": (
        Headline("worst_distance", "virtual time's largest distance from real time over sockets", "≤ .05"),
        Headline("error_on_4", "one standard error of that, four clients that speculate"),
        Headline("stations_distance", "simulated stations' largest distance from the product's step loops", "≤ .05"),
    ),
    "rpc": (
        Headline("added_p50_ms_1", "milliseconds that gateway and RPC add to a round, one stream, median", "≤ .6"),
        Headline("added_p99_ms_1", "slowest hundredth", "≤ 2"),
        Headline("added_p50_ms_64", "of 64 streams, median", "≤ 1.5"),
        Headline("floor_added_p50_ms_1", "gRPC, loops and system alone, one stream, median"),
        Headline("floor_added_p99_ms_1", "their slowest hundredth"),
        Headline("floor_added_p50_ms_64", "of 64 streams, median"),
        Headline("verify_bytes_up", "bytes of a verify of 5 guesses", "≤ 128"),
        Headline("verify_bytes_down", "of its verdict", "≤ 128"),
    ),
    "role_tls": (
        Headline("trip_more_us", "microseconds that TLS between the roles adds to a verify's round trip, one session"),
        Headline("cpu_more_1_us", "to the processor time of both ends for it"),
        Headline("cpu_more_64_us", "and of 64 sessions at a time"),
    ),
    "rollback_latency": (
        Headline("p99_s", "seconds from an alert's POST until no gateway sends to the bad revision, of 30", "≤ 2"),
        Headline("p50_s", "the median"),
    ),
    "rig_sequential": (Headline("min_ratio_to_optimum", "least ratio to the closed-form optimum", "≥ .97"),),
    "segments": (
        Headline("task_gain_most", "the most that a belief per task gains on a recorded trace"),
        Headline("temperature_gain_most", "the most that one per temperature gains"),
        Headline("temperature_gain_least", "and the least"),
        Headline("lot_gain_least", "the least of dividing by chance, which gains nothing and learns from less"),
    ),
    "verify_budget": (
        Headline("row_0.6_sessions_64_gain", "goodput with a verify budget over without: 64 sessions, .6 ms a row"),
        Headline("boasting_gain", "of a tenant beside one that lies about its guesses"),
    ),
    "verify_cost": (Headline("ms_per_row", "milliseconds to judge a row of logits"),),
}
"""A figure that its result does not have is told as not measured."""


def results(folder: Path = RESULTS) -> str:
    """A row for each headline of each committed result, and which benchmarks have none."""
    rows = ["| benchmark | measured | figure | must | when, where |", "|---|---|---|---|---|"]
    for path in sorted(folder.glob("*.json")):
        rows += _result_rows(json.loads(path.read_text()))
    absent = [f"`{name}`" for name in HEADLINES if _is_here(name) and not (folder / f"{name}.json").exists()]
    return "\n".join([*rows, "", f"Without a committed result: {', '.join(absent) or 'none'}."])


def _is_here(name: str) -> bool:
    return Path(__file__).with_name(f"{name}.py").exists()


def _result_rows(result: Mapping[str, Any]) -> Iterator[str]:
    where = f"{result['when'][:10]}, {result['machine']['cpu']}"
    for headline in HEADLINES.get(result["name"], ()):
        value = result["figures"].get(headline.figure)
        figure = "not measured" if value is None else f"{value:.3g}"
        yield f"| `{result['name']}` | {headline.told} | {figure} | {headline.must} | {where} |"


def traces(found: list[Trace]) -> str:
    """A row for each trace, with the share of right first guesses by task and temperature."""
    rows = ["| trace | pair | drafter | verification | texts | tokens | right |", "|---|---|---|---|---|---|---|"]
    for trace in found:
        tokens = sum(len(each.bits) for each in trace.sequences)
        facts = f"{trace.pair} | {trace.drafter} | {trace.verification} | {len(trace.sequences)} | {tokens}"
        rows.append(f"| `{trace.name}` | {facts} | {shares(trace)} |")
    return "\n".join(rows)


def shares(trace: Trace) -> str:
    found: dict[str, list[Outcomes]] = {}
    for each in trace.sequences:
        found.setdefault(f"{each.task} T {each.temperature:g}", []).append(each)
    told = {name: sum(each.right for each in of) / sum(len(each.bits) for each in of) for name, of in found.items()}
    return ", ".join(f"{name} {share:.2f}" for name, share in sorted(told.items()))


BLOCKS: Mapping[str, Callable[[], str]] = {"results": results, "traces": lambda: traces(read_traces())}


def drawn(page: str) -> str:
    """The page with its blocks as they must be."""
    for name, draw in BLOCKS.items():
        begin, end = f"<!-- {name}: python -m benchmarks.page -->", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{draw()}\n\n{end}{rest.partition(end)[2]}"
    return page


def main() -> None:
    PAGE.write_text(drawn(PAGE.read_text()))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
