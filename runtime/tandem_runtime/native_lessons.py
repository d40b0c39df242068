"""Knows how the sums of the K rule are had from C: what rounds taught as one piece of memory, and calls that make the
next from it.

Refuses to know the rule, and any sum: `lessons.c` has them, and the domain has them in Python, with the reasons
(`domain.lessons`). Where C cannot be had, those are what a gateway begins with, and it says why.

A round asks twice, what each K would bring and what it taught, and each time makes one call: a call with what it needs
packed into bytes takes a third of a microsecond, and a tuple with names longer than the sums. What was taught is
read out as plain values only for who explains it.
"""

import ctypes
import logging
from collections.abc import Iterable, Iterator
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64
from functools import cache
from math import isnan, nan
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

import numpy as np

from tandem_runtime import native
from tandem_runtime.domain import acceptance as believing
from tandem_runtime.domain import costs as costing
from tandem_runtime.domain import lessons as weighing
from tandem_runtime.domain.acceptance import ALIKE, Acceptance, Kin, Own
from tandem_runtime.domain.costs import Costs, Model, Plane, Seen
from tandem_runtime.domain.lessons import Beginning, Limits, Prediction, View, Weighed
from tandem_runtime.domain.policy import LONGEST_PROPOSAL

__all__ = ["NativeLessons", "beginning", "built", "taught_nothing"]

log = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("lessons.c")
NUMBERS: Final = {
    believing: (
        "LEVELS", "SWITCH", "CLIMATE_KEPT", "CLIMATE_SHARE", "TILT_STEP", "TILT_KEPT", "TILT_MOST", "GRAIN", "OWN_KEPT",
        "KIN_KEPT", "LEAST_VARIANCE", "OPEN", "PIECE", "MOST_PIECES", "LONGEST_STEP",
    ),
    costing: (
        "NOISE", "WALK_PER_SAMPLE", "WALK_PER_SECOND", "SLOPE_DOUBT", "ROW_SHARE", "SLOPE_WALK", "MANY", "LOOSE",
        "OUTLIER_FACTOR", "LEAST_SECONDS", "COMPANY_SECONDS", "AGE_LIMIT_SECONDS",
    ),
    weighing: ("HYSTERESIS",),
}  # fmt: skip
"""What the source is compiled with."""
PLANES: Final = ("draft_token", "forward", "overhead", "plain")
_SIZE: Final = len(believing.PACES) * believing.LEVELS

_Plane = c_double * (len(Plane._fields) + 1)
"""Its fields, and whether it is known."""


class Answer(ctypes.Structure):
    """What `weigh` tells."""

    _fields_ = (
        ("k", c_int64),
        *((name, c_double) for name in ("speed_up", "doubt", "plain_doubt")),
        *((name, c_double) for name in ("fixed", "draft_token", "verify_token", "plain_token")),
        ("survivals", c_double * LONGEST_PROPOSAL),
    )


_QUESTION: Final = Struct("4q7d")
_LESSON: Final = Struct("8d12q")
_CREDITS: Final = tuple(Struct(f"{count}d") for count in range(LONGEST_PROPOSAL + 1))
"""Behind a lesson, as many as there are."""
_PRICED: Final = Struct("q7d")
"""An answer without its survivals."""
_WEIGHED: Final = tuple(Struct(f"q3d32x{survivals}d") for survivals in range(LONGEST_PROPOSAL + 1))
"""By how many survivals are asked for: K, three figures of it, and these. The costs between are passed over. Looked up
before the call: there is no room for more."""


class NativeLessons(ctypes.Structure):
    """`Lessons` as `lessons.c` lays them out. Nobody changes one: what a round teaches is another."""

    _fields_ = (
        ("chances", c_double * _SIZE),
        ("haunts", c_double * believing.LEVELS),
        ("kin", c_double * 2),
        ("failed", c_double),
        ("expected", c_double),
        *((name, _Plane) for name in PLANES),
        ("doubted", c_double),
        ("plain_doubted", c_double),
        ("company_since", c_double),
        ("told", c_int64),
        ("positions", c_int64),
        ("tilts", c_double * LONGEST_PROPOSAL),
    )
    told: int
    calls: ClassVar[ctypes.CDLL]
    """The library's, of which a process has one."""

    @classmethod
    def of(cls, acceptance: Acceptance, costs: Costs, told: int) -> "NativeLessons":
        known, tilts = cls(), acceptance.tilts
        known.chances[:] = acceptance.chances.tolist()
        known.haunts[:] = acceptance.haunts[: believing.LEVELS].tolist()
        known.kin[:] = acceptance.kin
        known.positions, known.tilts[: len(tilts)] = len(tilts), tilts
        for name in PLANES:
            plane: Plane | None = getattr(costs, name)
            if plane is not None:
                getattr(known, name)[:] = (*plane, 1.0)
        known.doubted, known.plain_doubted = costs.doubted, costs.plain_doubted
        known.company_since = nan if costs.company_since is None else costs.company_since
        known.told = told
        return known

    @property
    def acceptance(self) -> Acceptance:
        tilts = tuple(self.tilts[: self.positions])
        return Acceptance(
            np.array(self.chances),
            np.tile(self.haunts, len(believing.PACES)),
            tilts,
            tuple(round(tilt / believing.GRAIN) for tilt in tilts),
            Kin(*self.kin),
        )

    @property
    def costs(self) -> Costs:
        since = None if isnan(self.company_since) else self.company_since
        draft_token, forward, overhead, plain = map(self._plane, PLANES)
        return Costs(draft_token, forward, overhead, plain, bool(self.doubted), bool(self.plain_doubted), since)

    def _plane(self, name: str) -> Plane | None:
        *plane, known = getattr(self, name)
        return Plane(*plane) if known else None

    def survivals(self, positions: int, own: Own = ALIKE) -> tuple[float, ...]:
        if positions <= 0:
            return ()
        answer, layout = Answer(), _WEIGHED[positions]
        self.calls.weigh(self, _QUESTION.pack(1, positions, -1, 1, 1, own[0], own[1], 0, 0, 0, 0), answer)
        survivals: tuple[float, ...] = layout.unpack_from(answer)[4:]
        return survivals

    def model(self, view: View, now: float) -> Model | None:
        batch, ahead, answer = view.batch, view.head_start, Answer()
        question = _QUESTION.pack(1, 1, -1, batch.rows, batch.draft_rows, 0, 0, 0, ahead.hits, ahead.tokens, now)
        self.calls.weigh(self, question, answer)
        k, _, doubt, plain_doubt, fixed, draft_token, verify_token, plain_token = _PRICED.unpack_from(answer)
        if not k:
            return None
        if plain_token < 0:
            return Model(fixed, draft_token, verify_token, None, head_start=ahead)
        return Model(fixed, draft_token, verify_token, plain_token, plain_doubt, doubt, ahead)

    def weighed(self, view: View, limits: Limits, now: float, last: int | None) -> Weighed:
        own, (rows, draft_rows, _), _, _, _, price, (hits, ready) = view
        answer, layout = Answer(), _WEIGHED[limits.maximum]
        last = -1 if last is None else last
        question = _QUESTION.pack(
            limits.minimum, limits.maximum, last, rows, draft_rows, own[0], own[1], price, hits, ready, now
        )
        self.calls.weigh(self, question, answer)
        told = layout.unpack_from(answer)
        k, speed_up, doubt, plain_doubt = told[:4]
        return Weighed(told[4:], Prediction(k, speed_up, doubt) if k else None, plain_doubt)

    def taught(self, own: Own, seen: Seen) -> "tuple[NativeLessons, Own]":
        round, now, warm, waited = seen
        credits, ahead, after = round.credits, round.ahead, NativeLessons()
        lesson = _LESSON.pack(
            own[0], own[1], now,
            round.draft_seconds, round.verify_seconds, round.forward_seconds, round.drafting_seconds, round.seconds,
            round.proposed, round.accepted, round.cut, round.unjudged, round.beside, round.rows, round.draft_rows,
            round.prefill, warm, waited, ahead is not None and ahead.hit, len(credits),
        )  # fmt: skip
        self.calls.teach(self, after, lesson + _CREDITS[len(credits)].pack(*credits) if credits else lesson)
        return after, Own(after.failed, after.expected) if round.proposed else own

    def heard(self, *, matched: int, examined: int) -> "NativeLessons":
        after = NativeLessons()
        self.calls.hear(self, after, matched, examined)
        return after

    def loosened(self, *, acceptance: bool = False, costs: bool = False) -> "NativeLessons":
        after = NativeLessons()
        self.calls.loosen(self, after, acceptance, costs)
        return after


def flags() -> Iterator[str]:
    """What the source is to know, from where it is written."""
    for module, names in NUMBERS.items():
        for name in names:
            yield f"-D{name}={getattr(module, name)!r}"
    yield f"-DPACES={len(believing.PACES)}"
    yield f"-DMOST={LONGEST_PROPOSAL}"
    yield f"-DTILTED={round(believing.TILT_MOST / believing.GRAIN)}"
    listed: dict[str, Iterable[float]] = {
        "JUMP": [pace.jump for pace in believing.PACES],
        "DRIFT": [pace.drift for pace in believing.PACES],
        "LOG_GRID": np.log(believing.GRID),
        "PRIOR": believing.PRIOR,
    }
    for name, values in listed.items():
        yield f"-D{name}_VALUES={{{','.join(repr(float(value)) for value in values)}}}"


def built() -> Path:
    """The library of `lessons.c`. Raises NotBuilt."""
    return native.built(SOURCE, native.cache_folder(), flags=tuple(flags()))


def taught_nothing(library: Path) -> NativeLessons:
    """What rounds taught before the first, by `library`. Raises NotBuilt where it does not load."""
    calls = native.loaded(library, kind=ctypes.PyDLL)
    known = POINTER(NativeLessons)
    calls.weigh.argtypes = [known, c_char_p, POINTER(Answer)]
    calls.teach.argtypes = [known, known, c_char_p]
    calls.hear.argtypes = [known, known, c_double, c_double]
    calls.loosen.argtypes = [known, known, c_int, c_int]
    for call in (calls.weigh, calls.teach, calls.hear, calls.loosen, calls.begin):
        call.restype = None
    calls.begin()
    NativeLessons.calls = calls
    return NativeLessons.of(*weighing.UNTAUGHT)


@cache
def beginning() -> Beginning:
    """Ours where they can be built; else the domain's."""
    try:
        begun = Beginning(taught_nothing(built()), "C, built for this processor")
    except native.NotBuilt as reason:
        begun = Beginning(weighing.UNTAUGHT, f"Python, since C was not built: {reason}")
    log.info("the K rule's sums: %s", begun.about)
    return begun
