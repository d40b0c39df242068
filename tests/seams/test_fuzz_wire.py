"""Whatever bytes reach a target or a draft, it goes on: each call is answered or its stream ends, nobody else notices.

The messages are made from their own descriptions, so that one that is added is tried without a word here.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from random import Random
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.seams.gateway_peers import until
from tests.seams.port_words import LIFE, SystemClock
from tests.seams.wire_peers import connected, served

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import (
    Grammar,
    GrammarKind,
    OpenSession,
    Proposal,
    ProposeRound,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import ScriptedModel, chain_logits
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.grammar import table_grammars
from tandem_runtime.wire import codec, transport
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole

LENGTH = 48
TABLE = [b"{", b"}", b'"', b"a", b":", b" ", b""]
END = 6
FACTS = EngineFacts(
    model_digest="sha256:m",
    tokenizer_digest="sha256:t",
    incarnation=LIFE,
    end_tokens=frozenset({END}),
    grammars=table_grammars(TABLE, end_tokens=frozenset({END})),
)
CALLS = Grammar(GrammarKind.CALLS, json.dumps({"format": "Llama", "call": {"type": "object"}}))
FEW = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

EDGES = [31, 32, 47, 48, 49, 63, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS = [0.0, 0.5, 1.0, 2.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")]
TEXTS = ["", "a", "x" * 300, "{}", '{"type": "object"}', "[", "(a|b", '{"format": "Hermes", "call": {}}', str(LIFE)]


def value_of(field: FieldDescriptor, chance: Random, depth: int) -> Any:
    kind = FieldDescriptor
    match field.type:
        case kind.TYPE_MESSAGE:
            return filled(field.message_type, chance, depth + 1)
        case kind.TYPE_ENUM:
            return chance.choice([1, 1, chance.randrange(-1, 10)])
        case kind.TYPE_STRING:
            return chance.choice(TEXTS)
        case kind.TYPE_BYTES:
            return chance.randbytes(chance.randrange(20))
        case kind.TYPE_BOOL:
            return chance.random() < 0.5
        case kind.TYPE_DOUBLE | kind.TYPE_FLOAT:
            return chance.choice(NUMBERS)
        case _:
            return chance.choice([*[chance.randrange(3)] * 3, *[chance.randrange(8)] * 3, chance.choice(EDGES)])


def filled(descriptor: Any, chance: Random, depth: int = 0) -> Message:
    """Any message of that kind, each field present or not."""
    message: Message = getattr(pb, descriptor.name)()
    for field in descriptor.fields:
        if depth > 4 or chance.random() < (0.75 if field.type == FieldDescriptor.TYPE_MESSAGE else 0.4):
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(value_of(field, chance, depth) for _ in range(chance.randrange(6)))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(message, field.name).CopyFrom(value_of(field, chance, depth))
        else:
            setattr(message, field.name, value_of(field, chance, depth))
    return message


def opening(grammar: Grammar | None = None, **changes: Any) -> OpenSession:
    plain = OpenSession(
        session=SessionId("s"),
        prompt=(1, 2, 3),
        output=(),
        parameters=SamplingParameters(seed=7, temperature=0.5, grammar=grammar),
        verification=Verification.COUPLED,
        max_tokens=24,
        tenant="t",
    )
    return replace(plain, **changes)


OPENINGS = [
    opening(),
    opening(CALLS),
    opening(Grammar(GrammarKind.REGEX, "a*")),
    opening(verification=Verification.REJECTION),
    opening(logprobs=3, priority=2),
    opening(prompt=(1,) * 47),
    opening(prompt=(1,) * 60, max_tokens=0),
    opening(output=(2,) * 50),
]


KINDS_OF_REQUEST = [field.name for field in pb.Request.DESCRIPTOR.oneofs_by_name["kind"].fields]
WORK = [kind for kind in KINDS_OF_REQUEST if kind not in ("open", "cancel", "close")]


def opened(number: int, request: OpenSession) -> bytes:
    return codec.request_frame(request, call=1000 + number, session=number)


def request(chance: Random, call: int) -> bytes:
    """A frame with a request of any kind, whatever its message holds, of a session that is most likely open."""
    kind = chance.choice([*KINDS_OF_REQUEST, *WORK, *WORK])
    message = pb.Request(call=chance.choice([*[call] * 9, 0, 1]), session=chance.choice([0, 0, 0, 1, 1, 2]))
    message.incarnation = chance.choice(["", "", "", str(LIFE), "another"])
    inner = filled(pb.Request.DESCRIPTOR.fields_by_name[kind].message_type, chance)
    getattr(message, kind).CopyFrom(inner)
    return pb.Requests(requests=[message]).SerializeToString()


def damaged(frame: bytes, chance: Random) -> bytes:
    """Some bytes are others, or are missing."""
    torn = bytearray(frame)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(torn) + 1)
        torn[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
    return bytes(torn)


def frames(chance: Random) -> list[bytes]:
    """Two sessions are opened, and then anything may come."""
    sent = [opened(number, chance.choice(OPENINGS)) for number in (0, 1)]
    for call in range(2, chance.randrange(8, 24)):
        frame = request(chance, call)
        again = opened(chance.randrange(2), chance.choice(OPENINGS))
        ways = [*[frame] * 9, again, again, damaged(frame, chance), chance.randbytes(chance.randrange(40))]
        sent.append(chance.choice(ways))
    return sent


async def told(port: int, service: str, sent: Sequence[bytes]) -> list[pb.Reply]:
    """All that is answered to these frames by the time at which the stream ends."""
    replies: list[pb.Reply] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=transport.CLIENT_OPTIONS) as channel:
        converse: Any = channel.stream_stream(f"/{service}/Converse", bytes, bytes)
        stream = converse()
        for frame in sent:
            await stream.write(frame)
        await stream.done_writing()
        async with asyncio.timeout(30):
            while isinstance(answer := await stream.read(), bytes):
                replies += pb.Replies.FromString(answer).replies
    return replies


async def judged(target: RemoteTarget, ids: tuple[TokenId, ...], round: int, offset: int) -> list[TokenId]:
    verdict = await target.verify(VerifyRound(SessionId("good"), LIFE, round, offset, Proposal(ids)))
    return [*ids[: verdict.accepted], verdict.token]


async def check(
    sent: Sequence[bytes], engine: BatchedTarget | BatchedDraft, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The frames reach the engine while a good session is in the middle of its work."""
    caplog.clear()
    async with AsyncExitStack() as stack:
        stack.enter_context(engine)
        role = TargetRole(engine) if isinstance(engine, BatchedTarget) else DraftRole(engine)
        server = await stack.enter_async_context(served(role))
        async with AsyncExitStack() as good:
            work = await _good(good, server.port, is_target=isinstance(engine, BatchedTarget))
            before = await work()
            replies = await told(server.port, role.service, sent)
            assert await work() == before
            await until(lambda: server.sessions == 1)
        await until(lambda: server.sessions == 0)
        await until(lambda: model.blocks.used == 0)
    failures = [reply.failure for reply in replies if reply.WhichOneof("kind") == "failure"]
    assert not [failure for failure in failures if failure.kind == pb.ERROR_KIND_INTERNAL]
    ours = [record for record in caplog.records if record.name.startswith("tandem_runtime")]
    assert not [record for record in ours if record.levelno >= logging.ERROR]


async def _good(stack: AsyncExitStack, port: int, *, is_target: bool) -> Callable[[], Awaitable[list[TokenId]]]:
    """What a session says that is opened now, each time from where it stood."""
    good = opening(session=SessionId("good"), tenant="u")
    if is_target:
        target = await stack.enter_async_context(connected(RemoteTarget, port))
        await target.open(good)
        stack.push_async_callback(target.close, good.session)

        async def judge() -> list[TokenId]:
            await target.open(good)
            said = await judged(target, (), 0, 0)
            return said + await judged(target, (1, 2), 1, 1)

        return judge
    draft = await stack.enter_async_context(connected(RemoteDraft, port))
    await draft.open(good)
    stack.push_async_callback(draft.close, good.session)

    async def propose() -> list[TokenId]:
        await draft.open(good)
        return [*(await draft.propose(ProposeRound(SessionId("good"), LIFE, 0, (), 5))).ids]

    return propose


KINDS: dict[str, type[BatchedTarget] | type[BatchedDraft]] = {"target": BatchedTarget, "draft": BatchedDraft}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_frame_harms_an_engine_or_another_stream(
    kind: type[BatchedTarget] | type[BatchedDraft], caplog: pytest.LogCaptureFixture
) -> None:
    @settings(FEW, suppress_health_check=[*FEW.suppress_health_check, HealthCheck.function_scoped_fixture])
    @given(st.randoms(use_true_random=True))
    def send(chance: Random) -> None:
        model = ScriptedModel(chain_logits, max_length=LENGTH, max_sessions=4)
        asyncio.run(check(frames(chance), kind(model, FACTS, clock=SystemClock()), model, caplog))

    send()


@settings(FEW, max_examples=300)
@given(st.randoms(use_true_random=True), st.binary(max_size=60))
def test_no_reply_harms_who_reads_it(chance: Random, junk: bytes) -> None:
    """What a peer of another make says is an answer, an error of the tree, or no sense and said to be none."""
    reply = filled(pb.Reply.DESCRIPTOR, chance)
    assert isinstance(reply, pb.Reply)
    whole = pb.Replies(replies=[reply]).SerializeToString()
    for frame in (whole, damaged(whole, chance), junk):
        with suppress(BadRequest):
            for told in codec.read_replies(frame):
                told.body()
