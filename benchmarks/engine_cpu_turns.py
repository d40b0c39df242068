"""Knows how chosen settings take turns on the same questions, and whether their texts agree.

Refuses to know how they were chosen, and figures.

The reference of a dtype is the bundled engine's own text with speculation off, one stream at a time or several: its
rows do not depend on company. That it is right is shown elsewhere, against transformers (docs/models.md). Agreement is
symmetric, so a fault of it would show as peers that all differ.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine_cpu_entrants import ENTRANTS, Absent, Entrant, Stable
from benchmarks.engine_cpu_samples import OURS, Configuration, Visit, course
from benchmarks.engine_processes import Answer, Failed
from benchmarks.workload import Prompt, first_difference

QUESTION_SECONDS = {1: 60.0, 4: 120.0, 16: 300.0}
WARM_TOKENS = 8

Texts = dict[str, list[int]]
"""Ids by the prompt's name."""


@dataclass(frozen=True, slots=True)
class Length:
    """How many turns there are by streams, and how many tokens each stream decodes."""

    turns: dict[int, int]
    tokens: int


FULL = Length({1: 20, 4: 6, 16: 5}, 128)
QUICK = Length({1: 2, 4: 1, 16: 1}, 16)
MOST_SECONDS = {1: 540.0, 4: 150.0, 16: 210.0}
LEAST_TURNS = 2
"""No turn begins once the time for so many streams is used up, but the first two do in any case."""


@dataclass(slots=True)
class Turns:
    """Visits of all settings that take part, and why one left."""

    stable: Stable
    prompts: Sequence[Prompt]
    length: Length
    visits: list[Visit] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    _references: dict[str, Texts] = field(default_factory=dict)
    _entrants: dict[str, Entrant] = field(default_factory=lambda: {entrant.name: entrant for entrant in ENTRANTS})

    def take(self, streams: int, settings: Sequence[Configuration]) -> None:
        """Every setting answers every turn's question; the order is reversed from turn to turn."""
        for dtype in dict.fromkeys(each.dtype for each in settings):
            self._refer(dtype, settings)
        for setting in settings:
            self._ask(setting, self._question(streams, 0), WARM_TOKENS)
        began = time.perf_counter()
        for turn in range(self.length.turns[streams]):
            if turn >= LEAST_TURNS and time.perf_counter() - began > MOST_SECONDS[streams]:
                print(f"  time is up after {turn} turns", flush=True)
                return
            asked = self._question(streams, turn)
            for setting in settings if turn % 2 == 0 else reversed(settings):
                self._visit(setting, streams, turn, asked)

    def _question(self, streams: int, turn: int) -> list[Prompt]:
        """The next prompts, round and round: each twentieth question of one stream is about the same prompt."""
        first = turn * streams
        return [self.prompts[at % len(self.prompts)] for at in range(first, first + streams)]

    def _visit(self, setting: Configuration, streams: int, turn: int, asked: Sequence[Prompt]) -> None:
        answer = self._ask(setting, asked, self.length.tokens)
        if answer is None:
            return
        found = course(answer.streams)
        kinds = {prompt.kind for prompt in asked}
        self.visits.append(
            Visit(
                streams=streams,
                turn=turn,
                configuration=setting.name,
                kind=kinds.pop() if len(kinds) == 1 else "mixed",
                prompts=tuple(prompt.name for prompt in asked),
                prompt_tokens=sum(len(prompt.ids) for prompt in asked),
                tokens=found.tokens,
                prefill_seconds=found.prefill_seconds,
                decode_tokens=found.decode_tokens,
                decode_seconds=found.decode_seconds,
                seconds=found.seconds,
                others_share=answer.others_share,
                parted=self._parted(setting, asked, answer),
            )
        )
        rate = found.decode_tokens / found.decode_seconds
        busy = f"  others took {answer.others_share:.0%}" if answer.others_share > 0.05 else ""
        print(f"  {streams:2} streams, turn {turn:2}  {setting.name:40} {rate:8.1f} tokens/s{busy}", flush=True)

    def _ask(self, setting: Configuration, asked: Sequence[Prompt], tokens: int) -> Answer | None:
        """None of a setting that failed, now or before."""
        if setting.name in self.left:
            return None
        limit = QUESTION_SECONDS[16 if len(asked) > 4 else 4 if len(asked) > 1 else 1]
        try:
            process = self.stable.process(self._entrants[setting.engine], setting)
            return process.ask([prompt.ids for prompt in asked], tokens=tokens, way=setting.way, limit_seconds=limit)
        except (Absent, Failed) as reason:
            self.left[setting.name] = str(reason)
            print(f"  {setting.name} leaves: {reason}", flush=True)
            return None

    def _parted(self, setting: Configuration, asked: Sequence[Prompt], answer: Answer) -> tuple[int | None, ...] | None:
        reference = self._references.get(setting.dtype)
        if not reference or not all(stream.ids for stream in answer.streams):
            return None
        pairs = zip(asked, answer.streams, strict=True)
        return tuple(first_difference(stream.ids, reference[prompt.name]) for prompt, stream in pairs)

    def _refer(self, dtype: str, settings: Sequence[Configuration]) -> None:
        """Ours decodes all prompts, many at once."""
        own = next((each for each in settings if each.engine == OURS), None)
        if own is None or dtype in self._references or dtype not in self._entrants[OURS].dtypes:
            return
        setting = Configuration(OURS, "off", dtype, own.threads)
        texts: Texts = {}
        for first in range(0, len(self.prompts), 10):
            asked = self.prompts[first : first + 10]
            answer = self._ask(setting, asked, self.length.tokens)
            if answer is None:
                return
            texts |= {prompt.name: stream.ids for prompt, stream in zip(asked, answer.streams, strict=True)}
        self._references[dtype] = texts
