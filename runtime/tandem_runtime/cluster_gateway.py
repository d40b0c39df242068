"""Knows how a gateway whose roles are other processes is put together: policy and engines from a source, the server.

Refuses to know engines and requests, and whether there is a cluster (`sources`).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tandem_runtime.discovery import Discovery
from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.domain.evidence import Ledger
from tandem_runtime.domain.policy import LOOKUPS
from tandem_runtime.domain.segments import Segments
from tandem_runtime.domain.tokens import Capabilities
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.gateway.admission import Limits
from tandem_runtime.gateway.key_file import KeyFile
from tandem_runtime.gateway.seats import Fleet, lookup_replica
from tandem_runtime.gateway.server import Listening, Ports, serve_gateway
from tandem_runtime.gateway.serving import Books, Gateway
from tandem_runtime.model_folder import tokenizer_digest_of
from tandem_runtime.native_lessons import beginning
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.ports import Clock, DraftEngine, Tokenizer
from tandem_runtime.replicas import Pool, Replica
from tandem_runtime.sources import Source
from tandem_runtime.telemetry import Metrics
from tandem_runtime.tokenizer import FolderTokenizer
from tandem_runtime.wire.expiry import expiry_told
from tandem_runtime.wire.tls import RoleTls

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """`tokenizer` is a model folder, of which only the tokenizer's files are read. No `role_tls`: engines are asked in
    clear."""

    source: Source
    tokenizer: Path | None
    auth_file: Path | None
    role_tls: Path | None = None
    limits: Limits
    listening: Listening


async def serve_cluster_gateway(
    options: GatewayOptions, *, clock: Clock, ending: asyncio.Event, started: asyncio.Future[Ports]
) -> None:
    """Serve until `ending` is set. Raises SettingRefused, ModelRefused, and OSError for a port in use."""
    if options.tokenizer is None:
        raise SettingRefused("--tokenizer is missing: name the model folder whose tokenizer.json the targets use")
    keys = None if options.auth_file is None else KeyFile(options.auth_file)
    tokenizer, tokenizer_digest = FolderTokenizer(options.tokenizer), tokenizer_digest_of(options.tokenizer)
    segments = Segments(beginning=await asyncio.to_thread(beginning))
    gateway = Gateway(
        tokenizer=tokenizer,
        in_force=PolicyInForce(),
        fleet=Fleet(Pool(), Pool()),
        books=Books(Ledger(boot=secrets.token_hex(16)), Metrics(), segments),
        clock=clock,
        limits=options.limits,
    )
    with ExitStack() as lookups:
        for replica in lookup_replicas(tokenizer, tokenizer_digest=tokenizer_digest, clock=clock):
            lookups.enter_context(gateway.fleet.drafts.holding(replica))
        async with _informed(gateway, options, tokenizer_digest=tokenizer_digest):
            await serve_gateway(gateway, options.listening, keys=keys, ending=ending, started=started)


def lookup_replicas(tokenizer: Tokenizer, *, tokenizer_digest: str, clock: Clock) -> tuple[Replica[DraftEngine], ...]:
    """One of each lookup: a policy says which revisions use which. They know any id, and texts of any length."""
    anything = Capabilities("", tokenizer_digest, LARGEST, LARGEST, "Bitwise")
    return tuple(
        lookup_replica(LookupDraft(drafter, anything, clock, end_tokens=tokenizer.end_tokens)) for drafter in LOOKUPS
    )


@asynccontextmanager
async def _informed(gateway: Gateway, options: GatewayOptions, *, tokenizer_digest: str) -> AsyncIterator[None]:
    """Policy and fleet follow their source while the block lasts; if that fails for good, the block is ended."""
    tls = None if options.role_tls is None else RoleTls(options.role_tls)
    discovery = Discovery(gateway.fleet, tokenizer_digest=tokenizer_digest, tls=tls)
    async with (
        expiry_told(tls, gateway.books.metrics.registry, clock=gateway.clock),
        options.source.opened(gateway.in_force, discovery, clock=gateway.clock) as followings,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(following) for following in followings]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
