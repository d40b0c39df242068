"""Knows how each entrant comes to its best setting: a short trial of dtypes, threads and ways, all of it recorded.

Refuses to know the comparison itself.

A trial decodes the beginnings of fixed prompts: one, four or sixteen streams, after a question that warms it. The best
plain setting may differ by streams; ways of speculation are tried with one stream, on prompts to copy from. A peer that
is clearly slower in the trial than another of its class stays out of the turns: it cannot be the best, and the trial is
its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine_cpu_entrants import Absent, Entrant, Stable
from benchmarks.engine_cpu_samples import OURS, Configuration, course, is_self_draft
from benchmarks.engine_processes import Failed
from benchmarks.workload import Prompt
from tandem_runtime.engines.cores import allowed_cores

STREAMS = (1, 4, 16)
TRIAL_TOKENS = {1: 40, 4: 16, 16: 12}
TRIAL_PROMPT_TOKENS = 24
COPY_TOKENS = 64
WARM_TOKENS = 4
TRIAL_SECONDS = 60.0
STILL_IN = 0.8
"""Of the best peer's rate of its class: a trial that short is not off by so much."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Decoded tokens per second; `why` in words where there is no rate. `copying`: of a way of speculation."""

    configuration: Configuration
    streams: int
    copying: bool
    rate: float | None
    why: str | None = None


@dataclass(slots=True)
class Search:
    """All trials of all entrants, and what they choose."""

    stable: Stable
    prompts: Sequence[Prompt]
    trials: list[Trial] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def enter(self, entrant: Entrant) -> None:
        """Try its settings: dtypes on all cores, other plain ways in the best dtype, one thread, speculation."""
        most, (first, *others) = allowed_cores(), entrant.plain
        for dtype in entrant.dtypes:
            self._try(entrant, Configuration(entrant.name, first, dtype, most), STREAMS)
        best = self.best_plain(entrant.name, 1)
        if best is None:
            self.absent[entrant.name] = next(
                (trial.why for trial in self.trials if trial.configuration.engine == entrant.name and trial.why), ""
            )
            return
        for way in others:
            self._try(entrant, Configuration(entrant.name, way, best.dtype, most), STREAMS)
        best = self.best_plain(entrant.name, 1) or best
        if most > 1:
            self._try(entrant, Configuration(entrant.name, best.way, best.dtype, 1), (1,))
            best = self.best_plain(entrant.name, 1) or best
        for way in entrant.on:
            named = way.format(plain=best.way)
            self._try(entrant, Configuration(entrant.name, named, best.dtype, best.threads), (1,), copying=True)

    def best_plain(self, engine: str, streams: int) -> Configuration | None:
        return _fastest(self._of(engine, streams, copying=False))

    def best_on(self, engine: str) -> list[Configuration]:
        """The fastest way that looks up, and the fastest that drafts with a rounded copy of the model, as there are."""
        trials = self._of(engine, 1, copying=True)
        apart = [
            [trial for trial in trials if is_self_draft(trial.configuration.way) is kind] for kind in (False, True)
        ]
        return [found for kind in apart if (found := _fastest(kind)) is not None]

    def contestants(self, streams: int, entrants: Sequence[Entrant]) -> list[Configuration]:
        """Ours first; of each entrant its best plain setting, and with one stream its best speculation."""
        chosen: list[Configuration] = []
        for entrant in entrants:
            plain = self.best_plain(entrant.name, streams)
            if plain and (entrant.name == OURS or self._still_in(plain, streams, entrants, copying=False)):
                chosen.append(plain)
            for on in self.best_on(entrant.name) if streams == 1 else ():
                if entrant.name == OURS or self._still_in(on, 1, entrants, copying=True):
                    chosen.append(on)
        return chosen

    def _still_in(
        self, configuration: Configuration, streams: int, entrants: Sequence[Entrant], *, copying: bool
    ) -> bool:
        classes = {entrant.name: entrant.weights for entrant in entrants}
        own = classes[configuration.engine]
        rates = [
            trial.rate
            for name, weights in classes.items()
            if weights == own and name != OURS
            for trial in self._of(name, streams, copying=copying)
            if trial.rate
        ]
        rate = max(
            trial.rate or 0.0
            for trial in self._of(configuration.engine, streams, copying=copying)
            if trial.configuration == configuration
        )
        return rate >= STILL_IN * max(rates)

    def _of(self, engine: str, streams: int, *, copying: bool) -> list[Trial]:
        return [
            trial
            for trial in self.trials
            if (trial.configuration.engine, trial.streams, trial.copying) == (engine, streams, copying)
        ]

    def _try(
        self, entrant: Entrant, configuration: Configuration, streams: Sequence[int], *, copying: bool = False
    ) -> None:
        for count in streams:
            try:
                rate, why = self._rate(entrant, configuration, count, copying=copying), None
            except (Absent, Failed) as reason:
                rate, why = None, str(reason)
            self.trials.append(Trial(configuration, count, copying, rate and round(rate, 3), why))
            told = f"{rate:8.1f} tokens/s" if rate else f"none: {why}"
            print(f"  {configuration.name:40} {count:3} streams  {told}", flush=True)
            if rate is None:
                return

    def _rate(self, entrant: Entrant, configuration: Configuration, streams: int, *, copying: bool) -> float:
        process = self.stable.process(entrant, configuration)
        if copying:
            questions = [[prompt.ids] for prompt in self.prompts if prompt.kind == "edit"][:2]
        else:
            ids = [prompt.ids[:TRIAL_PROMPT_TOKENS] for prompt in self.prompts]
            questions = [ids[:streams]]
        tokens = COPY_TOKENS if copying else TRIAL_TOKENS[streams]
        warming = COPY_TOKENS if copying else WARM_TOKENS
        process.ask(questions[0], tokens=warming, way=configuration.way, limit_seconds=TRIAL_SECONDS)
        courses = [
            course(process.ask(asked, tokens=tokens, way=configuration.way, limit_seconds=TRIAL_SECONDS).streams)
            for asked in questions
        ]
        return sum(each.decode_tokens for each in courses) / sum(each.decode_seconds for each in courses)


def _fastest(trials: Sequence[Trial]) -> Configuration | None:
    known = [trial for trial in trials if trial.rate]
    return max(known, key=lambda trial: trial.rate or 0.0).configuration if known else None
