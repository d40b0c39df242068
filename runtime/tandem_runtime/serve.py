"""Knows how a pair is served on one machine: both engines, the gateway and a fixed policy in one process.

Refuses to know Kubernetes, and to compute: each engine steps on a thread of its own, so the event loop never waits.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from tandem_runtime.adapter_routes import adapter_routes
from tandem_runtime.domain.errors import ModelRefused, SettingRefused
from tandem_runtime.domain.evidence import Ledger
from tandem_runtime.domain.policy import ControlPolicy, ExactnessPolicy, SpeculationPolicy
from tandem_runtime.domain.segments import Segments
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.engines.options import STEP_DEADLINE_SECONDS, EngineOptions
from tandem_runtime.engines.scripted import SCHEME
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.key_file import KeyFile
from tandem_runtime.gateway.server import Listening, OwnEngines, Ports, serve_gateway
from tandem_runtime.gateway.serving import Books, Gateway
from tandem_runtime.local import LocalModel, Lookup, adapter_desk, hung, local_fleet, local_policy
from tandem_runtime.native_lessons import beginning
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.ports import Clock
from tandem_runtime.role_server import load_model
from tandem_runtime.telemetry import Metrics
from tandem_runtime.tokenizer import FolderTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """A pair and how it speculates. `draft` absent and no lookups: the target alone. `tokenizer` absent: the target's
    own."""

    target: EngineOptions
    draft: EngineOptions | None
    lookups: tuple[Lookup, ...]
    tokenizer: Path | None
    name: str | None
    auth_file: Path | None
    speculation: SpeculationPolicy
    control: ControlPolicy
    exactness: ExactnessPolicy
    limits: Limits
    listening: Listening
    step_deadline_seconds: int = STEP_DEADLINE_SECONDS


async def serve_pair(
    options: PairOptions, *, clock: Clock, ending: asyncio.Event, started: asyncio.Future[Ports]
) -> None:
    """Serve until `ending` is set. Raises SettingRefused, ModelRefused, and OSError for a port in use."""
    tokenizer = FolderTokenizer(_tokenizer_folder(options))
    keys = None if options.auth_file is None else KeyFile(options.auth_file)
    to_target, to_draft = await asyncio.to_thread(_shared, options)
    target = await _load(to_target, clock)
    draft = None if to_draft is None else await _load(to_draft, clock)
    if draft is not None and draft.facts.tokenizer_digest != target.facts.tokenizer_digest:
        raise ModelRefused(
            "the tokenizers of --draft and --target differ (tokenizer.json, tokenizer_config.json, chat_template.jinja)"
            ", so their ids mean different texts; choose a draft that was trained with the target's tokenizer, or leave"
            " --draft out"
        )
    segments = Segments(beginning=await asyncio.to_thread(beginning))
    policy = local_policy(
        served_name(options),
        drafters=(*(() if draft is None else (Drafter.MODEL,)), *(lookup.drafter for lookup in options.lookups)),
        speculation=options.speculation,
        control=options.control,
        exactness=options.exactness,
    )
    with local_fleet(target, draft, options.lookups, clock=clock) as fleet:
        gateway = Gateway(
            tokenizer=tokenizer,
            in_force=PolicyInForce(policy),
            fleet=fleet,
            books=Books(Ledger(boot=secrets.token_hex(16)), Metrics(), segments),
            clock=clock,
            limits=options.limits,
        )
        engines = OwnEngines(
            routes=adapter_routes(lambda: adapter_desk(fleet)),
            hung=lambda: hung(fleet, options.step_deadline_seconds),
        )
        await serve_gateway(gateway, options.listening, keys=keys, ending=ending, started=started, engines=engines)


def served_name(options: PairOptions) -> str:
    """`--name`, else the name of the target's folder or script."""
    return options.name or Path(options.target.model.rpartition(":")[2]).name


def describe_start(options: PairOptions, ports: Ports) -> str:
    """What a person reads first: the address and a request that works."""
    address = f"http://{options.listening.host}:{ports.api}/v1"
    body = f'{{"model": "{served_name(options)}", "prompt": "Once upon a time", "max_tokens": 64, "stream": true}}'
    return (
        f"serving {served_name(options)} at {address}\n"
        f"metrics at http://{options.listening.host}:{ports.admin}/metrics\n"
        f"try: curl -N {address}/completions -H 'content-type: application/json' -d '{body}'"
    )


def _tokenizer_folder(options: PairOptions) -> Path:
    if options.tokenizer is not None:
        return options.tokenizer
    if options.target.model.startswith(SCHEME):
        raise SettingRefused(f"--tokenizer is missing: --target {options.target.model} has no folder to take it from")
    return Path(options.target.model)


def _shared(options: PairOptions) -> tuple[EngineOptions, EngineOptions | None]:
    """What each engine is asked for, with its part of the memory where both are models in folders."""
    target = replace(options.target, outputs=options.speculation.max_draft_tokens + 1)
    if options.draft is None or any(engine.model.startswith(SCHEME) for engine in (target, options.draft)):
        return target, options.draft
    from tandem_runtime.engines.torch_engine.engine import pair_sums  # noqa: PLC0415  # torch, only for who needs it

    target, draft, told = pair_sums(target, options.draft)
    logger.info("memory: %s", told)
    return target, draft


async def _load(options: EngineOptions, clock: Clock) -> LocalModel:
    return LocalModel(*await asyncio.to_thread(load_model, options, clock=clock))
