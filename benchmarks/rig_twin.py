"""Measures the same requests in virtual and in real time, through real sockets: `make bench NAME=rig_twin`.

Refuses to know whether speculation pays. *Real*: the product's gRPC servers and clients on this machine, its step loops
over scripted models that say the simulator's texts, steps stretched to the tables' costs (`engines.pace`: target
15 + .6 K ms, draft 4 ms). *Virtual*: `benchmarks.simulator` at the same costs without noise, the network's share of a
round measured beforehand: a proposal of one token and its verify, both unpaced, through the same sockets. Driver,
session and K rule are the same in both, cold at first. Acceptance .8, 128 tokens after a prompt of 300, with 1 and with
4 clients at a time, off and on.

The figure is virtual over real seconds of all requests; `worst_distance` is the largest distance from 1 (bound .05).
It is of use on a quiet machine alone.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.coupled_verify import Clock
from benchmarks.record import record
from benchmarks.simulator.acceptance import WRONG, Regimes, chance, truth
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import Rig, StepCost
from benchmarks.simulator.engines import CAPABLE, prompt
from benchmarks.simulator.world import ON, PROMPT_TOKENS, Books, Setting, World
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    ProposeRound,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import UNPACED, Cost, Pace, cost_named
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.server import EngineServer

SEED, ALPHA, CLIENTS = 61, 0.8, (1, 4)
REQUESTS = 4
"""Of each client."""
ECHOES = 200
FACTS = EngineFacts(model_digest="m", tokenizer_digest="t", incarnation=Incarnation("life"))


@dataclass(frozen=True, slots=True)
class Script:
    """The simulator's texts as a model: of a draft, with its wrong guesses."""

    acceptance: Regimes | None = None

    def __call__(self, prefix: tuple[TokenId, ...]) -> Logits:
        position = len(prefix) - PROMPT_TOKENS
        wrong = self.acceptance is not None and not self.acceptance.right(prefix[0], position)
        logits = np.zeros(CAPABLE.vocab_size)
        logits[WRONG if wrong else truth(max(position, 0))] = 1.0
        return logits


@asynccontextmanager
async def peers(target_cost: Cost, draft_cost: Cost) -> AsyncIterator[tuple[RemoteTarget, RemoteDraft]]:
    """Both engines behind sockets, connected."""
    async with AsyncExitStack() as stack:
        says, guesses = ScriptedModel(Script()), ScriptedModel(Script(chance(ALPHA, SEED)))
        target = stack.enter_context(BatchedTarget(says, FACTS, clock=Clock(), pace=Pace(target_cost, clock=Clock())))
        draft = stack.enter_context(BatchedDraft(guesses, FACTS, clock=Clock(), pace=Pace(draft_cost, clock=Clock())))
        target_server = await stack.enter_async_context(EngineServer(TargetRole(target), host="127.0.0.1", port=0))
        draft_server = await stack.enter_async_context(EngineServer(DraftRole(draft), host="127.0.0.1", port=0))
        remote_target = await stack.enter_async_context(RemoteTarget(f"127.0.0.1:{target_server.port}"))
        remote_draft = await stack.enter_async_context(RemoteDraft(f"127.0.0.1:{draft_server.port}"))
        await asyncio.gather(remote_target.wait_connected(), remote_draft.wait_connected())
        yield remote_target, remote_draft


async def network_seconds() -> float:
    """What a round spends between gateway and engines: the median of proposing a token and judging it, unpaced."""
    opening = OpenSession(
        SessionId("echo"),
        prompt(0, PROMPT_TOKENS),
        (),
        SamplingParameters(seed=0, temperature=0.0),
        Verification.COUPLED,
        max_tokens=3 * ECHOES,
    )
    taken: list[float] = []
    async with peers(UNPACED, UNPACED) as (target, draft):
        held, guessed = await target.open(opening), await draft.open(opening)
        base, committed = 0, tuple[TokenId, ...]()
        for number in range(ECHOES):
            began = time.perf_counter()
            asked = ProposeRound(opening.session, guessed.incarnation, base, committed, 1)
            proposal = await draft.propose(asked)
            offset = base + len(committed)
            verdict = await target.verify(VerifyRound(opening.session, held.incarnation, number, offset, proposal))
            taken.append(time.perf_counter() - began)
            base, committed = offset, (*proposal.ids[: verdict.accepted], verdict.token)
    return statistics.median(taken[ECHOES // 4 :])


def _world(rig: Rig, bounds: Bounds) -> World:
    return World(Setting(seed=SEED, rig=rig), acceptance=chance(ALPHA, SEED), lookahead=Shared(), bounds=lambda: bounds)


async def really(clients: int, bounds: Bounds) -> Books:
    async with peers(cost_named("h100-70b"), cost_named("l4-8b")) as (target, draft):
        world = _world(Rig(), bounds)
        world.target, world.drafts = target, [draft]
        await world.closed_loop(clients, REQUESTS)
        return world.books


def virtually(clients: int, bounds: Bounds, network: float) -> Books:
    rig = Rig(draft=StepCost(0.004), target=StepCost(0.015, proposed=0.0006), network=network, noise=0.0)

    async def main() -> Books:
        world = _world(rig, bounds)
        await world.closed_loop(clients, REQUESTS)
        return world.books

    return run_virtually(main)


def main() -> None:
    network = asyncio.run(network_seconds())
    figures: dict[str, float] = {"network_ms": round(1000 * network, 4)}
    samples: dict[str, object] = {"network_seconds": network}
    print(f"network {1000 * network:.2f} ms per round\nclients   speculation   virtual s   real s   virtual / real")
    for clients in CLIENTS:
        for name, bounds in (("off", OFF), ("on", ON)):
            real = asyncio.run(really(clients, bounds))
            virtual = virtually(clients, bounds, network)
            ratio = virtual.client_seconds / real.client_seconds
            print(
                f"{clients:7} {name:>13} {virtual.client_seconds:11.2f} {real.client_seconds:8.2f} {ratio:16.3f}",
                flush=True,
            )
            figures[f"{name}_{clients}"] = round(ratio, 4)
            samples[f"{name}_{clients}"] = {
                side: {
                    "seconds": books.client_seconds,
                    "tokens": books.tokens,
                    "rounds": len(books.rounds),
                    "proposed": sum(books.k_by_round),
                }
                for side, books in (("virtual", virtual), ("real", real))
            }
    distances = [abs(value - 1) for name, value in figures.items() if name != "network_ms"]
    figures["worst_distance"] = round(max(distances), 4)
    print(f"largest distance {figures['worst_distance']:.3f} (bound .05)")
    print(record("rig_twin", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
