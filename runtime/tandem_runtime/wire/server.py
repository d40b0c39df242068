"""Knows how an engine is served over gRPC: the service, health, what the link can carry, and an orderly end.

Refuses to know which engine it is; what happens on a stream is `conversation`'s.
"""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tandem_runtime.domain.errors import BadRequest, TandemError
from tandem_runtime.wire import pod_calls, transport
from tandem_runtime.wire.conversation import Conversation
from tandem_runtime.wire.roles import Role
from tandem_runtime.wire.tls import ROLE_NAME, RoleTls, is_a_role

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

LAST_ROUNDS_SECONDS: Final = 1.0
"""What rounds in flight get after the grace of `drain` is over; a step takes tens of milliseconds."""


class EngineServer:
    """Serves `role` on `host`:`port` for as long as the context lasts. Port 0 picks one; `port` then says which. With
    `tls`, to roles alone; else to everyone, in clear."""

    def __init__(self, role: Role, *, host: str, port: int, tls: RoleTls | None = None) -> None:
        self.port = port
        self._host = host
        self._role = role
        self._tls = tls
        self._name = uuid.uuid4().hex[:8]
        self._serial = itertools.count(1)
        self._conversations: set[Conversation] = set()
        self._draining = False
        self._vacant = asyncio.Event()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # stubs lack the asyncio half
        self._server = grpc.aio.server(options=transport.SERVER_OPTIONS)

    async def __aenter__(self) -> Self:
        """Raises ModelRefused if the longest session does not fit the link, OSError if the port cannot be had."""
        transport.check_context_fits(await self._role.capabilities())
        self._server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._bind()
        await self._server.start()
        await self._tell_health(_SERVING)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(grace=None)

    @property
    def sessions(self) -> int:
        """Sessions open now, on all streams."""
        return sum(each.sessions for each in self._conversations)

    @property
    def refusal(self) -> str | None:
        """Why new sessions are refused, or None while they are taken."""
        return "this replica is shutting down; open the session on another one" if self._draining else None

    async def drain(self, *, grace_seconds: float) -> None:
        """Take no new session, let the open ones go on for the grace, finish the rounds then in flight, and stop."""
        self._draining = True
        await self._tell_health(_NOT_SERVING)
        try:
            async with asyncio.timeout(grace_seconds):
                while self.sessions:
                    self._vacant.clear()
                    await self._vacant.wait()
        except TimeoutError:
            pass
        await asyncio.gather(*(each.hang_up(seconds=LAST_ROUNDS_SECONDS) for each in self._conversations))
        await self._server.stop(grace=LAST_ROUNDS_SECONDS)

    def _handlers(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """Bytes in, bytes out: a frame that cannot be read is answered by the conversation instead of ending it."""
        return grpc.method_handlers_generic_handler(
            self._role.service,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
                "Forget": grpc.unary_unary_rpc_method_handler(self._forget),
                "Converse": grpc.stream_stream_rpc_method_handler(self._converse),
            },
        )

    def _bind(self) -> int:
        address = f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        try:
            if self._tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, self._tls.server_credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: in use, or no address of this machine") from error

    async def _tell_health(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for name in ("", self._role.service):
            await self._health.set(name, status)

    async def _refuse_strangers(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        """Who has a certificate of our authority for something else is no role."""
        if self._tls is not None and not is_a_role(context.auth_context()):
            reason = f"TLS: your certificate is not for the DNS name {ROLE_NAME}, as those of all roles are"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)

    async def _describe(self, _request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        await self._refuse_strangers(context)
        try:
            return pod_calls.capabilities_bytes(await self._role.capabilities())
        except TandemError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _forget(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        await self._refuse_strangers(context)
        try:
            await self._role.forget(pod_calls.read_forget(request))
        except BadRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return pod_calls.forget_reply()

    async def _converse(self, frames: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await self._refuse_strangers(context)
        name = f"{self._name}-{next(self._serial)}"
        conversation = Conversation(self._role, name=name, refusal=lambda: self.refusal, on_vacated=self._on_vacated)
        self._conversations.add(conversation)
        await context.send_initial_metadata(())
        reading = asyncio.create_task(conversation.read(frames))
        try:
            async for frame in conversation.outbox.frames():
                await context.write(frame)
        finally:
            reading.cancel()
            await asyncio.shield(self._finish(conversation))

    async def _finish(self, conversation: Conversation) -> None:
        await conversation.finish()
        self._conversations.discard(conversation)
        self._on_vacated()

    def _on_vacated(self) -> None:
        if not self.sessions:
            self._vacant.set()
