"""`KubeCluster` over a loopback server that answers what the test says: what is asked, and what each refusal means."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from tandem_operator import kube
from tandem_operator.domain.errors import ClusterError, Conflict, Forbidden, Refused, Unavailable
from tandem_operator.kube import PLACES, Answer, KubeCluster, path_of, refusal
from tandem_operator.ports import Key, Kind

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "llm", "name": "chat"}, "spec": {}}


class Api:
    """Remembers what was asked; `reply` says what is answered."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.serve)
        self.server = TestServer(app)
        self.asked: list[tuple[str, str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.reply: Reply = self.answer({"kind": "Status", "status": "Success"})

    def answer(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
        async def reply(_: web.Request) -> web.Response:
            if isinstance(body, str):
                return web.Response(text=body, status=status, headers=headers)
            return web.json_response(body, status=status, headers=headers)

        return reply

    async def serve(self, request: web.Request) -> web.StreamResponse:
        content = await request.text()
        self.asked.append((request.method, request.path_qs, request.content_type, json.loads(content or "null")))
        self.headers.append(dict(request.headers))
        return await self.reply(request)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Api, KubeCluster]]:
    api = Api()
    await api.server.start_server()
    settings = client.Configuration()
    settings.host = str(api.server.make_url("")).rstrip("/")
    settings.api_key = {"authorization": "Bearer t"}
    kubernetes = client.ApiClient(settings)
    try:
        yield api, KubeCluster(kubernetes)
    finally:
        await kubernetes.close()  # type: ignore[no-untyped-call]  # the client is only partly typed
        await api.server.close()


# What is asked


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "path"),
    [
        (Kind.DEPLOYMENT, "llm", "chat", "/apis/apps/v1/namespaces/llm/deployments/chat"),
        (Kind.POD, "llm", None, "/api/v1/namespaces/llm/pods"),
        (Kind.NODE, None, None, "/api/v1/nodes"),
        (Kind.SPECULATIVE_DEPLOYMENT, None, None, "/apis/tandem.dev/v1alpha1/speculativedeployments"),
    ],
)
def test_a_kind_lives_at_its_path(kind: Kind, namespace: str | None, name: str | None, path: str) -> None:
    assert path_of(kind, namespace, name) == path


def test_every_kind_has_a_place() -> None:
    assert set(PLACES) == set(Kind)


async def test_each_verb_is_one_request_with_its_content_type_and_body() -> None:
    async with serving() as (api, cluster):
        key = Key("llm", "chat")
        await cluster.get(Kind.SERVICE, "llm", "chat")
        await cluster.create(Kind.SERVICE, SERVICE)
        await cluster.apply(Kind.SERVICE, SERVICE)
        await cluster.replace(Kind.SERVICE, SERVICE)
        await cluster.replace_status(Kind.SPECULATIVE_DEPLOYMENT, SERVICE)
        await cluster.annotate(Kind.SERVICE, key, {"a": "1", "b": None})
        await cluster.delete(Kind.SERVICE, "llm", "chat", uid="u1")
        await cluster.delete(Kind.SERVICE, "llm", "chat")
    one, plain = "/api/v1/namespaces/llm/services/chat", "application/json"
    signed = f"{one}?fieldManager=tandem-operator"
    status = "/apis/tandem.dev/v1alpha1/namespaces/llm/speculativedeployments/chat/status?fieldManager=tandem-operator"
    assert api.asked == [
        ("GET", one, plain, None),
        ("POST", "/api/v1/namespaces/llm/services?fieldManager=tandem-operator", plain, SERVICE),
        ("PATCH", f"{signed}&force=true", "application/apply-patch+yaml", SERVICE),
        ("PUT", signed, plain, SERVICE),
        ("PUT", status, plain, SERVICE),
        ("PATCH", signed, "application/merge-patch+json", {"metadata": {"annotations": {"a": "1", "b": None}}}),
        ("DELETE", one, plain, {"propagationPolicy": "Background", "preconditions": {"uid": "u1"}}),
        ("DELETE", one, plain, {"propagationPolicy": "Background"}),
    ]
    assert {headers["Authorization"] for headers in api.headers} == {"Bearer t"}


async def test_the_items_of_a_list_say_what_they_are_and_come_in_order_of_name() -> None:
    async with serving() as (api, cluster):
        items = [{"metadata": {"name": name}} for name in ("b", "a")]
        api.reply = api.answer({"kind": "DeploymentList", "apiVersion": "apps/v1", "items": items})
        found = await cluster.list(Kind.DEPLOYMENT, "llm", labels={"b": "2", "a": "1"})
        api.reply = api.answer({"kind": "DeploymentList", "apiVersion": "apps/v1", "items": None})
        assert await cluster.list(Kind.DEPLOYMENT, None, labels={}) == ()
    assert found == tuple(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}} for name in ("a", "b")
    )
    assert api.asked[0][1] == "/apis/apps/v1/namespaces/llm/deployments?labelSelector=a%3D1,b%3D2"


async def test_of_nodes_only_the_metadata_crosses_the_wire() -> None:
    async with serving() as (api, cluster):
        items = [{"metadata": {"name": "n", "labels": {"gpu": "L4"}}}]
        api.reply = api.answer({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
        (found,) = await cluster.list(Kind.NODE, None, labels={})
        await cluster.list(Kind.POD, "llm", labels={})
    assert (found["kind"], found["metadata"]) == ("Node", items[0]["metadata"])
    assert [headers["Accept"] for headers in api.headers] == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json",
    ]


# What refusals mean


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Refused),
        (401, Unavailable),
        (403, Forbidden),
        (409, Conflict),
        (410, Unavailable),
        (413, Refused),
        (415, Refused),
        (422, Refused),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
async def test_a_status_is_a_branch_of_the_error_tree_in_the_servers_own_words(
    status: int, error: type[ClusterError]
) -> None:
    async with serving() as (api, cluster):
        api.reply = api.answer({"kind": "Status", "message": "spec.replicas: must be >= 0"}, status)
        with pytest.raises(ClusterError) as caught:
            await cluster.apply(Kind.SERVICE, SERVICE)
    assert type(caught.value) is error
    assert str(caught.value) == "PATCH /api/v1/namespaces/llm/services/chat: spec.replicas: must be >= 0"


async def test_an_object_that_does_not_fit_its_type_is_refused_though_the_server_calls_it_an_error_of_its_own() -> None:
    words = (
        "failed to create typed patch object (llm/chat; v1, Kind=Service): .spec.prots: field not declared in schema"
    )
    async with serving() as (api, cluster):
        api.reply = api.answer({"kind": "Status", "message": words}, 500)
        with pytest.raises(Refused, match="field not declared in schema"):
            await cluster.apply(Kind.SERVICE, SERVICE)


async def test_a_missing_object_is_none_to_a_read_and_fine_to_a_delete_and_unavailable_to_a_write() -> None:
    async with serving() as (api, cluster):
        api.reply = api.answer({"kind": "Status", "message": "not found"}, 404)
        assert await cluster.get(Kind.SERVICE, "llm", "chat") is None
        await cluster.delete(Kind.SERVICE, "llm", "chat", uid="u1")
        for write in (cluster.apply, cluster.create, cluster.replace, cluster.replace_status):
            with pytest.raises(Unavailable, match="not found"):
                await write(Kind.SERVICE, SERVICE)


async def test_another_object_of_the_name_is_left_alone_and_a_plain_delete_tells_its_conflict() -> None:
    async with serving() as (api, cluster):
        api.reply = api.answer({"kind": "Status", "message": "the UID in the precondition does not match"}, 409)
        await cluster.delete(Kind.SERVICE, "llm", "chat", uid="u1")
        with pytest.raises(Conflict):
            await cluster.delete(Kind.SERVICE, "llm", "chat")


@pytest.mark.parametrize(("given", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)])
async def test_the_server_says_when_to_come_again(given: str, seconds: float | None) -> None:
    async with serving() as (api, cluster):
        api.reply = api.answer({"kind": "Status", "message": "slow down"}, 429, {"Retry-After": given})
        with pytest.raises(Unavailable) as caught:
            await cluster.get(Kind.SERVICE, "llm", "chat")
    assert caught.value.retry_after_seconds == seconds


@pytest.mark.parametrize("body", ["", "<html>a proxy speaks</html>", "[]", "null"])
async def test_an_answer_that_is_no_object_is_no_answer(body: str) -> None:
    async with serving() as (api, cluster):
        api.reply = api.answer(body)
        with pytest.raises(Unavailable, match="the answer is no JSON"):
            await cluster.get(Kind.SERVICE, "llm", "chat")


@pytest.mark.parametrize("data", [b"", b"gone", b"[]", b"{}", b"null", b"\xff"])
def test_a_refusal_without_words_has_its_reason_phrase(data: bytes) -> None:
    assert str(refusal("GET /x", Answer(503, "Service Unavailable", None, data))) == "GET /x: Service Unavailable"


async def test_a_hanging_server_is_unavailable_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "REQUEST_SECONDS", 0.2)
    released = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    async def hang_in_the_body(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"kind"')
        await released.wait()
        return response

    async with serving() as (api, cluster):
        for reply in (hang, hang_in_the_body):
            api.reply = reply
            async with asyncio.timeout(5):
                with pytest.raises(Unavailable, match="TimeoutError"):
                    await cluster.get(Kind.SERVICE, "llm", "chat")
        released.set()


async def test_a_server_that_is_not_there_or_hangs_up_is_unavailable() -> None:
    async with serving() as (api, cluster):

        async def hang_up(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        api.reply = hang_up
        with pytest.raises(Unavailable):
            await cluster.get(Kind.SERVICE, "llm", "chat")
        await api.server.close()
        with pytest.raises(Unavailable):
            await cluster.get(Kind.SERVICE, "llm", "chat")
