"""The failure lab: each fault that a pair has to live with, and the tests that plant it.

`LAB` is the map. Where a fault has several faces it names one test for each; those without a better place stand here.
"""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tests.seams.gateway_peers import ShiftedClock, always, running_gateway, until
from tests.seams.port_models import PAIRS, VOCAB, Pair
from tests.seams.port_words import LIFE, opening, plain, round_of, target_of
from tests.seams.wire_peers import QUICK, CountingTarget, connected, served

from tandem_runtime.domain.tokens import (
    RunRounds,
    SessionId,
)
from tandem_runtime.engines.scripted import BLOCK_TOKENS, ScriptedModel, chain_logits, lame_chain_logits
from tandem_runtime.wire import client, codec, transport
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.roles import TargetRole

TESTS = Path(__file__).parents[1]
LAB: dict[str, tuple[str, ...]] = {
    "early rejection": (
        "seams/test_engine_ports.py::test_coupled_output_does_not_depend_on_a_hostile_draft",
        "seams/test_engine_ports.py::test_a_draft_rolls_back_to_what_the_target_said",
    ),
    "target time-out": (
        "scenarios/test_driver.py::test_a_lost_target_is_replaced_and_both_are_released",
        "seams/test_roles.py::test_a_target_that_hangs_with_its_socket_open_is_lost_by_its_pings",
        "seams/test_shares.py::test_a_deadline_passed_at_the_gateway_ends_the_work_behind_the_wire",
    ),
    "sick target among sound ones": (
        "seams/test_sick_targets.py::test_a_target_that_fails_at_once_fails_nobody_and_is_left_alone",
        "seams/test_sick_targets.py::test_a_target_whose_step_never_ends_keeps_the_sessions_of_one_time_limit",
        "seams/test_sick_targets.py::test_an_engine_whose_step_does_not_end_says_so_until_it_does",
    ),
    "draft outage": (
        "seams/test_discovery.py::test_a_draft_pod_that_dies_within_a_stream_changes_no_text",
        "scenarios/test_driver.py::test_a_draft_that_fails_in_any_way_costs_no_text",
        "seams/test_draft_faults.py::test_who_rests_after_a_fault_and_for_how_long",
    ),
    "target outage": (
        "seams/test_discovery.py::test_a_target_that_dies_within_a_stream_is_replaced_and_the_text_goes_on",
        "seams/test_discovery.py::test_a_lost_target_without_another_is_an_error_in_the_stream",
        "seams/test_prompt_logprobs.py::test_a_target_that_is_lost_while_it_reads_is_replaced",
    ),
    "cancel between proposal and verify": (
        "scenarios/test_who_leaves.py::test_who_leaves_between_any_two_calls_leaves_both_engines_free",
        "seams/test_draft_slots.py::test_all_slots_are_free_whenever_the_reader_leaves",
        "domain/test_session.py::test_a_session_can_be_cancelled_wherever_it_stands",
    ),
    "adapter mismatch": (
        "seams/test_adapter_serving.py::test_a_session_opened_again_under_another_adapter_keeps_nothing_of_the_first",
        "seams/test_adapter_serving.py::test_a_session_whose_adapter_is_unloaded_goes_on_and_may_be_opened_again",
        "seams/test_adapter_serving.py::test_models_are_listed_and_an_unknown_one_is_not_found",
    ),
    "grammar that eliminates a proposal": (
        "scenarios/test_grammar_over_engines.py"
        "::test_a_proposal_of_which_the_grammar_leaves_nothing_is_a_round_with_k_zero",
        "scenarios/test_grammar_over_engines.py"
        "::test_a_call_that_nobody_forced_fits_its_schema_whatever_the_draft_proposes",
    ),
    "rollback over the border of a block": (
        "seams/test_failure_lab.py::test_a_rejection_anywhere_around_the_border_of_a_block_takes_back_what_fell",
        "domain/test_blocks.py::test_a_roll_back_keeps_the_blocks_that_still_hold_something",
        "seams/test_torch_engine.py::test_a_roll_back_forgets_what_stood_beyond",
    ),
    "duplicate replies": (
        "seams/test_restart_under_load.py::test_replies_that_come_twice_change_nothing",
        "seams/test_engine_ports.py::test_the_same_round_again_returns_the_stored_verdict",
        "domain/test_session.py::test_an_answer_to_another_question_commits_nothing",
    ),
    "late replies": (
        "seams/test_wire_loss.py::test_a_late_answer_to_a_call_given_up_is_not_taken_for_the_next_one",
        "seams/test_combined_draft.py::test_an_answer_to_an_older_round_is_a_guess_like_any_other",
    ),
    "half-closed sockets": (
        "seams/test_failure_lab.py::test_a_caller_that_closes_its_half_has_left",
        "seams/test_failure_lab.py::test_a_peer_that_has_sent_its_last_is_still_answered",
        "seams/test_gateway_refusals.py::test_a_body_that_is_cut_short_is_the_callers_end_and_no_failure_of_ours",
    ),
    "slow DNS": (
        "seams/test_failure_lab.py::test_a_name_that_is_found_late_holds_up_nobody_and_is_linked_then",
        "seams/test_failure_lab.py::test_a_name_that_is_never_found_is_told_as_trouble",
    ),
    "restart under load": (
        "seams/test_restart_under_load.py::test_engines_that_are_started_anew_under_load_cost_no_answer",
        "seams/test_roles.py::test_a_target_killed_in_a_run_is_target_lost_and_found_again_when_it_is_back",
    ),
}


def test_every_fault_of_the_lab_has_its_tests() -> None:
    missing = []
    for fault, tests in LAB.items():
        for test in tests:
            path, name = test.split("::")
            if not re.search(rf"^(async )?def {name}\(", (TESTS / path).read_text(), re.MULTILINE):
                missing.append((fault, test))
    assert not missing


# Rollback over the border of a block ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PAIRS))
@pytest.mark.parametrize("length", [BLOCK_TOKENS - 5, BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 3])
async def test_a_rejection_anywhere_around_the_border_of_a_block_takes_back_what_fell(name: str, length: int) -> None:
    """Eight guesses stand up to each place in turn, and then eight right ones are all taken: nothing of the fallen is
    left behind, and nothing of the others is gone."""
    pair: Pair = PAIRS[name]
    prompt = tuple((5 * place + 1) % VOCAB for place in range(length))
    with target_of(pair.target()) as target:
        expected = await plain(target, opening("plain", prompt=prompt), 24)
        await target.close(SessionId("plain"))
        for stands in range(9):
            await target.open(opening("b", prompt=prompt))
            wrong = [(token + 1) % VOCAB for token in expected[stands:8]]
            first = await target.verify(round_of(0, 0, (*expected[:stands], *wrong), name="b"))
            assert (first.accepted, first.token) == (stands, expected[stands])
            after = stands + 1
            then = await target.verify(round_of(1, after, expected[after : after + 8], name="b"))
            assert (then.accepted, then.token) == (8, expected[after + 8])
            held = length + after + 8
            assert -(-held // BLOCK_TOKENS) <= target._model.blocks.used <= -(-(held + 1) // BLOCK_TOKENS)
            await target.close(SessionId("b"))
        assert target._model.blocks.used == 0


# Half-closed sockets -------------------------------------------------------------------------------------------------


async def test_a_caller_that_closes_its_half_has_left() -> None:
    """HTTP's callers keep theirs open until they have their answer; who does not is served no longer, on purpose."""
    target = ScriptedModel(chain_logits, max_length=4000)
    async with running_gateway(target, lame_chain_logits, speculation=always(3)) as running:
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"model": "chat", "prompt": "b", "max_tokens": 3900, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        await reader.readline()
        writer.write_eof()
        await until(lambda: running.gateway.sessions == 0, seconds=5)
        await until(lambda: target.blocks.used == 0, seconds=5)
        told = await reader.read()
        writer.close()
        await writer.wait_closed()
        stratum = running.stratum()
        assert await running.plain(prompt="b", max_tokens=2)
    assert b"[DONE]" not in told
    assert (stratum["requests"], stratum["errors"]) == (1, 0)


async def test_a_peer_that_has_sent_its_last_is_still_answered() -> None:
    """A stream of which one half is closed: what was asked is answered, and its sessions are closed then."""
    engine = CountingTarget()
    async with served(TargetRole(engine)) as server:
        address = f"127.0.0.1:{server.port}"
        async with grpc.aio.insecure_channel(address, options=transport.CLIENT_OPTIONS) as channel:
            converse: Any = channel.stream_stream(f"/{transport.TARGET_SERVICE}/Converse", bytes, bytes)
            stream = converse()
            await stream.write(codec.request_frame(opening("s", prompt=(1, 2)), call=1, session=1))
            asked = RunRounds(SessionId("s"), LIFE, 0, 0, 5)
            await stream.write(codec.request_frame(asked, call=2, session=1, bound=LIFE))
            await stream.done_writing()
            told = []
            while isinstance(frame := await stream.read(), bytes):
                told += [reply.body() for reply in codec.read_replies(frame)]
        await until(lambda: server.sessions == 0)
    assert [type(each).__name__ for each in told] == ["Opened", *["Verdict"] * 5, "Ended"]
    assert len(engine.closed) == 1


# Slow DNS ------------------------------------------------------------------------------------------------------------


class Names(asyncio.DatagramProtocol):
    """A name server that says of every name that it is this machine, after a while; or nothing."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.asked = 0

    def connection_made(self, transport: asyncio.transports.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.asked += 1
        if self.seconds is not None:
            asyncio.get_running_loop().call_later(self.seconds, self.transport.sendto, _named(data), addr)


def _named(question: bytes) -> bytes:
    """RFC 1035: one A record for what is asked, if that is what is asked for."""
    end = question.index(b"\x00", 12) + 5
    is_a = question[end - 4 : end - 2] == b"\x00\x01"
    header = question[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_a), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([127, 0, 0, 1])
    return header + question[12:end] + (record if is_a else b"")


@asynccontextmanager
async def names(seconds: float | None) -> AsyncIterator[tuple[Names, int]]:
    loop = asyncio.get_running_loop()
    endpoint, protocol = await loop.create_datagram_endpoint(lambda: Names(seconds), local_addr=("127.0.0.1", 0))
    try:
        yield protocol, endpoint.get_extra_info("sockname")[1]
    finally:
        endpoint.close()


async def longest_pause(until_done: asyncio.Future[Any]) -> float:
    """Seconds for which the event loop once stood still."""
    clock, longest = ShiftedClock(), 0.0
    while not until_done.done():
        began = clock.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, clock.monotonic() - began)
    return longest


async def test_a_name_that_is_found_late_holds_up_nobody_and_is_linked_then() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(TargetRole(CountingTarget())))
        near = await stack.enter_async_context(connected(RemoteTarget, server.port))
        resolver, port = await stack.enter_async_context(names(1.0))
        address = f"dns://127.0.0.1:{port}/engine.test:{server.port}"
        far = await stack.enter_async_context(RemoteTarget(address, backoff=QUICK))
        linking = asyncio.ensure_future(far.wait_connected())
        pausing = asyncio.create_task(longest_pause(linking))
        assert (await near.open(opening("near"))).incarnation == "first"
        assert not linking.done()
        await asyncio.wait_for(linking, 20)
        assert (await far.open(opening("far"))).incarnation == "first"
        assert await pausing < 0.9
        assert resolver.asked > 0


async def test_a_name_that_is_never_found_is_told_as_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 0.3)
    async with (
        names(None) as (_, port),
        RemoteTarget(f"dns://127.0.0.1:{port}/engine.test:1", backoff=QUICK) as far,
    ):
        await until(lambda: far.trouble != "not connected yet")
        assert far.trouble == "no answer within 0.3 s"
        assert not far.connected
