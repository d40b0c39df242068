"""An orderly end: new sessions are refused, open ones go on for the grace, health and readiness say so."""

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.seams.wire_peers import CountingTarget, connected, opening, served, target_link, verify

from tandem_runtime.domain.errors import ModelRefused, Overloaded, TargetLost
from tandem_runtime.domain.tokens import Capabilities, SessionId
from tandem_runtime.wire import transport, verify_pb2, verify_pb2_grpc
from tandem_runtime.wire.client import RemoteTarget
from tandem_runtime.wire.outbox import Outbox
from tandem_runtime.wire.roles import TargetRole
from tandem_runtime.wire.server import EngineServer


async def test_draining_refuses_new_sessions_and_ends_when_the_open_ones_are_closed() -> None:
    async with target_link(CountingTarget()) as (remote, server):
        opened = await remote.open(opening())
        draining = asyncio.create_task(server.drain(grace_seconds=60))
        while server.refusal is None:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="shutting down"):
            await remote.open(opening("new"))
        await remote.verify(verify(opened, "s"))
        assert not draining.done()
        await remote.close(SessionId("s"))
        await draining


async def test_rounds_in_flight_are_finished_when_the_grace_is_over() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, server):
        opened = await remote.open(opening())
        engine.gate.clear()
        in_flight = asyncio.create_task(remote.verify(verify(opened, "s", round=5)))
        await engine.waiting.acquire()
        draining = asyncio.create_task(server.drain(grace_seconds=0))
        while server.refusal is None:
            await asyncio.sleep(0)
        engine.gate.set()
        assert (await in_flight).round == 5
        await draining
        with pytest.raises(TargetLost):
            await remote.verify(verify(opened, "s", round=6))


async def test_the_standard_health_service_tells_serving_from_draining() -> None:
    async with target_link(CountingTarget()) as (remote, server):
        await remote.open(opening())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=transport.TARGET_SERVICE)
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            draining = asyncio.create_task(server.drain(grace_seconds=60))
            while server.refusal is None:
                await asyncio.sleep(0)
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await remote.close(SessionId("s"))
            await draining


async def test_a_client_made_by_the_generated_stub_is_served() -> None:
    async with (
        served(TargetRole(CountingTarget())) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = verify_pb2_grpc.TargetStub(channel)  # type: ignore[no-untyped-call]  # generated
        described = await stub.Describe(verify_pb2.DescribeRequest())
        opening = verify_pb2.Open(
            prompt=[1, 2],
            parameters=verify_pb2.SamplingParameters(seed=1, top_p=1.0),
            verification=verify_pb2.VERIFICATION_COUPLED,
        )
        frames = [verify_pb2.Requests(requests=[verify_pb2.Request(call=1, session=1, open=opening)])]
        replies = [each async for frame in stub.Converse(iter(frames)) for each in frame.replies]
        assert (described.vocab_size, [each.opened.cached_tokens for each in replies]) == (1000, [2])


async def test_a_port_in_use_is_an_error_and_not_shared() -> None:
    async with served(TargetRole(CountingTarget())) as server:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await EngineServer(TargetRole(CountingTarget()), host="127.0.0.1", port=server.port).__aenter__()


async def test_a_context_that_no_message_can_open_is_refused_at_start_with_the_sum() -> None:
    engine = CountingTarget()
    engine.capable = Capabilities("sha256:a", "sha256:b", 151_936, 6_000_000, "Bitwise")
    with pytest.raises(ModelRefused, match=r"6000000 x 3 bytes per id \+ 65536 = 18065536 bytes"):
        await EngineServer(TargetRole(engine), host="127.0.0.1", port=0).__aenter__()


async def test_a_quiet_link_is_found_dead_by_pings_not_by_the_next_request() -> None:
    options = dict(transport.CLIENT_OPTIONS)
    for timeout in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
        assert options["grpc.keepalive_time_ms"] + options[timeout] <= 15_000
    assert (
        dict(transport.SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
        < options["grpc.keepalive_time_ms"]
    )
    assert options["grpc.enable_http_proxy"] == 0


async def test_all_that_is_put_in_one_tick_shares_a_frame_up_to_its_size() -> None:
    outbox = Outbox()
    for message in (b"a", b"b", b"c" * transport.JOINED_FRAME_BYTES, b"d"):
        outbox.put(message)
    outbox.end()
    assert [frame async for frame in outbox.frames()] == [b"ab", b"c" * transport.JOINED_FRAME_BYTES, b"d"]


async def test_a_peer_closed_by_us_fails_the_calls_that_wait() -> None:
    engine = CountingTarget()
    async with served(TargetRole(engine)) as server:
        async with connected(RemoteTarget, server.port) as remote:
            opened = await remote.open(opening())
            engine.gate.clear()
            waiting = asyncio.create_task(remote.verify(verify(opened, "s")))
            await engine.waiting.acquire()
        with pytest.raises(TargetLost, match="this end closed"):
            await waiting
