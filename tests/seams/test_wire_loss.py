"""What breaks, and what stays whole: lost servers, hung engines, slow readers, frames without sense."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc.aio
import pytest
from tests.seams.wire_peers import (
    QUICK,
    CountingDraft,
    CountingTarget,
    connected,
    draft_link,
    opening,
    propose,
    run,
    served,
    target_link,
    verify,
)

from tandem_runtime.domain.errors import (
    BadRequest,
    DraftForgot,
    DraftLost,
    NotANumber,
    Overloaded,
    SessionLost,
    StaleOffset,
    TandemError,
    TargetLost,
)
from tandem_runtime.domain.tokens import Incarnation, Opened, Proposal, ScoreTokens, SessionId
from tandem_runtime.wire import codec, transport
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.client import Backoff, RemoteDraft, RemoteTarget
from tandem_runtime.wire.conversation import MAX_CALLS
from tandem_runtime.wire.roles import TargetRole


async def test_a_server_lost_in_a_round_is_target_lost_and_its_sessions_do_not_survive_the_reconnection() -> None:
    engine = CountingTarget()
    async with served(TargetRole(engine)) as server:
        port = server.port
        async with connected(RemoteTarget, port) as remote:
            opened = await remote.open(opening())
            engine.gate.clear()
            rounds = [asyncio.create_task(remote.verify(verify(opened, "s", round=n))) for n in range(3)]
            await engine.waiting.acquire()
            await server.__aexit__(None, None, None)
            for lost in rounds:
                with pytest.raises(TargetLost, match=f"the link to 127.0.0.1:{port} broke"):
                    await lost
            assert not remote.connected
            with pytest.raises(TargetLost, match="no connection to"):
                await remote.open(opening())

            async with served(TargetRole(CountingTarget(incarnation="second")), port=port):
                await remote.wait_connected()
                with pytest.raises(SessionLost, match="open it again"):
                    await remote.verify(verify(opened, "s"))
                assert (await remote.open(opening())).incarnation == "second"


async def test_a_peer_that_is_not_there_yet_is_found_when_it_comes() -> None:
    async with served(TargetRole(CountingTarget())) as server:
        port = server.port
    async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK) as remote:
        with pytest.raises(TargetLost, match="not connected yet"):
            await remote.capabilities()
        async with served(TargetRole(CountingTarget()), port=port):
            await remote.wait_connected()
            assert remote.trouble is None


async def test_a_peer_that_fails_at_the_moment_at_which_it_is_left_holds_nobody_up() -> None:
    """gRPC then raises the failure in place of the cancelling."""
    begun = asyncio.Event()

    class FailsWhenLeft(RemoteTarget):
        async def _live(self) -> None:
            first = not begun.is_set()
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not first:
                    raise
                nothing = grpc.aio.Metadata()
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "gone", None) from None

    async with asyncio.timeout(10), FailsWhenLeft("127.0.0.1:1", backoff=QUICK):
        await begun.wait()


async def test_a_draft_is_not_a_target_and_the_trouble_says_so() -> None:
    async with (
        served(TargetRole(CountingTarget())) as server,
        RemoteDraft(f"127.0.0.1:{server.port}", backoff=QUICK) as remote,
    ):
        while remote.trouble == "not connected yet":
            await asyncio.sleep(0)
        assert remote.trouble == "the peer does not serve tandem.verify.v1.Draft"


async def test_the_end_of_a_stream_closes_its_sessions_and_no_others() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (stays, server):
        opened = await stays.open(opening("stays"))
        async with connected(RemoteTarget, server.port) as leaves:
            await leaves.open(opening("leaves"))
            assert server.sessions == 2
        while server.sessions > 1:
            await asyncio.sleep(0)
        assert len(engine.prefixes) == 1
        await stays.verify(verify(opened, "stays"))


async def test_a_hung_draft_can_be_given_up_and_other_sessions_go_on() -> None:
    engine = CountingDraft()
    async with draft_link(engine) as remote:
        hangs = await remote.open(opening("hangs", prompt=(666,)))
        goes_on = await remote.open(opening("goes on"))
        hanging = asyncio.create_task(remote.propose(propose(hangs, "hangs")))
        await engine.hung.acquire()
        assert await remote.propose(propose(goes_on, "goes on")) == Proposal(ids=(0, 1, 2), draft_seconds=0.001)
        hanging.cancel()
        await engine.freed.acquire()
        assert hanging.cancelled()


async def test_a_late_answer_to_a_call_given_up_is_not_taken_for_the_next_one() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        engine.gate.clear()
        given_up = asyncio.create_task(remote.verify(verify(opened, "s", round=1)))
        await engine.waiting.acquire()
        given_up.cancel()
        engine.gate.set()
        assert (await remote.verify(verify(opened, "s", round=2))).round == 2


@pytest.mark.parametrize(
    ("error", "arrives_as"),
    [
        (BadRequest("response_format became too complex to follow", parameter="response_format"), BadRequest),
        (Overloaded("full", retry_after_seconds=7), Overloaded),
        (NotANumber("row 1"), NotANumber),
        (DraftForgot("open it again"), DraftForgot),
        (DraftLost("the model failed"), DraftLost),
        (KeyError("a secret prompt"), DraftLost),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_a_drafts_error_says_at_this_end_whose_trouble_it_is(
    error: Exception, arrives_as: type[TandemError]
) -> None:
    engine = CountingDraft()
    async with draft_link(engine) as remote:
        opened = await remote.open(opening())
        engine.error = error
        with pytest.raises(TandemError) as caught:
            await remote.propose(propose(opened, "s"))
        assert type(caught.value) is arrives_as
        if isinstance(error, arrives_as):
            assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


async def test_a_draft_that_is_not_reached_is_lost_and_one_that_was_left_has_forgotten() -> None:
    engine = CountingDraft()
    async with draft_link(engine) as remote:
        opened = await remote.open(opening())
        assert await remote.score(ScoreTokens(SessionId("s"), opened.incarnation, 0, (1, 2))) == (False, True)
        await remote.close(SessionId("s"))
        with pytest.raises(DraftForgot, match="open it again"):
            await remote.propose(propose(opened, "s"))
    with pytest.raises(DraftLost, match="no connection to") as caught:
        await remote.propose(propose(opened, "s"))
    assert type(caught.value) is DraftLost


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("token 5 is out of range", parameter="logit_bias"),
        Overloaded("all 4 sessions are taken", retry_after_seconds=3),
        SessionLost("unknown"),
        StaleOffset("offset 3, held 5"),
        NotANumber("row 1"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_engine_arrives_as_itself(error: TandemError) -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        engine.error = error
        with pytest.raises(type(error)) as caught:
            await remote.verify(verify(opened, "s"))
        assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


async def test_a_bug_in_the_engine_is_target_lost_without_what_the_user_wrote(caplog: pytest.LogCaptureFixture) -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        engine.error = KeyError("a secret prompt")
        with pytest.raises(TargetLost, match="the engine failed with KeyError"):
            await remote.verify(verify(opened, "s"))
        assert "error=KeyError at _raise" in caplog.text
        assert "secret" not in caplog.text


async def test_a_refused_open_leaves_no_session() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, server):
        engine.error = Overloaded("full")
        with pytest.raises(Overloaded):
            await remote.open(opening())
        engine.error = None
        opened = await remote.open(opening("other"))
        await remote.verify(verify(opened, "other"))
        assert (server.sessions, len(engine.prefixes)) == (1, 1)


async def test_another_incarnation_is_told_to_the_engine_which_refuses_it() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        await remote.open(opening())
        with pytest.raises(SessionLost, match="in elsewhere"):
            await remote.verify(verify(Opened(Incarnation("elsewhere")), "s"))


async def test_closing_a_run_ends_it_at_the_engine_before_the_next_round_of_the_session() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        async with aclosing(remote.run(run(opened, "s", max_tokens=1_000_000))) as verdicts:
            async for verdict in verdicts:
                if verdict.offset == 2:
                    break
        after = await remote.verify(verify(opened, "s", round=77))
        ran = engine.run_tokens
        assert (after.round, engine.cancelled) == (77, 1)
        await remote.verify(verify(opened, "s", round=78))
        assert engine.run_tokens == ran


async def test_a_run_gives_way_to_the_next_round_and_its_reader_is_told_that_it_ended() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        verdicts = remote.run(run(opened, "s", max_tokens=1_000_000))
        first = await anext(verdicts)
        after = await remote.verify(verify(opened, "s", round=77))
        rest = [each.offset async for each in verdicts]
        assert (after.round, engine.cancelled) == (77, 1)
        assert [first.offset, *rest] == list(range(engine.run_tokens))


async def test_a_call_waiting_on_a_session_that_is_closed_is_told_so() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        engine.gate.clear()
        waiting = asyncio.create_task(remote.verify(verify(opened, "s")))
        await engine.waiting.acquire()
        await remote.close(SessionId("s"))
        with pytest.raises(SessionLost, match="closed"):
            await waiting


async def test_a_slow_reader_of_a_run_holds_up_no_other_session() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        slow, quick = await remote.open(opening("slow")), await remote.open(opening("quick"))
        async with aclosing(remote.run(run(slow, "slow", max_tokens=500))) as verdicts:
            first = await anext(verdicts)
            for step in range(50):
                await remote.verify(verify(quick, "quick", round=step, offset=step))
            rest = [each.offset async for each in verdicts]
        assert [first.offset, *rest] == list(range(500))


async def test_a_run_waits_for_a_peer_that_does_not_read() -> None:
    engine = CountingTarget()
    async with raw_stream(engine) as stream:
        await stream.write(codec.request_frame(opening(), call=1, session=1))
        await stream.read()
        opened = Opened(Incarnation("first"))
        request = run(opened, "s", max_tokens=100_000_000)
        await stream.write(codec.request_frame(request, call=2, session=1, bound=opened.incarnation))
        before = -1
        while engine.run_tokens != before:
            before = engine.run_tokens
            await asyncio.sleep(0.3)
        assert 0 < engine.run_tokens < 50_000


async def test_a_message_over_the_limit_is_refused_here_with_the_limit_and_the_link_lives() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        ids = transport.MAX_MESSAGE_BYTES // 2 + 1
        with pytest.raises(BadRequest, match=rf"takes \d+ bytes .* limit is {transport.MAX_MESSAGE_BYTES}") as refused:
            await remote.open(opening(prompt=(999,) * ids))
        assert refused.value.parameter == "prompt"
        assert (await remote.open(opening())).cached_tokens == 3


async def test_an_answer_over_the_limit_fails_its_own_call_only() -> None:
    async with draft_link(CountingDraft()) as remote:
        opened = await remote.open(opening())
        with pytest.raises(
            BadRequest, match=rf"takes \d+ bytes .* limit is {transport.MAX_MESSAGE_BYTES}; send sparser q"
        ):
            await remote.propose(propose(opened, "s", k=transport.MAX_MESSAGE_BYTES // 3))
        assert (await remote.propose(propose(opened, "s", k=2))).ids == (0, 1)


async def test_the_longest_prompt_that_the_settings_allow_goes_through() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        prompt = (151_935,) * (4_194_304 // 3 + 100_000)
        assert (await remote.open(opening(prompt=prompt))).cached_tokens == len(prompt)


async def test_what_makes_no_sense_is_answered_and_the_stream_goes_on() -> None:
    async with raw_stream(CountingTarget()) as stream:

        async def ask(frame: bytes) -> pb.Reply:
            await stream.write(frame)
            reply = await stream.read()
            assert isinstance(reply, bytes)
            return pb.Replies.FromString(reply).replies[0]

        def framed(request: pb.Request) -> bytes:
            return pb.Requests(requests=[request]).SerializeToString()

        good = await ask(codec.request_frame(opening(), call=1, session=1))
        assert good.opened.incarnation == "first"
        table = [
            (b"\xff\xff\xff", 0, pb.ERROR_KIND_BAD_REQUEST, "frame"),
            (framed(pb.Request(call=2, session=1)), 2, pb.ERROR_KIND_BAD_REQUEST, "kind"),
            (framed(pb.Request(call=3, session=2, open=pb.Open())), 3, pb.ERROR_KIND_BAD_REQUEST, "open.parameters"),
            (framed(pb.Request(call=4, session=9, verify=pb.Verify())), 4, pb.ERROR_KIND_SESSION_LOST, ""),
            (framed(pb.Request(call=5, session=1, propose=pb.Propose())), 5, pb.ERROR_KIND_BAD_REQUEST, "kind"),
            (framed(pb.Request(call=0, session=1, verify=pb.Verify())), 0, pb.ERROR_KIND_BAD_REQUEST, "call"),
        ]
        for frame, call, kind, parameter in table:
            reply = await ask(frame)
            assert (reply.call, reply.failure.kind, reply.failure.parameter) == (call, kind, parameter)
        verdict = await ask(framed(pb.Request(call=6, session=1, verify=pb.Verify(round=4))))
        assert (verdict.call, verdict.verdict.round) == (6, 4)


async def test_more_calls_at_once_than_any_engine_holds_are_refused_and_the_rest_is_answered() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, _):
        opened = await remote.open(opening())
        engine.gate.clear()
        calls = [asyncio.create_task(remote.verify(verify(opened, "s", round=n))) for n in range(MAX_CALLS + 1)]
        with pytest.raises(Overloaded, match=f"{MAX_CALLS} calls are in progress"):
            await calls[-1]
        engine.gate.set()
        assert [(await call).round for call in calls[:-1]] == list(range(MAX_CALLS))


def test_pauses_double_up_to_the_most_and_chance_shortens_them_by_half_at_most() -> None:
    longest, shortest = Backoff().pauses(lambda: 0.0), Backoff().pauses(lambda: 1.0)
    assert [next(longest) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert [next(shortest) for _ in range(3)] == [0.05, 0.1, 0.2]


@asynccontextmanager
async def raw_stream(engine: CountingTarget) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
    """What a client of another hand would hold: bytes in, bytes out; the window stays at 64 KiB on any link."""
    options = [*transport.CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0)]
    async with (
        served(TargetRole(engine)) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel,
    ):
        yield channel.stream_stream(f"/{transport.TARGET_SERVICE}/Converse", bytes, bytes)(None)
