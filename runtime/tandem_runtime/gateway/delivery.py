"""Knows how one reply is written to its caller, plain or in events, and notices that the caller has left.

Refuses to know paths and engines.

A caller who leaves ends the request: while it runs, the connection is watched for its end, so that a plain answer too
stops when nobody waits for it. A failure before the first byte is an ordinary reply with its own status; after that it
is an event in the stream, which then ends without `[DONE]`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tandem_runtime.domain.commands import Emit, Finish
from tandem_runtime.domain.errors import Cancelled, origin
from tandem_runtime.domain.tokens import PromptRead
from tandem_runtime.gateway import sse
from tandem_runtime.gateway.failures import Failure, describe_failure
from tandem_runtime.gateway.intake import Ask
from tandem_runtime.gateway.present import Answer, Presenter, Whole, count_usage, likeliest
from tandem_runtime.gateway.serving import Gateway, Item, Reply
from tandem_runtime.gateway.streaming import ReplyStream

KEEP_ALIVE_SECONDS = 15.0
"""Proxies commonly cut a connection that is silent for 30 or 60 seconds."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One accepted request: what it asks, and how its reply looks."""

    id: str
    ask: Ask
    presenter: Presenter
    stream: bool
    wants_usage: bool
    session_key: str | None
    caller: Mapping[str, str]
    """Its headers of W3C trace context."""

    def served_by(self, gateway: Gateway) -> AbstractAsyncContextManager[Reply]:
        return gateway.answer(self.ask, request_id=self.id, session_key=self.session_key, caller=self.caller)


def report_failure(error: BaseException) -> Failure:
    """Describe a failure, and log what is nobody's fault but ours."""
    failure = describe_failure(error)
    if failure.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request failed error=%s", origin(error))
    return failure


def failure_reply(failure: Failure) -> Response:
    return Response(
        failure.body, status_code=failure.status, headers=dict(failure.headers), media_type="application/json"
    )


async def plain_reply(gateway: Gateway, call: Call, receive: Receive) -> Response:
    """The whole answer at once, or its failure."""
    try:
        return JSONResponse(await _unless_gone(receive, _answer(gateway, call)))
    except Exception as error:
        return failure_reply(report_failure(error))


async def _answer(gateway: Gateway, call: Call) -> Whole:
    answers = [Answer() for _ in range(call.ask.sessions)]
    async with call.served_by(gateway) as reply, aclosing(reply.items()) as items:
        async for pair in items:
            assert pair is not None, "silence is told where it is asked for"
            match pair:
                case index, PromptRead() as read:
                    answers[index].prompt = read
                case index, Emit() as emit:
                    answers[index].add(emit)
                case index, Finish() as finish:
                    answers[index].finish = finish.reason
        usage = count_usage(prompt_tokens=call.ask.prompt_tokens, answers=answers, details=reply.details())
        ask = call.ask
        told = answers if ask.kept is None else likeliest(answers, of=ask.choices, keep=ask.kept)
        return call.presenter.whole(told, usage, reply.report())


class StreamedReply(Response):
    """A reply in events. Its status waits for the first of them, so that a refusal has a status of its own."""

    def __init__(self, gateway: Gateway, call: Call) -> None:
        self._gateway = gateway
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Cancelled):
            await _unless_gone(receive, self._write(scope, receive, send))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async with aclosing(self._events()) as events:
                async for part in events:
                    if not started:
                        started = True
                        await send(_stream_start())
                    await send(_stream_part(part))
        except Exception as error:
            failure = report_failure(error)
            if not started:
                await failure_reply(failure)(scope, receive, send)
                return
            await send(_stream_part(sse.frame_event(failure.body)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The whole stream as bytes, a part for what comes at once, with a comment whenever nothing was said for a
        while."""
        call = self._call
        usage_of_prompt = call.ask.prompt_tokens if call.wants_usage else None
        stream = ReplyStream(call.presenter, choices=call.ask.sessions, usage_of_prompt=usage_of_prompt)
        async with (
            call.served_by(self._gateway) as reply,
            aclosing(reply.items(silence_seconds=KEEP_ALIVE_SECONDS)) as pairs,
        ):
            async for pair in pairs:
                await asyncio.sleep(0)  # the question of the next round leaves first: a draft waits for that
                part = _frame(stream, reply, pair)
                if part:
                    yield part
        yield sse.DONE


def _frame(stream: ReplyStream, reply: Reply, pair: tuple[int, Item] | None) -> bytes:
    """Nothing where all is held back."""
    match pair:
        case None:
            return sse.KEEP_ALIVE
        case index, PromptRead() as read:
            chunks = stream.prompt_read(index, read)
        case index, Emit() as emit:
            chunks = stream.emitted(index, emit)
        case index, Finish() as finish:
            chunks = stream.finished(index, finish.reason, reply.report(), reply.details())
    return b"".join([sse.frame_line(to_json(chunk, ensure_ascii=True)) for chunk in chunks])


def _stream_start() -> dict[str, Any]:
    headers = [
        (b"content-type", sse.MEDIA_TYPE.encode()),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # a buffering proxy would turn the stream into one late reply
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _stream_part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result; Cancelled, with the work ended, if the caller leaves first or is hung up on."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.cancelled():
            raise Cancelled("the caller was hung up on")
        if working.done():
            return working.result()
        raise Cancelled("the caller left")
    finally:
        await _end(leaving)
        await _end(working)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has cleaned up; what it failed with was or will be told elsewhere."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
