"""The gateway's own description of its API, and requests made from it at random: none meets a fault of ours."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.seams.gateway_peers import gateway_on_a_thread, running_gateway

from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.gateway.description import describe_api
from tandem_runtime.gateway.schema import ChatRequest, CompletionRequest

END = 256
TABLE = [*(bytes([code]) for code in range(256)), b""]
"""Whatever is sent can be read."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def described() -> dict[str, Any]:
    """The description, narrowed to what this model can be asked, so that requests come further than to a 400."""
    document = deepcopy(dict(describe_api()))
    schemas = document["components"]["schemas"]
    for shape in ("ChatRequest", "CompletionRequest"):
        schemas[shape]["properties"] |= {"model": {"const": "chat"}, "n": {"enum": [1, 2]}}
    schemas["CompletionRequest"]["properties"]["prompt"] = {"type": "string", "minLength": 1, "maxLength": 12}
    message = schemas["Message"]["properties"]
    del message["tool_calls"], message["tool_call_id"]
    message |= {"role": {"enum": ["system", "user"]}, "content": {"type": "string", "minLength": 1, "maxLength": 12}}
    schemas["ChatRequest"]["properties"]["messages"] |= {"maxItems": 2}
    return document


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a gateway on a loop of its own, as the requests are sent from this thread."""
    script = chain_logits_of(len(TABLE))
    with gateway_on_a_thread(
        script, table=TABLE, end_tokens=[END], max_length=48, tool_format=ToolFormat.HERMES
    ) as url:
        yield url


def chain_logits_of(width: int) -> Any:
    """The chain's letters among others; it ends where the others would begin."""

    def script(prefix: tuple[int, ...]) -> list[float]:
        small = chain_logits(tuple(token % 7 for token in prefix))
        return [*small, *([-1.0] * (width - 8)), 0.0]

    return script


_FOUND: Any = schemathesis.openapi.from_dict(described()).get_all_operations()
OPERATIONS: list[Any] = [result.ok() for result in _FOUND]
KINDS = [
    *((operation, GenerationMode.POSITIVE) for operation in OPERATIONS),
    *((operation, GenerationMode.NEGATIVE) for operation in OPERATIONS if operation.method == "post"),
]


@pytest.mark.parametrize(
    ("operation", "mode"), KINDS, ids=[f"{operation.label} {mode.value}" for operation, mode in KINDS]
)
def test_no_request_is_answered_by_a_fault_of_ours(operation: Any, mode: GenerationMode, address: str) -> None:
    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        case.validate_response(case.call(base_url=address), checks=CHECKS)

    send()


async def test_the_description_is_served_and_names_every_field() -> None:
    async with running_gateway(chain_logits) as running:
        reply = await running.http.get("/openapi.json")
    assert reply.json() == json.loads(json.dumps(describe_api()))
    schemas = reply.json()["components"]["schemas"]
    for shape in (ChatRequest, CompletionRequest):
        assert set(schemas[shape.__name__]["properties"]) == set(shape.model_fields)
        assert schemas[shape.__name__]["additionalProperties"] is False
