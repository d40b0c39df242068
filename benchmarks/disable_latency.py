"""Measures how soon the K rule stops when acceptance collapses, and begins again: `make bench NAME=disable_latency`.

Refuses to know real engines: time is virtual (`benchmarks.simulator`), driver, session and K rule are the product's
own. In each of 60 trials a gateway that knows nothing serves one client on the flat rig at acceptance .85 for 150
rounds and some more, drawn by chance; then acceptance falls to .3, and stays there for 400 tokens after K = 0; then it
is .85 again.

    rounds_p95        rounds from the fall until K is 0 because nothing pays
    seconds_p95       the same in seconds
    back_tokens_p95   tokens from the rise until a K > 0 is chosen because it pays: a probe is none

At .3 a draft has hope, and is listened to as ever. At 0 it has none, and is listened to the more seldom the longer that
lasts (`domain.cells`); in as many trials acceptance falls to 0 and stays there for 4,000 tokens and up to 1,000 more,
drawn by chance, by which the wait between two looks is as long as it gets:

    back_tokens_hopeless_p95   the same tokens, from a rise out of that

That is the runtime's part. The operator's own is to tell every gateway (`benchmarks.operator_latency`), in as many
trials over the simulated world, where acceptance falls from .85 to .15 while requests come twice a second:

    operator_s        seconds from the fall until the policy is off, the longest of all trials
    operator_p95_s    the same, of 19 trials in 20

And by a batch that is saturated (`benchmarks.saturated`), in which K is held at 4: until speculation is switched off
because slots show that it does not pay, and what a comparison of requests side by side would have read instead.

    saturated_true          the speed-up in closed form
    saturated_by_slots      what the product reads from slots that are on and slots that are off
    saturated_by_requests   what requests read that may speculate, over those beside them that may not
    saturated_off_s         seconds until the breaker has switched speculation off, median of 5 runs
"""

import random
import statistics
from dataclasses import asdict, dataclass

from benchmarks.operator_latency import SLACK_SECONDS, WINDOW_SECONDS, off_after
from benchmarks.record import record
from benchmarks.saturated import ALPHA, CLIENTS, by_slots, switched_off, true_speedup
from benchmarks.simulator.acceptance import Regimes
from benchmarks.simulator.clock import run_virtually
from benchmarks.simulator.oracle import Watched
from benchmarks.simulator.world import Setting, World
from tandem_runtime.domain.lookahead import Rule

SEED, TRIALS = 41, 60
GOOD, SETTLED_ROUNDS = 0.85, 150
SATURATED_RUNS = 5
LONGEST_ROUNDS = 12_000
"""A trial that has not ended by then counts as it stands."""


@dataclass(frozen=True, slots=True)
class Fall:
    """To which acceptance, for so many tokens after K = 0 and up to `more` by chance."""

    alpha: float
    tokens: int
    more: int = 0

    def lasts(self, chance: random.Random) -> int:
        return self.tokens + (chance.randrange(self.more) if self.more else 0)


COLLAPSE = Fall(0.3, 400)
HOPELESS = Fall(0.0, 4000, more=1000)


@dataclass(frozen=True, slots=True)
class Trial:
    """Rounds and seconds from the fall to K = 0, tokens from the rise to a K that pays."""

    rounds: int
    seconds: float
    back_tokens: int


@dataclass(slots=True)
class Course:
    """Where a trial stands: it moves on as the rule's choices come."""

    world: World
    rule: Watched
    falls_at: int
    bad: float
    bad_tokens: int
    off_at: int | None = None
    off_seconds: float = 0.0
    rises_at: int | None = None
    back_at: int | None = None

    def alpha(self) -> float:
        """Of the moment."""
        fallen = len(self.world.books.rounds) >= self.falls_at and self.rises_at is None
        return self.bad if fallen else GOOD

    def note(self) -> None:
        """After each choice of K."""
        now = len(self.world.books.rounds)
        rule = self.rule.rules[-1]
        if now < self.falls_at:
            return
        if self.off_at is None:
            if rule is Rule.LOSES:
                self.off_at = now
                self.off_seconds = self.world.clock.monotonic() - self.world.books.rounds[self.falls_at - 1].at
        elif self.rises_at is None:
            self.rises_at = now if self._tokens(self.off_at) >= self.bad_tokens else None
        elif self.back_at is None and rule is Rule.PAYS:
            self.back_at = now

    def is_over(self) -> bool:
        return self.back_at is not None or len(self.world.books.rounds) >= LONGEST_ROUNDS

    def trial(self) -> Trial:
        """What came of it. Raises ValueError where K never was 0."""
        now = len(self.world.books.rounds)
        if self.off_at is None or self.rises_at is None:
            raise ValueError(f"K was never 0 in {now} rounds at acceptance {self.bad}")
        return Trial(self.off_at - self.falls_at, self.off_seconds, self._tokens(self.rises_at, self.back_at))

    def _tokens(self, since: int, until: int | None = None) -> int:
        return sum(seen.round.emitted for seen in self.world.books.rounds[since:until])


def trial(number: int, fall: Fall = COLLAPSE) -> Trial:
    async def main() -> Trial:
        seed = SEED * 1000 + number
        drawn = random.Random(seed)
        falls_at = SETTLED_ROUNDS + drawn.randrange(100)
        rule = Watched()

        def alpha() -> float:
            return course.alpha()

        world = World(Setting(seed=seed), acceptance=Regimes(alpha, seed), lookahead=rule)
        course = Course(world, rule, falls_at, fall.alpha, fall.lasts(drawn))
        rule.told = course.note
        await world.one_after_another(LONGEST_ROUNDS, until=course.is_over)
        return course.trial()

    return run_virtually(main)


def saturated(number: int) -> dict[str, float]:
    """One run of the saturated batch, as the operator and as a request arm see it."""
    world = switched_off(SEED * 1000 + number)
    off_after = (world.now - world.busy_since).total_seconds()
    return {"by_slots": by_slots(world), "by_requests": world.arms.speedup, "off_s": off_after}


def p95(values: list[float]) -> float:
    return sorted(values)[-(-95 * len(values) // 100) - 1]


def main() -> None:
    trials = [trial(number) for number in range(TRIALS)]
    hopeless = [trial(number, HOPELESS) for number in range(TRIALS)]
    rounds = [float(one.rounds) for one in trials]
    back = [float(one.back_tokens) for one in trials]
    back_from_none = [float(one.back_tokens) for one in hopeless]
    seconds = [one.seconds for one in trials]
    figures = {
        "rounds_p50": statistics.median(rounds),
        "rounds_p95": p95(rounds),
        "seconds_p95": round(p95(seconds), 4),
        "back_tokens_p50": statistics.median(back),
        "back_tokens_p95": p95(back),
        "back_tokens_hopeless_p50": statistics.median(back_from_none),
        "back_tokens_hopeless_p95": p95(back_from_none),
    }
    told = [off_after(SEED * 1000 + number) for number in range(TRIALS)]
    figures |= {"operator_s": max(told), "operator_p95_s": p95(told)}
    runs = [saturated(number) for number in range(SATURATED_RUNS)]
    figures["saturated_true"] = round(true_speedup(), 4)
    for name in ("by_slots", "by_requests", "off_s"):
        figures[f"saturated_{name}"] = round(statistics.median(run[name] for run in runs), 4)
    print(f"K = 0 after {figures['rounds_p50']:.0f} rounds, p95 {figures['rounds_p95']:.0f} (must be 20, aim 15)")
    print(
        f"back after {figures['back_tokens_p50']:.0f} tokens, p95 {figures['back_tokens_p95']:.0f} (must be 30, aim 20)"
    )
    print(
        f"from a hopeless draft after {figures['back_tokens_hopeless_p50']:.0f} tokens, p95"
        f" {figures['back_tokens_hopeless_p95']:.0f}"
    )
    print(
        f"policy off after {figures['operator_p95_s']:.0f} s in 19 of 20 trials, {figures['operator_s']:.0f} s at most"
        f" (must be {WINDOW_SECONDS + SLACK_SECONDS:.0f})"
    )
    print(
        f"{CLIENTS} clients at acceptance {ALPHA}: true {figures['saturated_true']:.2f}, slots read"
        f" {figures['saturated_by_slots']:.2f}, requests {figures['saturated_by_requests']:.2f};"
        f" off after {figures['saturated_off_s']:.0f} s"
    )
    samples = {
        "trials": [asdict(one) for one in trials],
        "hopeless": [asdict(one) for one in hopeless],
        "operator_seconds": told,
        "saturated": runs,
    }
    print(record("disable_latency", seed=SEED, figures=figures, samples=samples))


if __name__ == "__main__":
    main()
