"""Whoever waits for an API server waits as long as was said, whatever one of its answers takes."""

import asyncio
import ssl

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_devcluster.api import Api, wait_until_ready
from tandem_devcluster.kubeconfig import Access


def answering_from(turn: int, asked: list[int]) -> TestServer:
    """Asked for the first time it never answers; from that turn on it is ready."""

    async def readyz(_: web.Request) -> web.Response:
        asked.append(len(asked))
        if len(asked) < turn:
            await asyncio.Event().wait()
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    return TestServer(app)


async def test_one_answer_that_never_comes_is_not_the_end_of_waiting() -> None:
    asked: list[int] = []
    async with answering_from(2, asked) as server:
        access = Access(str(server.make_url("")), ssl.create_default_context())
        async with Api(access, request_seconds=0.2) as api:
            await wait_until_ready(api, deadline_seconds=20)
    assert len(asked) == 2


async def test_a_server_that_is_never_ready_is_given_up_at_the_deadline() -> None:
    async with answering_from(1000, []) as server:
        access = Access(str(server.make_url("")), ssl.create_default_context())
        async with Api(access, request_seconds=0.1) as api:
            with pytest.raises(TimeoutError):
                await wait_until_ready(api, deadline_seconds=0.5)
