"""The life of requests: callers that leave, engines that fail, policies that change, and what the evidence says."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.seams.gateway_peers import Running, always, running_gateway, until

from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.errors import TargetLost
from tandem_runtime.domain.policy import (
    ControlPolicy,
    PairRevision,
    RevisionName,
    Slice,
    SpeculationPolicy,
    SpeculationState,
)
from tandem_runtime.domain.segments import Heat, Segment
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Opened,
    OpenSession,
    RunRounds,
    SessionId,
    TokenId,
    Verdict,
    VerifyRound,
)
from tandem_runtime.engines.scripted import Script, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.gateway import delivery
from tandem_runtime.gateway.server import Listening, serve_gateway
from tandem_runtime.local import LOCAL_DRAFT, LOCAL_TARGET, Lookup
from tandem_runtime.ports import TargetEngine
from tandem_runtime.replicas import Replica
from tandem_runtime.testing import constant

LONG: dict[str, Any] = {"prompt": "b", "max_tokens": 200, "temperature": 0}
OFF = SpeculationPolicy(state=SpeculationState.OFF)


def slowly(script: Script, *, seconds: float = 0.002) -> Script:
    """The same model, with a forward that takes a while per row: long enough to be interrupted."""

    def slow(prefix: tuple[TokenId, ...]) -> object:
        time.sleep(seconds)
        return script(prefix)

    return slow  # type: ignore[return-value]


async def text_of(running: Running, **fields: object) -> str:
    return str((await running.plain(**(LONG | fields)))["choices"][0]["text"])


# C25 (ATOM PR 1562): a client that leaves stops its work everywhere.
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("speculation", [always(4), OFF], ids=["on", "off"])
async def test_a_client_that_leaves_frees_both_engines(stream: bool, speculation: SpeculationPolicy) -> None:
    target = ScriptedModel(slowly(chain_logits), max_length=4000)
    draft = ScriptedModel(slowly(lame_chain_logits), max_length=4000)
    async with running_gateway(target, draft, speculation=speculation) as running:
        async with httpx.AsyncClient(base_url=running.url) as leaving:
            body = {"model": "chat", **LONG, "max_tokens": 2000, "stream": stream}
            asking = asyncio.create_task(leaving.post("/v1/completions", json=body))
            await until(lambda: running.gateway.sessions == 1)
            await until(lambda: running.stratum()["rounds"] > 3)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: running.gateway.sessions == 0, seconds=1)
        await until(lambda: target.blocks.used == draft.blocks.used == 0, seconds=1)
        ended = running.stratum()["rounds"]
        metrics = running.gateway.books.metrics.render().decode()
        await text_of(running, max_tokens=8, speculation={"off": True})
        assert running.stratum()["rounds"] == ended
        stratum = running.stratum()
    assert 'code="499"' in metrics
    assert (stratum["requests"], stratum["errors"]) == (2, 0)
    assert stratum["emitted"] < 1000


def breaking_at(length: int, script: Script, value: float = float("nan")) -> Script:
    """The same model up to a prefix of `length`; from there on its logits have no law."""
    return lambda prefix: [value] * 7 if len(prefix) >= length else script(prefix)


async def test_a_failure_within_a_stream_is_an_event_and_the_end() -> None:
    """C15, second half: one error event, and the stream closes within a second."""
    async with running_gateway(breaking_at(10, chain_logits)) as running:
        async with asyncio.timeout(5):
            events = [event async for event in running.stream(**LONG)]
        plain = await running.http.post("/v1/completions", json={"model": "chat", **LONG})
        stratum = running.stratum()
        metrics = running.gateway.books.metrics.render().decode()
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "fdbcdaced"
    assert events[-1]["error"]["type"] == "server_error"
    assert events[-1]["error"]["code"] == "not_a_number"
    assert plain.status_code == 500
    assert (stratum["requests"], stratum["errors"]) == (2, 2)
    assert 'tandem_requests_total{arm="on",code="500",revision="local"} 2.0' in metrics


async def test_a_failure_before_the_first_token_has_its_own_status_streamed_or_not() -> None:
    async with running_gateway(breaking_at(1, chain_logits)) as running:
        for stream in (False, True):
            reply = await running.http.post("/v1/completions", json={"model": "chat", **LONG, "stream": stream})
            assert (reply.status_code, reply.headers["content-type"]) == (500, "application/json")
            assert reply.json()["error"]["code"] == "not_a_number"


async def test_a_failing_choice_ends_the_whole_stream() -> None:
    async with running_gateway(breaking_at(10, chain_logits)) as running:
        events = [event async for event in running.stream(**LONG, n=3)]
        await until(lambda: running.gateway.sessions == 0)
    assert [("error" in event) for event in events] == [False] * (len(events) - 1) + [True]


async def test_a_draft_that_dies_within_a_stream_changes_no_text() -> None:
    died = threading.Event()

    def draft(prefix: tuple[TokenId, ...]) -> list[float]:
        if len(prefix) > 60:
            died.set()
            raise RuntimeError("the draft is gone")
        return chain_logits(prefix)

    async with running_gateway(chain_logits, draft, speculation=always(4)) as running:
        quiet = await text_of(running, speculation={"off": True})
        text = await text_of(running)
        stratum = running.stratum()
    assert died.is_set()
    assert text == quiet
    assert 40 < sum(stratum["acceptance"]["accepted"]) < 60
    assert stratum["errors"] == 0


class _Mortal:
    """A target that can be gone for a while."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self.alive = True

    async def capabilities(self) -> Capabilities:
        return await self._engine.capabilities()

    async def open(self, request: OpenSession) -> Opened:
        return await self._engine.open(request)

    async def verify(self, request: VerifyRound) -> Verdict:
        return await self._engine.verify(request)

    async def run(self, request: RunRounds) -> AsyncIterator[Verdict]:
        async for verdict in self._engine.run(request):
            if not self.alive:
                raise TargetLost("gone")
            yield verdict

    async def close(self, session: SessionId) -> None:
        await self._engine.close(session)


async def test_a_target_that_was_lost_and_is_back_takes_over_when_the_next_is_lost() -> None:
    async with running_gateway(slowly(chain_logits, seconds=0.01)) as running:
        expected = (await running.plain(**LONG))["choices"][0]["text"]
        (first,) = running.gateway.fleet.targets
        one, other = _Mortal(first.engine), _Mortal(first.engine)
        first.engine, first.connected = one, lambda: one.alive
        second = Replica(f"{first.uid}-2", LOCAL_TARGET, other, first.capabilities, connected=lambda: other.alive)
        with running.gateway.fleet.targets.holding(second):
            events = running.stream(**LONG)
            said = [await anext(events)]
            one.alive = False
            await until(lambda: second.sessions == 1)
            one.alive, other.alive = True, False
            await until(lambda: first.sessions == 1)
            said += [event async for event in events]
    assert [event for event in said if "error" in event] == []
    assert "".join(event["choices"][0]["text"] for event in said) == expected


async def test_letters_that_some_clients_take_for_line_ends_break_no_event() -> None:
    """As httpx does, by Python's own rule."""
    table = [letter.encode() for letter in "ab\u2028\u2029\x85fg"]
    async with running_gateway(chain_logits, table=table) as running:
        expected = (await running.plain(prompt=[1], max_tokens=14, temperature=0))["choices"][0]["text"]
        events = [event async for event in running.stream(prompt=[1], max_tokens=14, temperature=0)]
    assert set("\u2028\u2029\x85") < set(expected)
    assert "".join(event["choices"][0]["text"] for event in events) == expected


async def test_a_request_that_outgrows_the_draft_goes_on_without_it() -> None:
    """C19 (vLLM #57941): the draft holds 64 tokens, the target 256."""
    async with running_gateway(chain_logits, chain_logits, speculation=always(4), draft_length=64) as running:
        quiet = await text_of(running, prompt=[1] * 60, max_tokens=40, speculation={"off": True})
        short = await running.plain(prompt=[1] * 60, max_tokens=40, temperature=0)
        long = await running.plain(prompt=[1] * 100, max_tokens=40, temperature=0)
    assert short["choices"][0]["text"] == quiet
    assert short["speculation"]["proposed"] > 0
    assert long["speculation"]["proposed"] == 0


async def test_a_policy_that_changes_within_a_stream_changes_no_text() -> None:
    """It changes at a token of the target's: where the caller has come to by then depends on who runs first."""
    changes: list[Callable[[], object]] = []

    def script(prefix: tuple[TokenId, ...]) -> list[float]:
        if len(prefix) > 20 and changes:
            changes.pop()()
        return chain_logits(prefix)

    async with running_gateway(script, chain_logits, speculation=always(4)) as running:
        quiet = await text_of(running, speculation={"off": True})
        changes.append(lambda: running.put_policy(speculation=OFF))
        pieces = [event["choices"][0]["text"] async for event in running.stream(**LONG)]
        strata = running.gateway.evidence()["strata"]
    assert "".join(pieces) == quiet
    assert (len(pieces[0]), len(pieces[-2])) == (5, 1)
    assert [(stratum["policy"], stratum["requests"]) for stratum in strata] == [(1, 1 + 1)]


async def test_the_evidence_adds_up_to_what_the_replies_say() -> None:
    async with running_gateway(chain_logits, lame_chain_logits, speculation=always(3)) as running:
        replies = await asyncio.gather(
            *(running.plain(prompt=[index % 7], max_tokens=20 + index, temperature=0) for index in range(30))
        )
        await running.plain(prompt="b", max_tokens=20, speculation={"off": True})
        await running.plain(prompt="b", max_tokens=20, speculation={"maxDraftTokens": 1})
        stratum = running.stratum()
    told = [reply["speculation"] for reply in replies]
    acceptance = stratum["acceptance"]
    assert {
        "accepted": sum(acceptance["accepted"]),
        "examined": sum(acceptance["examined"]),
        "requests": sum(acceptance["requests"]),
        "rounds": stratum["rounds"],
        "proposed": stratum["proposed"],
        "emitted": stratum["emitted"],
        "first": sum(map(sum, stratum["firstToken"]["bins"].values())),
        "all requests": stratum["requests"],
    } == {
        "accepted": sum(one["accepted"] for one in told),
        "examined": sum(one["accepted"] + one["rejections"] for one in told),
        "requests": 30,
        "rounds": sum(one["rounds"] for one in told),
        "proposed": sum(one["proposed"] for one in told),
        "emitted": sum(reply["usage"]["completion_tokens"] for reply in replies),
        "first": 30,
        "all requests": 32,
    }
    assert len([count for count in acceptance["requests"] if count]) > 15
    assert [len(buckets) for buckets in acceptance.values()] == [128, 128, 128]  # type: ignore[arg-type]


@pytest.mark.parametrize(("off_percent", "arm"), [(0, "on"), (100, "off")])
async def test_closed_slots_hold_decode_time_and_tokens_by_arm(off_percent: int, arm: str) -> None:
    control = ControlPolicy(off_percent=off_percent, slot_seconds=3600)
    async with running_gateway(chain_logits, chain_logits, speculation=always(4), control=control) as running:
        running.clock.shift = 1800 - running.clock.wall() % 3600  # the middle of a slot
        reply = await running.plain(**LONG)
        open_slots = running.gateway.evidence()["slots"]
        running.clock.shift += 3600
        (slot,) = running.gateway.evidence()["slots"]
    assert open_slots == []
    assert reply["speculation"]["arm"] == arm
    assert (reply["speculation"]["proposed"] > 0) is (arm == "on")
    first_round = 5 if arm == "on" else 1  # reads the prompt
    assert {**slot, "slot": 0, "milliseconds": 0} == {
        "pod": "uid-target",
        "target": LOCAL_TARGET,
        "slot": 0,
        "arm": arm,
        "policy": 1,
        "revision": "local",
        "tokens": 200 - first_round,
        "milliseconds": 0,
    }
    assert slot["milliseconds"] > 0


@pytest.mark.parametrize(("off_percent", "arm"), [(0, "beside"), (100, "off")])
async def test_a_revision_that_may_not_speculate_counts_beside_the_others_and_in_off_slots_like_them(
    off_percent: int, arm: str
) -> None:
    control = ControlPolicy(off_percent=off_percent, slot_seconds=3600)
    async with running_gateway(chain_logits, chain_logits, speculation=always(4), control=control) as running:
        policy = running.gateway.in_force.policy
        assert policy is not None
        running.put_policy(revisions=tuple(replace(each, speculate=False) for each in policy.revisions))
        running.clock.shift = 1800 - running.clock.wall() % 3600  # the middle of a slot
        await running.plain(**LONG)
        running.clock.shift += 3600
        (slot,) = running.gateway.evidence()["slots"]
    assert (slot["arm"], slot["tokens"]) == (arm, 199)  # the first round reads the prompt


async def test_a_request_of_a_plain_segment_is_decoded_plainly_and_counts_as_served_alone() -> None:
    plain = replace(always(4), plain=(Slice(heat=Heat.GREEDY),))
    async with running_gateway(chain_logits, chain_logits, speculation=plain) as running:
        quiet = await running.plain(prompt="b", max_tokens=40, temperature=0)
        stratum = running.stratum()
        loud = await running.plain(prompt="b", max_tokens=40, temperature=0.7, seed=1)
        running.put_policy(speculation=always(4))
        again = await running.plain(prompt="b", max_tokens=40, temperature=0)
    assert (stratum["requests"], stratum["rounds"], stratum["firstToken"]["bins"]) == (1, 0, {})
    proposed = [reply["speculation"]["proposed"] > 0 for reply in (quiet, loud, again)]
    assert (proposed, quiet["choices"][0]["text"]) == ([False, True, True], again["choices"][0]["text"])


async def test_evidence_is_counted_apart_for_the_segments_that_a_policy_names() -> None:
    named = (Slice("greedy", Heat.GREEDY), Slice("cool", Heat.COOL), Slice("theirs", tenants=("somebody",)))
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        running.put_policy(segments=named)
        await running.plain(prompt="b", max_tokens=40, temperature=0)
        await running.plain(prompt="b", max_tokens=40, temperature=0.9, seed=1)
        (stratum,) = running.gateway.evidence()["strata"]
    counted = {name: sum(held["examined"]) for name, held in stratum["segments"].items()}
    assert counted.keys() == {"greedy", "cool", "theirs"}
    assert 0 < counted["greedy"] < sum(stratum["acceptance"]["examined"])
    assert (counted["cool"], counted["theirs"]) == (0, 0)


async def test_stretches_of_32_tokens_are_timed_in_on_slots_however_many_tokens_a_round_brings() -> None:
    timed = {}
    for speculation in (always(1), always(8)):
        async with running_gateway(chain_logits, chain_logits, speculation=speculation) as running:
            await running.plain(**LONG)
            timed[speculation.max_draft_tokens] = sum(map(sum, running.stratum()["stretch"]["bins"].values()))
            running.put_policy(control=ControlPolicy(off_percent=100))
            await running.plain(**LONG)
            (_, off) = running.gateway.evidence()["strata"]
            assert off["stretch"]["bins"] == {}
    assert timed == {1: 6, 8: 5}  # of 200 tokens; a round of 9 ends a stretch at 36


async def test_while_speculation_is_off_the_draft_scores_what_is_emitted() -> None:
    async with running_gateway(chain_logits, lame_chain_logits, speculation=OFF) as running:
        scoring = asyncio.create_task(running.gateway.shadow.run())
        reply = await running.plain(prompt="b", max_tokens=30, temperature=0)
        await running.gateway.shadow.settle()
        stratum = running.stratum()
        revision = running.gateway.in_force.policy.revisions[0]  # type: ignore[union-attr]
        believed = running.gateway.segments.cell(Segment(revision.name, None, Heat.GREEDY)).belief
        scoring.cancel()
    assert reply["speculation"]["proposed"] == 0
    assert believed.acceptance.survivals(2) == pytest.approx((2 / 3, 4 / 9), abs=0.06)
    assert sum(stratum["shadow"]["examined"]) == 30
    assert sum(stratum["shadow"]["matched"]) == 20  # wrong where the prefix length is a multiple of 3
    assert sum(stratum["acceptance"]["examined"]) == 0


async def test_speculation_shows_why_this_k_for_each_segment() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        await running.plain(prompt="b", max_tokens=30, temperature=0)
        await running.plain(prompt="b", max_tokens=30, temperature=1)
        (revision,) = (await running.http.get("/v1/speculation")).json()["revisions"]
    warm, greedy = revision["segments"]
    assert [warm["heat"], greedy["heat"], greedy["adapter"]] == ["Warm", "Greedy", None]
    assert (greedy["k"], greedy["rule"], len(greedy["survivals"]), len(greedy["speedUps"])) == (4, "Always", 4, 4)
    assert sorted(greedy["costs"]) == ["aheadHits", "aheadTokens", "draftToken", "plainToken", "round", "verifyToken"]
    assert all(0 < chance <= 1 for chance in greedy["survivals"])


async def test_speculation_shows_nothing_drafted_ahead_of_a_lookup() -> None:
    speculation = replace(always(4), min_draft_tokens=1, overlap=Overlap.AUTO)
    async with running_gateway(chain_logits, Lookup(Drafter.SUFFIX), speculation=speculation) as running:
        await running.plain(prompt="b", max_tokens=60, temperature=0)
        (revision,) = (await running.http.get("/v1/speculation")).json()["revisions"]
    (segment,) = revision["segments"]
    assert (segment["drafter"], segment["costs"]["aheadHits"], segment["costs"]["aheadTokens"]) == ("Suffix", 0, 0)


async def test_a_revision_in_shadow_is_scored_and_serves_nobody() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=always(4)) as running:
        stable = running.gateway.in_force.policy.revisions[0]  # type: ignore[union-attr]
        shadow = PairRevision(RevisionName("next"), LOCAL_TARGET, LOCAL_DRAFT, weight=0, shadow=True)
        running.put_policy(revisions=(stable, shadow))
        scoring = asyncio.create_task(running.gateway.shadow.run())
        await running.plain(prompt="b", max_tokens=30, temperature=0)
        await running.gateway.shadow.settle()
        strata = {stratum["revision"]: stratum for stratum in running.gateway.evidence()["strata"]}
        scoring.cancel()
    assert sum(strata["next"]["shadow"]["matched"]) == sum(strata["next"]["shadow"]["examined"]) == 30
    assert (strata["next"]["requests"], strata["local"]["requests"]) == (0, 1)


async def test_a_full_shadow_queue_drops_and_never_waits() -> None:
    async with running_gateway(chain_logits, chain_logits, speculation=OFF) as running:
        await asyncio.gather(*(running.plain(prompt="b", max_tokens=1) for _ in range(40)))
        assert running.gateway.shadow.dropped == 8


async def test_a_silent_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def waiting(prefix: tuple[TokenId, ...]) -> list[float]:
        assert len(prefix) < 3 or go_on.wait(10)
        return chain_logits(prefix)

    monkeypatch.setattr(delivery, "KEEP_ALIVE_SECONDS", 0.02)
    async with running_gateway(waiting) as running:
        body = {"model": "chat", "prompt": "b", "max_tokens": 4, "temperature": 0, "stream": True}
        lines = []
        async with running.http.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                lines.append(line)
                if line.startswith(":"):
                    go_on.set()
    assert ": keep-alive" in lines
    assert "".join(line for line in lines if line.startswith("data: {")).count('"text":') == 5


async def test_readiness_needs_a_policy_and_a_target_and_no_draft() -> None:
    async with running_gateway(chain_logits, chain_logits) as running:
        gateway = running.gateway

        async def ready() -> int:
            return (await running.http.get("/ready")).status_code

        seen = [await ready()]
        (draft,), (target,) = gateway.fleet.drafts, gateway.fleet.targets
        draft.connected = lambda: False
        seen.append(await ready())
        reply = await running.plain(prompt="b", max_tokens=4)
        status = (await running.http.get("/v1/speculation")).json()
        target.accepting = lambda: False
        seen.append(await ready())
        refused = await running.http.post("/v1/completions", json={"model": "chat", "prompt": "b"})
        policy, gateway.in_force.policy = gateway.in_force.policy, None
        seen.append(await ready())
        nothing = await running.http.post("/v1/completions", json={"model": "chat", "prompt": "b"})
        none_served = (await running.http.get("/v1/models")).json()["data"]
        gateway.in_force.policy = policy
    assert seen == [200, 200, 503, 503]
    assert reply["speculation"]["proposed"] == 0
    assert [(one["speculating"], one["why"]) for one in status["revisions"]] == [(False, "NoDraft")]
    for failed in (refused, nothing):
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "2")
    assert none_served == []


async def test_what_the_end_of_the_grace_cuts_off_is_told_to_try_again_streamed_and_plain() -> None:
    ending, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    listening = Listening(host="127.0.0.1", port=0, admin_port=0, notice_seconds=0, grace_seconds=2)
    async with running_gateway(slowly(constant([0.0] * 7)), max_length=1_000_000) as running:
        gateway = running.gateway
        serving = asyncio.create_task(serve_gateway(gateway, listening, keys=None, ending=ending, started=started))
        url = f"http://127.0.0.1:{(await started).api}/v1/completions"
        body = {"model": "chat", "prompt": "b", "max_tokens": 900_000}
        async with running.http.stream("POST", url, json={**body, "stream": True}) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            plain = asyncio.create_task(running.http.post(url, json=body))
            await until(lambda: gateway.sessions == 2)
            ending.set()
            said = [line async for line in lines if line]
        reply = await plain
        await serving
    last = json.loads(said[-1].removeprefix("data: "))
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert reply.json() == last
    assert last["error"]["message"] == "this gateway is shutting down; send the request again"


def test_the_gateway_imports_no_engine_and_no_torch() -> None:
    code = (
        "import sys, tandem_runtime.gateway.app, tandem_runtime.discovery, tandem_runtime.tokenizer;"
        "print(sorted(n for n in sys.modules if n.split('.')[0] == 'torch' or n.startswith('tandem_runtime.engines')))"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
