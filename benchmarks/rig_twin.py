"""Measures the same requests in virtual and in real time, through real sockets: `make bench NAME=rig_twin`.

Refuses to know whether speculation pays. *Real*: the product's gRPC servers and clients on this machine, its step loops
over scripted models that say the simulator's texts, steps stretched to the tables' costs (`engines.pace`: target
15 + .6 K ms, draft 4 ms). *Virtual*: the same loops, sessions and models on the event loop's own time
(`simulator.stepped`). Driver and K rule are the same in both, cold at first. Acceptance .8, 128 tokens after a prompt
of 300, with 1 and with 4 clients at a time, off and on.

What virtual time cannot know is measured beforehand, of one session at a K that is given: what a step takes beyond its
stated cost until the next one begins (a sleep ends late, a loop looks for work), of the target between tokens of a run,
of the draft by what a proposal of nine takes more than one of one; and what is left of a round at K = 1, as the
network's share. Nothing of what is compared is in that but for `off_1`, which has the same steps. Not the same:
messages of several sessions come to virtual engines side by side and to real ones one after another, as does all that
is Python in the one process in which gateway, wire and engines live here; steps vary by chance, and by 1 % in virtual
time.

Where the rule is free, four clients are a matter of luck: whether all of them propose hangs on beliefs that they share,
and of the same texts one course takes a fifth longer than another, in virtual time too. So one course says nothing:
each ratio is virtual over real seconds of all requests of several seeds, in virtual time the mean of several courses
of each; `error_...` is one standard error of it, by the seeds. `worst_distance` is the largest distance from 1 (bound
.05), of use on a quiet machine alone.

`stations_...` is `simulator.stations`, which restate a loop's steps without its sessions and memory, over the loops in
virtual time: openings are free there. `stations_distance` is the largest distance from 1 likewise, the same on any
machine but for what was measured.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt

import numpy as np

from benchmarks.coupled_verify import Clock
from benchmarks.record import record
from benchmarks.simulator.acceptance import WRONG, Regimes, chance, truth
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.costs import FLAT, Rig, StepCost
from benchmarks.simulator.engines import CAPABLE, prompt
from benchmarks.simulator.stepped import FarDraft, FarTarget, StatedPace, SteppedClock, SteppedDraft, SteppedTarget
from benchmarks.simulator.world import ON, PROMPT_TOKENS, Books, Setting, World
from tandem_runtime.domain.cells import Shared
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.tokens import (
    Incarnation,
    OpenSession,
    ProposeRound,
    RunRounds,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Cost, Pace, cost_named
from tandem_runtime.engines.scripted import ScriptedModel
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.ports import Logits
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.server import EngineServer

SEED, ALPHA = 61, 0.8
REQUESTS = 4
"""Of each client."""
BOUNDS = {"off": OFF, "on": ON}
SEEDS = {("off", 1): 2, ("on", 1): 6, ("off", 4): 2, ("on", 4): 12}
COURSES = 4
"""In virtual time, of each seed."""
NOISE = 0.01
ECHOES, MORE = 60, 8
TARGET, DRAFT = cost_named("h100-70b"), cost_named("l4-8b")
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


@dataclass(frozen=True, slots=True)
class Beyond:
    """Seconds beyond what tables state: of a step of either, and of a round between gateway and engines."""

    target_step: float
    draft_step: float
    network: float

    @property
    def rig(self) -> Rig:
        """What virtual time is told that steps and messages take."""
        target = StepCost(TARGET.step / 1000 + self.target_step, proposed=TARGET.proposed / 1000)
        draft = StepCost(DRAFT.step / 1000 + self.draft_step)
        return Rig(draft=draft, target=target, network=self.network, noise=NOISE)


@dataclass(slots=True)
class Opening:
    """A session that is open at both, and how far it is."""

    session: SessionId
    target_life: Incarnation
    draft_life: Incarnation
    base: int = 0
    committed: tuple[TokenId, ...] = ()
    round: int = 0

    def goes_on(self, offset: int, said: tuple[TokenId, ...]) -> None:
        self.base, self.committed, self.round = offset, said, self.round + 1


def _models(seed: int) -> tuple[ScriptedModel, ScriptedModel]:
    """What says a seed's texts, and what guesses them."""
    return ScriptedModel(Script()), ScriptedModel(Script(chance(ALPHA, seed)))


@asynccontextmanager
async def peers(
    target_cost: Cost, draft_cost: Cost, seed: int = SEED
) -> AsyncIterator[tuple[RemoteTarget, RemoteDraft]]:
    """Both engines behind sockets, connected."""
    async with AsyncExitStack() as stack:
        says, guesses = _models(seed)
        target = stack.enter_context(BatchedTarget(says, FACTS, clock=Clock(), pace=Pace(target_cost, clock=Clock())))
        draft = stack.enter_context(BatchedDraft(guesses, FACTS, clock=Clock(), pace=Pace(draft_cost, clock=Clock())))
        target_server = await stack.enter_async_context(EngineServer(TargetRole(target), host="127.0.0.1", port=0))
        draft_server = await stack.enter_async_context(EngineServer(DraftRole(draft), host="127.0.0.1", port=0))
        remote_target = await stack.enter_async_context(RemoteTarget(f"127.0.0.1:{target_server.port}"))
        remote_draft = await stack.enter_async_context(RemoteDraft(f"127.0.0.1:{draft_server.port}"))
        await asyncio.gather(remote_target.wait_connected(), remote_draft.wait_connected())
        yield remote_target, remote_draft


async def _rounds(target: RemoteTarget, draft: RemoteDraft, opened: Opening, k: int) -> tuple[float, float]:
    """Seconds of proposing `k` tokens, and of judging them: medians."""
    proposing, judging = list[float](), list[float]()
    for _ in range(ECHOES):
        began = time.perf_counter()
        asked = ProposeRound(opened.session, opened.draft_life, opened.base, opened.committed, k)
        proposal = await draft.propose(asked)
        offset, proposed = opened.base + len(opened.committed), time.perf_counter()
        verdict = await target.verify(VerifyRound(opened.session, opened.target_life, opened.round, offset, proposal))
        proposing.append(proposed - began)
        judging.append(time.perf_counter() - proposed)
        opened.goes_on(offset, (*proposal.ids[: verdict.accepted], verdict.token))
    return statistics.median(proposing), statistics.median(judging)


async def _between_tokens(target: RemoteTarget, opened: Opening) -> float:
    """Median seconds from one plain token of a run to the next."""
    offset = opened.base + len(opened.committed)
    asked = RunRounds(opened.session, opened.target_life, opened.round, offset, ECHOES)
    arrived = [time.perf_counter() async for _ in target.run(asked)]
    return statistics.median(later - earlier for earlier, later in pairwise(arrived))


async def beyond_the_stated() -> Beyond:
    """Measured of one session over both engines at their stated pace."""
    asked = OpenSession(
        SessionId("echo"),
        prompt(0, PROMPT_TOKENS),
        (),
        SamplingParameters(seed=0, temperature=0.0),
        Verification.COUPLED,
        max_tokens=CAPABLE.vocab_size,
    )
    async with peers(TARGET, DRAFT) as (target, draft):
        held, guessed = await target.open(asked), await draft.open(asked)
        opened = Opening(asked.session, held.incarnation, guessed.incarnation)
        few, judged = await _rounds(target, draft, opened, 1)
        many, _ = await _rounds(target, draft, opened, 1 + MORE)
        target_step = await _between_tokens(target, opened) - TARGET.step / 1000
    draft_step = (many - few) / MORE - DRAFT.step / 1000
    stated = (DRAFT.step + TARGET.step + TARGET.proposed) / 1000
    return Beyond(target_step, draft_step, few + judged - stated - draft_step - target_step)


def _world(seed: int, bounds: Bounds, rig: Rig = FLAT, draw: int = 0) -> World:
    setting = Setting(seed=1000 * seed + draw, rig=rig)
    return World(setting, acceptance=chance(ALPHA, seed), lookahead=Shared(), bounds=lambda: bounds)


async def really(seed: int, clients: int, bounds: Bounds) -> Books:
    async with peers(TARGET, DRAFT, seed) as (target, draft):
        world = _world(seed, bounds)
        world.target, world.drafts = target, [draft]
        await world.closed_loop(clients, REQUESTS)
        return world.books


def _stepped(world: World, seed: int, stack: ExitStack) -> None:
    """The world's engines are the product's loops from now on."""
    rig, draws = world.setting.rig, random.Random(world.setting.seed)

    def pace(cost: StepCost) -> tuple[SteppedClock, StatedPace]:
        clock = SteppedClock()
        return clock, StatedPace(cost, clock=clock, chance=lambda: draws.gauss(1.0, rig.noise))

    (its, target_pace), (own, draft_pace) = pace(rig.target), pace(rig.draft)
    says, guesses = _models(seed)
    target = stack.enter_context(SteppedTarget(says, FACTS, clock=its, pace=target_pace))
    draft = stack.enter_context(SteppedDraft(guesses, FACTS, clock=own, pace=draft_pace))
    world.target, world.drafts = FarTarget(target, rig.network / 4), [FarDraft(draft, rig.network / 4)]


def virtually(seed: int, clients: int, bounds: Bounds, rig: Rig, draw: int, *, stations: bool = False) -> Books:
    """The same on stations, or else on the product's loops."""

    async def main() -> Books:
        world = _world(seed, bounds, rig, draw)
        with ExitStack() as stack:
            if not stations:
                _stepped(world, seed, stack)
            await world.closed_loop(clients, REQUESTS)
        return world.books

    return run_virtually(main)


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of all requests, by seed; of virtual courses the mean."""

    real: list[float]
    loops: list[float]
    stations: list[float]

    @property
    def ratio(self) -> float:
        return sum(self.loops) / sum(self.real)

    @property
    def stations_ratio(self) -> float:
        return sum(self.stations) / sum(self.loops)

    @property
    def error(self) -> float:
        """Of a ratio of sums (Cochran 1977, "Sampling Techniques", 6.4): by what each seed is off it."""
        off = [loops - self.ratio * real for loops, real in zip(self.loops, self.real, strict=True)]
        return statistics.stdev(off) / sqrt(len(off)) / statistics.fmean(self.real)


def compared(clients: int, name: str, rig: Rig, told: list[object]) -> Compared:
    """`told` is added what each seed came to."""
    real, loops, stations = list[float](), list[float](), list[float]()
    for seed in range(SEED, SEED + SEEDS[name, clients]):
        bounds = BOUNDS[name]
        here = asyncio.run(really(seed, clients, bounds))
        courses = [virtually(seed, clients, bounds, rig, draw) for draw in range(COURSES)]
        others = [virtually(seed, clients, bounds, rig, draw, stations=True) for draw in range(COURSES)]
        real.append(here.client_seconds)
        loops.append(statistics.fmean(books.client_seconds for books in courses))
        stations.append(statistics.fmean(books.client_seconds for books in others))
        virtual = {"loops": [_told(course) for course in courses], "stations": [_told(course) for course in others]}
        told.append({"seed": seed, "real": _told(here), **virtual})
    return Compared(real, loops, stations)


def _told(books: Books) -> dict[str, float]:
    return {
        "seconds": books.client_seconds,
        "tokens": books.tokens,
        "rounds": len(books.rounds),
        "proposed": sum(books.k_by_round),
    }


def main() -> None:
    beyond = asyncio.run(beyond_the_stated())
    figures = {f"{field}_ms": round(1000 * seconds, 4) for field, seconds in asdict(beyond).items()}
    samples: dict[str, list[object]] = {}
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    print("clients   speculation   seeds   virtual / real   stations / virtual")
    rows = {(name, clients): samples.setdefault(f"{name}_{clients}", []) for name, clients in SEEDS}
    found = dict[str, Compared]()
    for (name, clients), told in rows.items():
        row = found[f"{name}_{clients}"] = compared(clients, name, beyond.rig, told)
        seeds, ratio = len(row.real), f"{row.ratio:.3f} +- {row.error:.3f}"
        print(f"{clients:7} {name:>13} {seeds:7} {ratio:>16} {row.stations_ratio:20.3f}", flush=True)
    for name, row in found.items():
        figures[name], figures[f"error_{name}"] = round(row.ratio, 4), round(row.error, 4)
        figures[f"stations_{name}"] = round(row.stations_ratio, 4)
    figures["worst_distance"] = round(max(abs(row.ratio - 1) for row in found.values()), 4)
    figures["stations_distance"] = round(max(abs(row.stations_ratio - 1) for row in found.values()), 4)
    print(f"largest distance {figures['worst_distance']:.3f}, stations' {figures['stations_distance']:.3f} (bound .05)")
    print(record("rig_twin", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
