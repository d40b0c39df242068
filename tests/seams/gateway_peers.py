"""A whole gateway in one process: real engines over scripted models, a real server on a loopback port."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx

from tandem_runtime.admin import http_server
from tandem_runtime.domain.evidence import Ledger, StratumFields
from tandem_runtime.domain.patience import LONGEST_WAIT_SECONDS, Patience
from tandem_runtime.domain.policy import ControlPolicy, ExactnessPolicy, Policy, SpeculationMode, SpeculationPolicy
from tandem_runtime.domain.tokens import Drafter, Incarnation, TokenId
from tandem_runtime.domain.tool_calls import ToolFormat
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.app import Api
from tandem_runtime.gateway.keys import Doorkeeper
from tandem_runtime.gateway.serving import Books, Gateway
from tandem_runtime.grammar import table_grammars
from tandem_runtime.local import LocalModel, Lookup, local_fleet, local_policy
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.ports import StepModel
from tandem_runtime.telemetry import Metrics
from tandem_runtime.testing import TableTokenizer


class ShiftedClock:
    """The system's clock; its wall time can be moved on."""

    def __init__(self) -> None:
        self.shift = 0.0

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time() + self.shift


class Unhurried(Patience):
    """Waits for a draft as long as for one that nobody knows. A test's machine may stand still for longer than a
    healthy process does; the draft would then be left alone for a second, and answers would have no proposals."""

    def ask(self, now: float, k: int, *, reads: bool) -> float:
        super().ask(now, k, reads=reads)
        return LONGEST_WAIT_SECONDS


LETTERS = [bytes([code]) for code in b"abcdefg"]


def always(k: int) -> SpeculationPolicy:
    """K = k in every round, as the cases say it."""
    return SpeculationPolicy(mode=SpeculationMode.ALWAYS, min_draft_tokens=k, max_draft_tokens=k)


def local(
    model: StepModel | Script,
    name: str,
    *,
    end_tokens: Sequence[TokenId] = (),
    max_length: int = 256,
    table: Sequence[bytes] = LETTERS,
    adapters: Adapters | None = None,
) -> LocalModel:
    step_model = ScriptedModel(model, max_length=max_length) if callable(model) else model
    facts = EngineFacts(
        model_digest=f"sha256:{name}",
        tokenizer_digest="sha256:table",
        incarnation=Incarnation(f"uid-{name}"),
        end_tokens=frozenset(end_tokens),
        grammars=table_grammars(table, end_tokens=frozenset(end_tokens)),
        adapters=adapters,
    )
    return LocalModel(step_model, facts)


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    gateway: Gateway
    http: httpx.AsyncClient
    clock: ShiftedClock
    models: Sequence[StepModel] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing of any request is left, in the gateway or in an engine's memory."""
        return self.gateway.sessions == 0 and all(model.blocks.used == 0 for model in self.models)

    async def plain(self, path: str = "/v1/completions", **fields: Any) -> dict[str, Any]:
        body = {"model": "chat", **fields}
        reply = await self.http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def stream(self, path: str = "/v1/completions", **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, `[DONE]` left out; fails if the stream ends without it and without an error."""
        body = {"model": "chat", "stream": True, **fields}
        last = ""
        async with self.http.stream("POST", path, json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])
                last = line or last
        assert last == "data: [DONE]" or '"error"' in last

    def stratum(self) -> StratumFields:
        """The only stratum of the evidence."""
        (only,) = self.gateway.evidence()["strata"]
        return only

    def put_policy(self, **changes: Any) -> Policy:
        policy = self.gateway.in_force.policy
        assert policy is not None
        self.gateway.in_force.policy = replace(policy, number=policy.number + 1, **changes)
        return self.gateway.in_force.policy


@asynccontextmanager
async def running_gateway(
    target: StepModel | Script,
    draft: StepModel | Script | Lookup | None = None,
    *,
    lookups: Sequence[Lookup] = (),
    table: Sequence[bytes] = LETTERS,
    end_tokens: Sequence[TokenId] = (),
    speculation: SpeculationPolicy | None = None,
    control: ControlPolicy | None = None,
    limits: Limits | None = None,
    keys: Doorkeeper | None = None,
    max_length: int = 256,
    draft_length: int = 256,
    adapters: Adapters | None = None,
    tool_format: ToolFormat | None = None,
) -> AsyncIterator[Running]:
    clock = ShiftedClock()
    model = local(target, "target", end_tokens=end_tokens, max_length=max_length, table=table, adapters=adapters)
    guesser: LocalModel | None = None
    if draft is not None and not isinstance(draft, Lookup):
        guesser = local(draft, "draft", end_tokens=end_tokens, max_length=draft_length, table=table)
    lookups = [*([draft] if isinstance(draft, Lookup) else []), *lookups]
    drafters = [*([] if guesser is None else [Drafter.MODEL]), *(lookup.drafter for lookup in lookups)]
    with local_fleet(model, guesser, lookups, clock=clock) as fleet:
        for replica in fleet.drafts:
            replica.patience = Unhurried()
        gateway = Gateway(
            tokenizer=TableTokenizer(table, end_tokens=frozenset(end_tokens), tool_format=tool_format),
            in_force=PolicyInForce(
                local_policy(
                    "chat",
                    drafters=drafters,
                    speculation=speculation or SpeculationPolicy(),
                    control=control or ControlPolicy(off_percent=0),
                    exactness=ExactnessPolicy(0),
                )
            ),
            fleet=fleet,
            books=Books(Ledger(boot="boot"), Metrics()),
            clock=clock,
            limits=limits or Limits(),
        )
        async with http_server(Api(gateway, keys=keys).app(), host="127.0.0.1", port=0, grace_seconds=2) as port:
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=30) as http:
                models = [each.model for each in (model, guesser) if each is not None]
                yield Running(url, gateway, http, clock, models)


@contextmanager
def gateway_on_a_thread(target: StepModel | Script, **more: Any) -> Iterator[str]:
    """The address of a gateway that runs on a loop of its own, for clients that wait for their answers. In the end
    nothing of them is left."""
    ending: list[Callable[[], object]] = []
    started: Future[str] = Future()

    async def serve() -> None:
        end = asyncio.Event()
        ending.append(partial(asyncio.get_running_loop().call_soon_threadsafe, end.set))
        async with running_gateway(target, **more) as running:
            started.set_result(running.url)
            await end.wait()
            await until(lambda: running.is_empty)

    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(asyncio.run, serve())
        try:
            yield started.result(timeout=30)
        finally:
            ending[0]()
        serving.result(timeout=30)


async def until(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Returns once `condition` holds; the test fails if it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
