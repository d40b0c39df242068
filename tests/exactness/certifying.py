"""Knows how one engine is judged by the certificate of near ties: the same texts with and without proposals.

Refuses to know which engine, and what a fault looks like.

Texts are written one by one, so that a second engine can repeat every step of them. It does so for those that split, in
memory of its own, and tells the rows; the reference (see `kernel_reference`) needs no cache at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tests.exactness.kernel_reference import Power, Reference, Subject
from tests.exactness.kernel_texts import (
    Asked,
    Guesses,
    Rows,
    guesses_for,
    plain_rows,
    plain_text,
    target_over,
    verified_rows,
    verified_text,
)

from tandem_runtime.domain.certificate import Calibration, Certificate, Doubt, Split, certify, doubt, first_split
from tandem_runtime.domain.sampling import coupled_choice
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.ports import StepModel

Engine = Callable[[], StepModel]

BITWISE = Calibration(bound=0.0, rate=0.0)
"""What an engine that says so is allowed: nothing."""
CALIBRATION_TEXTS = 6
"""The last prompts of a subject; the first ones are judged."""


@dataclass(frozen=True)
class Run:
    """One text both ways."""

    asked: Asked
    guesses: Guesses
    plain: tuple[TokenId, ...]
    verified: tuple[TokenId, ...]

    @property
    def split(self) -> int | None:
        return first_split(self.plain, self.verified)

    @property
    def compared(self) -> int:
        return len(self.plain) if self.split is None else self.split + 1


class Judge:
    """Judges engines of one (subject, dtype) at one temperature."""

    def __init__(self, subject: Subject, dtype: torch.dtype, temperature: float, *, texts: int, tokens: int) -> None:
        self._subject = subject
        self._reference = Reference(subject, dtype)
        self._texts = [self._asked(at, temperature, tokens) for at in range(texts)]
        self._others = [self._asked(-1 - at, temperature, tokens) for at in range(CALIBRATION_TEXTS)]

    def _asked(self, at: int, temperature: float, tokens: int) -> Asked:
        prompt = self._subject.prompts[at]
        return Asked(prompt, SamplingParameters(seed=1000 + at, temperature=temperature), tokens)

    async def calibrated(self, engine: Engine) -> tuple[Calibration, Power]:
        """The limits of rounding, over texts that `engine` writes; nothing else of it is believed."""
        with target_over(engine()) as target:
            texts = [asked.prompt + await plain_text(target, asked) for asked in self._others]
        asked = self._others[0].parameters
        limits = self._reference.limits(texts, asked)
        return limits, self._reference.power(texts, asked, bound=limits.bound)

    async def runs(self, engine: Engine) -> list[Run]:
        """The texts to be judged, written both ways."""
        with target_over(engine()) as target:
            vocab_size = (await target.capabilities()).vocab_size
            runs = []
            for number, asked in enumerate(self._texts):
                plain = await plain_text(target, asked)
                guesses = guesses_for(plain, vocab_size=vocab_size, seed=number)
                runs.append(Run(asked, guesses, plain, await verified_text(target, asked, guesses)))
            return runs

    async def certificate(self, runs: Sequence[Run], anew: Engine, limits: Calibration) -> Certificate:
        """Of `runs`; the rows of their splits come from `anew`."""
        splits = [run for run in runs if run.split is not None]
        doubts = await self._doubts(splits, anew, limits.bound) if splits else []
        return certify(doubts, positions=sum(run.compared for run in runs), calibration=limits)

    async def _doubts(self, runs: Sequence[Run], anew: Engine, bound: float) -> list[tuple[int, Doubt | None]]:
        doubts = []
        with target_over(anew()) as target:
            for run in runs:
                plain = await plain_rows(target, run.asked)
                verified = await verified_rows(target, run.asked, run.guesses)
                split = self._split(run, plain, verified)
                choose = partial(_choice, run.asked.parameters, split.position)
                doubts.append((split.position, doubt(split, choose=choose, bound=bound)))
        return doubts

    def _split(self, run: Run, plain: Rows, verified: Rows) -> Split:
        at = run.split
        assert at is not None, "only texts that split are looked at"
        prefix = run.asked.prompt + run.plain[:at]
        return Split(
            position=at,
            plain_token=run.plain[at],
            verified_token=run.verified[at],
            plain_row=plain[at].tolist(),
            verified_row=verified[at].tolist(),
            reference_row=self._reference.rows(prefix)[-1].tolist(),
        )


def _choice(parameters: SamplingParameters, position: int, row: Sequence[float]) -> TokenId:
    return coupled_choice(row, parameters, position)
