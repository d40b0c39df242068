"""Knows how a target or a draft process is put together: model, engine, gRPC server, admin side, orderly end.

Refuses to know the environment, and what a model computes.

The admin side comes first and says "loading" while the model loads on another thread; then the engine is served, and
`/readyz` turns. At the signal to end, new sessions are refused and the open ones get the grace.
"""

import asyncio
import hashlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem_runtime.adapter_routes import adapter_routes
from tandem_runtime.admin import admin_app, http_server
from tandem_runtime.domain.errors import ModelRefused
from tandem_runtime.domain.policy import LONGEST_PROPOSAL
from tandem_runtime.domain.tokens import Incarnation
from tandem_runtime.engines.adapters import Adapters
from tandem_runtime.engines.batched import BatchedEngine
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.options import AS_IS, STEP_DEADLINE_SECONDS, AdapterOptions, EngineOptions
from tandem_runtime.engines.pace import UNPACED, Pace, cost_named
from tandem_runtime.engines.planning import RIDE_ALONG_TOKENS, StepSize
from tandem_runtime.engines.scripted import SCHEME, load_scripted_model
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.grammar import folder_grammars
from tandem_runtime.memory import working_set_bytes
from tandem_runtime.model_folder import digests_of
from tandem_runtime.ports import AdaptableModel, AdapterDesk, Clock, StepModel
from tandem_runtime.tokenizer import FolderTokenizer
from tandem_runtime.wire.expiry import expiry_told
from tandem_runtime.wire.roles import DraftRole, Role, TargetRole
from tandem_runtime.wire.server import EngineServer
from tandem_runtime.wire.tls import RoleTls

if TYPE_CHECKING:
    from tandem_runtime.engines.torch_engine.engine import TorchModel

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

DEFAULT_SCRIPTED_LENGTH = 4096


class RoleName(StrEnum):
    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """No `role_tls`: everyone is served, in clear."""

    host: str
    port: int
    admin_port: int
    grace_seconds: float
    role_tls: Path | None = None
    step_deadline_seconds: int = STEP_DEADLINE_SECONDS


@dataclass(slots=True)
class Engine:
    """A loaded engine as a role; inside its context the model's thread runs."""

    role: Role
    running: BatchedEngine
    model: StepModel
    pace: Pace

    def __enter__(self) -> Self:
        self.running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.running.__exit__(None, None, None)


def load_engine(name: RoleName, options: EngineOptions, *, clock: Clock) -> Engine:
    """Blocks while weights are read. Raises ModelRefused naming file, field or option, BadRequest for an adapter's name
    that is none, and Overloaded for more adapters than fit."""
    if name is RoleName.TARGET:
        options = replace(options, outputs=LONGEST_PROPOSAL + 1)
    model, facts, pace, size = load_model(options, clock=clock)
    match name:
        case RoleName.TARGET:
            target = BatchedTarget(model, facts, clock=clock, size=size, pace=pace)
            return Engine(TargetRole(target), target, model, pace)
        case RoleName.DRAFT:
            draft = BatchedDraft(model, facts, clock=clock, size=size, pace=pace)
            return Engine(DraftRole(draft), draft, model, pace)


def load_model(options: EngineOptions, *, clock: Clock) -> tuple[StepModel, EngineFacts, Pace, StepSize]:
    """The model, what its engine is told, the pace of its steps and what they hold. Blocks as `load_engine` does."""
    if options.step_rows < RIDE_ALONG_TOKENS:
        raise ModelRefused(f"--step-rows {options.step_rows}: one proposal may need {RIDE_ALONG_TOKENS}; give as many")
    pace = Pace(UNPACED if options.pace is None else cost_named(options.pace), clock=clock)
    return *_load(options), pace, StepSize(rows=options.step_rows)


def _load(options: EngineOptions) -> tuple[StepModel, EngineFacts]:
    incarnation = Incarnation(uuid.uuid4().hex[:12])
    if options.model.startswith(SCHEME):
        _refuse_adapters(options)
        if options.weights != AS_IS:
            raise ModelRefused(f"{options.weights} weights: {options.model} has none; leave the option out")
        scripted = load_scripted_model(
            options.model,
            max_length=options.max_length or DEFAULT_SCRIPTED_LENGTH,
            max_sessions=options.max_sessions,
            kv_bytes=options.kv_bytes,
        )
        model_digest, tokenizer_digest = _digest_of_name(options.model), _digest_of_name(SCHEME)
        return scripted, EngineFacts(
            model_digest=model_digest, tokenizer_digest=tokenizer_digest, incarnation=incarnation
        )
    folder = Path(options.model)
    digests = digests_of(folder)
    tokenizer = FolderTokenizer(folder)
    end_tokens = tokenizer.end_tokens
    model = _load_folder(options, known_ids=tokenizer.size)
    facts = EngineFacts(
        model_digest=_digest_of_weights(digests.model, options.weights),
        tokenizer_digest=digests.tokenizer,
        incarnation=incarnation,
        end_tokens=end_tokens,
        grammars=folder_grammars(folder, end_tokens=end_tokens, vocab_size=model.vocab_size),
        adapters=_adapters(model, options.adapters),
    )
    return model, facts


def _refuse_adapters(options: EngineOptions) -> None:
    if options.adapters.named or options.adapters.folder:
        raise ModelRefused(f"{options.model} takes no adapters; leave --adapter and --adapters-dir out")


def _adapters(model: AdaptableModel, options: AdapterOptions) -> Adapters:
    adapters = Adapters(model, most=options.most, folder=options.folder, download=options.download)
    for name, folder in options.named.items():
        facts = adapters.put_in(name, adapters.read(name, folder))
        logger.info("loaded adapter=%s digest=%s rank=%d bytes=%d", name, facts.digest, facts.rank, facts.bytes)
    return adapters


def _load_folder(options: EngineOptions, *, known_ids: int) -> "TorchModel":
    # Torch takes seconds and hundreds of megabytes: only where needed.
    from tandem_runtime.engines.torch_engine.engine import load_torch_model  # noqa: PLC0415

    return load_torch_model(options, known_ids=known_ids)


def _digest_of_weights(folder_digest: str, weights: str) -> str:
    """Rounded weights are another model, of another digest: text and caches of the two must not be taken for one."""
    return folder_digest if weights == AS_IS else _digest_of_name(f"{folder_digest} as {weights}")


def _digest_of_name(name: str) -> str:
    """A script has no files; its name is what tells it apart."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _StepFigures(Collector):
    """The steps and their seconds, with and without the stretching; without a pace the two are the same."""

    pace: Pace

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily("tandem_engine_steps", "Steps that the engine took.", value=self.pace.steps)
        about = "Seconds of all steps: their own work (unpaced), and as stretched to the stated costs (paced)."
        seconds = CounterMetricFamily("tandem_engine_step_seconds", about, labels=["kind"])
        seconds.add_metric(["paced"], self.pace.paced_seconds)
        seconds.add_metric(["unpaced"], self.pace.unpaced_seconds)
        yield seconds


@dataclass(frozen=True, slots=True, eq=False)
class _MemoryFigures(Collector):
    """The KV memory of this role's engine."""

    engine: Engine

    def collect(self) -> Iterator[Metric]:
        blocks, size, counts = self.engine.model.blocks, self.engine.model.block_bytes, self.engine.running.memory
        about = "KV memory: held by sessions (used), kept for prefixes that may come again (known), and free."
        held = GaugeMetricFamily("tandem_engine_kv_bytes", about, labels=["state"])
        used, idle = blocks.used, blocks.idle
        for state, count in (("used", used), ("known", idle), ("free", blocks.count - used - idle)):
            held.add_metric([state], count * size)
        yield held
        about = "KV memory of the session that holds most."
        largest = self.engine.running.largest_session_bytes
        yield GaugeMetricFamily("tandem_engine_largest_session_kv_bytes", about, value=largest)
        about = "Sessions that were pushed out of the KV memory."
        yield CounterMetricFamily("tandem_engine_preemptions", about, value=counts.preemptions)
        about = "Tokens that were computed, and tokens of which keys and values were known already."
        tokens = CounterMetricFamily("tandem_engine_tokens", about, labels=["source"])
        tokens.add_metric(["computed"], sum(counts.computed.values()))
        tokens.add_metric(["known"], counts.cached_tokens)
        yield tokens


@dataclass(frozen=True, slots=True, eq=False)
class _WorkFigures(Collector):
    """What this role's engine needed at the least."""

    running: BatchedEngine

    def collect(self) -> Iterator[Metric]:
        about = "Bytes that steps had to read at the least: weights, and keys and values of what was attended to."
        yield CounterMetricFamily("tandem_engine_bytes_read", about, value=self.running.needs.bytes_read)
        about = "Products of two numbers that steps had to compute at the least, each with an addition."
        yield CounterMetricFamily("tandem_engine_products", about, value=self.running.needs.products)


@dataclass(frozen=True, slots=True, eq=False)
class _QueueFigures(Collector):
    """What waits for this role's engine, and what was computed by how urgent it was."""

    running: BatchedEngine

    def collect(self) -> Iterator[Metric]:
        about = "Rounds that the engine has not answered yet."
        yield GaugeMetricFamily("tandem_engine_waiting_rounds", about, value=self.running.waiting)
        about = "Tokens that were computed, by how urgent their session was."
        rows = CounterMetricFamily("tandem_engine_rows", about, labels=["priority"])
        for priority, count in self.running.memory.computed.items():
            rows.add_metric([priority.name.lower()], count)
        yield rows


@dataclass(slots=True)
class RoleState:
    """What the admin side reports while the parts come and go."""

    starting: str | None = "the model is loading"
    server: EngineServer | None = None
    engine: Engine | None = None
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        gauge = Gauge("tandem_engine_sessions", "Sessions that the engine holds now.", registry=self.registry)
        gauge.set_function(lambda: self.server.sessions if self.server else 0)

    def serves(self, engine: Engine, server: EngineServer) -> None:
        """The engine is there: its figures are told from now on."""
        self.server, self.engine, self.starting = server, engine, None
        running = engine.running
        for figures in (
            _StepFigures(engine.pace),
            _MemoryFigures(engine),
            _WorkFigures(running),
            _QueueFigures(running),
        ):
            self.registry.register(figures)

    async def memory(self, _: Request) -> Response:
        used = 0 if self.engine is None else round(self.engine.model.blocks.used_share * 10000)
        preempting = self.engine is not None and self.engine.running.is_preempting
        held = working_set_bytes(process=os.getpid())
        return JSONResponse({"workingSetBytes": held, "kvBasisPoints": used, "preempting": preempting})

    def adapters(self) -> AdapterDesk | None:
        return None if self.engine is None else self.engine.running.adapters

    def trouble(self) -> str | None:
        refusal = self.server.refusal if self.server else None
        return self.starting or refusal or (self.engine.running.trouble if self.engine else None)

    def hung(self, deadline_seconds: float) -> str | None:
        return self.engine.running.hung(deadline_seconds) if self.engine else None


async def serve_role(
    load: Callable[[], Engine], options: ServeOptions, *, ending: asyncio.Event, name: RoleName, clock: Clock
) -> None:
    """Serve what `load` gives until `ending` is set, then drain. Raises SettingRefused, ModelRefused, and OSError for a
    port in use."""
    tls = None if options.role_tls is None else RoleTls(options.role_tls)  # before the model: that takes minutes
    state = RoleState()
    routes = [
        Route("/internal/memory", state.memory),
        *(adapter_routes(state.adapters) if name is RoleName.TARGET else ()),
    ]
    hung = partial(state.hung, options.step_deadline_seconds)
    app = admin_app(trouble=state.trouble, registry=state.registry, routes=routes, hung=hung)
    async with (
        http_server(app, host=options.host, port=options.admin_port) as admin_port,
        expiry_told(tls, state.registry, clock=clock),
    ):
        logger.info("loading role=%s admin=%s:%d", name, options.host, admin_port)
        engine = await _loaded(load, ending)
        if engine is not None:
            with engine:
                server = EngineServer(engine.role, host=options.host, port=options.port, tls=tls)
                await _serve(engine, server, options, state, ending=ending, name=name)
    logger.info("ended role=%s", name)


async def _serve(
    engine: Engine,
    server: EngineServer,
    options: ServeOptions,
    state: RoleState,
    *,
    ending: asyncio.Event,
    name: RoleName,
) -> None:
    async with server:
        state.serves(engine, server)
        determinism = engine.model.determinism
        logger.info("serving role=%s address=%s:%d determinism=%s", name, options.host, server.port, determinism)
        await ending.wait()
        logger.info("draining role=%s sessions=%d", name, server.sessions)
        await server.drain(grace_seconds=options.grace_seconds)


async def _loaded(load: Callable[[], Engine], ending: asyncio.Event) -> Engine | None:
    """The engine, or None where the end is asked for first."""
    loaded = _on_a_thread(load)
    asked_to_end = asyncio.create_task(ending.wait())
    either: list[asyncio.Future[Any]] = [loaded, asked_to_end]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    asked_to_end.cancel()
    return None if loaded.cancel() else loaded.result()


def _on_a_thread(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """A daemon, unlike those of the loop's own pool: a model half read does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def tell(outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else outcome())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            tell(partial(future.set_exception, error))
        else:
            tell(partial(future.set_result, result))

    threading.Thread(target=run, name="load", daemon=True).start()
    return future
