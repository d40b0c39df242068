"""Knows a whole world in virtual time: stations, the engines over them, a gateway, and clients that ask.

Refuses to know what is compared: a benchmark builds worlds and reads their books. Each request is run by the product's
`driver.generate`. `lookahead` is the cell of a segment, as a gateway has it, of which each request begins its own; or
one rule that all requests ask.

    async def main() -> Books:
        world = World(Setting(rig=FLAT, seed=1), acceptance=chance(.8, 1), lookahead=Shared())
        await world.one_after_another(requests=32)
        return world.books
    books = run_virtually(main)
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from benchmarks.simulator.acceptance import Acceptance
from benchmarks.simulator.clock import VirtualClock
from benchmarks.simulator.costs import FLAT, MOST, Rig, StepCost
from benchmarks.simulator.engines import LENGTH, RigDraft, RigTarget, prompt
from benchmarks.simulator.stations import MOST_SESSIONS, Device, Station
from tandem_runtime.domain.cells import Lookahead, Shared
from tandem_runtime.domain.commands import Counts, Emit, Finish, Request
from tandem_runtime.domain.lookahead import Bounds
from tandem_runtime.domain.session import Session
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import Round, SamplingParameters, SessionId, TokenId, Verification
from tandem_runtime.driver import Engines, generate
from tandem_runtime.ports import DraftEngine, TargetEngine

ON = Bounds(1, MOST)
PROMPT_TOKENS = 300
"""Two chunks: the first step of a request says nothing."""
ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a world is made of. `sessions` may share a step, of draft or target. There are so many `drafts`, each on a
    device of its own, or else (`colocated`) one on the target's, where drafting goes first."""

    seed: int
    rig: Rig = FLAT
    prompt_tokens: int = PROMPT_TOKENS
    answer_tokens: int = ANSWER_TOKENS
    sessions: int = MOST_SESSIONS
    drafts: int = 1
    colocated: bool = False
    draft_is_free: bool = False
    """As `Request` has it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's course: seconds from its arrival to the first token, and to the end."""

    text: int
    tokens: int
    arrived: float
    first_seconds: float
    seconds: float
    counts: Counts


@dataclass(frozen=True, slots=True)
class Seen:
    """A round and the moment of its end."""

    at: float
    round: Round


@dataclass(slots=True)
class Books:
    """What happened, in order."""

    rounds: list[Seen] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def client_seconds(self) -> float:
        """Of all requests together: where each client asks again as soon as it is answered, speed per client is tokens
        over these."""
        return sum(answer.seconds for answer in self.answers)

    @property
    def k_by_round(self) -> list[int]:
        return [seen.round.proposed for seen in self.rounds]


class World:
    """Lives in the loop that runs. `target` and `drafts` may be replaced before the first request, by engines that
    compute on the world's stations or on ones of their own; over engines in real time, in an ordinary loop, clients and
    books are the same."""

    def __init__(
        self,
        setting: Setting,
        *,
        acceptance: Acceptance,
        lookahead: Lookahead | Shared,
        bounds: Callable[[], Bounds] = lambda: ON,
    ) -> None:
        self.setting = setting
        self.acceptance = acceptance
        self.lookahead = lookahead
        self.bounds = bounds
        self.clock = VirtualClock()
        self.books = Books()
        self.target_device = Device()
        self.target_station = self.station("target", setting.rig.target, self.target_device, order=1)
        self.draft_stations = [
            self.station(f"draft {number}", setting.rig.draft, self.target_device if setting.colocated else Device())
            for number in range(setting.drafts)
        ]
        hop_seconds = setting.rig.network / 4
        self.target: TargetEngine = RigTarget(self.target_station, hop_seconds, acceptance=acceptance)
        self.drafts: list[DraftEngine] = [
            RigDraft(station, hop_seconds, acceptance=acceptance) for station in self.draft_stations
        ]
        self._at_work = [0] * setting.drafts
        """Requests with each draft."""

    def station(self, name: str, cost: StepCost, device: Device, *, order: int = 0) -> Station:
        """One more, with noise of its own."""
        chance, noise = random.Random(f"{self.setting.seed}:{name}"), self.setting.rig.noise
        return Station(
            cost,
            chance=lambda: max(0.1, chance.gauss(1.0, noise)),
            sessions=self.setting.sessions,
            device=device,
            order=order,
        )

    def round(self, round: Round) -> None:
        """As `ports.Observer`."""
        self.books.rounds.append(Seen(self.clock.monotonic(), round))

    def said(self, text: int, tokens: Sequence[TokenId]) -> None:
        """What an answer goes on with. Nobody keeps it here."""

    def lookahead_of(self, text: int) -> Lookahead:
        """What this request's K is asked of."""
        return self.lookahead.begin() if isinstance(self.lookahead, Shared) else self.lookahead

    async def one_after_another(
        self, requests: int, *, first: int = 0, until: Callable[[], bool] = lambda: False
    ) -> None:
        """One client that asks again as soon as it is answered."""
        for number in range(first, first + requests):
            if until():
                return
            await self.ask(number)

    async def closed_loop(self, clients: int, requests: int) -> None:
        """So many clients, each with so many requests."""
        await asyncio.gather(*(self.one_after_another(requests, first=client * requests) for client in range(clients)))

    async def poisson(self, per_second: float, requests: int) -> None:
        """Requests that come whether or not others are answered."""
        chance = random.Random(f"{self.setting.seed}:arrivals")
        asked: list[asyncio.Task[Answer]] = []
        for number in range(requests):
            await asyncio.sleep(chance.expovariate(per_second))
            asked.append(asyncio.create_task(self.ask(number)))
        await asyncio.gather(*asked)

    async def ask(self, text: int) -> Answer:
        """One request, from its arrival to its last token."""
        arrived, first, tokens = self.clock.monotonic(), 0.0, 0
        place = self._at_work.index(min(self._at_work))
        self._at_work[place] += 1
        items = generate(
            Session(self.request(text)),
            engines=Engines(self.target, self.drafts[place], _nobody),
            lookahead=self.lookahead_of(text),
            allowance=self.bounds,
            observer=self,
            clock=self.clock,
        )
        async with aclosing(items):
            async for item in items:
                match item:
                    case Emit():
                        first = first or self.clock.monotonic() - arrived
                        tokens += len(item.tokens)
                        self.said(text, item.tokens)
                    case Finish():
                        counts = item.counts
        self._at_work[place] -= 1
        answer = Answer(text, tokens, arrived, first, self.clock.monotonic() - arrived, counts)
        self.books.answers.append(answer)
        return answer

    def request(self, text: int) -> Request:
        """What is asked for: greedy, coupled, as long as the text is."""
        setting = self.setting
        prompt_tokens, tokens = self.acceptance.lengths(text) or (setting.prompt_tokens, setting.answer_tokens)
        return Request(
            session=SessionId(str(text)),
            prompt=prompt(text, prompt_tokens),
            parameters=SamplingParameters(seed=0, temperature=0.0),
            verification=Verification.COUPLED,
            endings=Endings(tokens),
            decode=lambda _: "",
            target_length=LENGTH,
            draft_length=LENGTH,
            draft_is_free=setting.draft_is_free,
        )


async def _nobody() -> TargetEngine:
    raise AssertionError("no target is lost here")
