"""Knows which sequences are proven: every choice that a case is made of, drawn from one master seed and a group number.

Refuses to run anything.

A group is a few requests and, of each, several speculating twins that must say what plain decoding says. Everything in
a group shares one target engine (and a second one to go to when the first is lost) and one draft engine, so that the
twins meet in the same steps in ever other company.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, TypeAlias

from tests.exactness.loops import Question
from tests.exactness.texts import VOCAB

from tandem_runtime.domain.ahead import Overlap
from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.stopping import Endings
from tandem_runtime.domain.tokens import SamplingParameters

MASTER_SEED = 20_260_504
REQUESTS = 8
TWINS = 8
SEQUENCES_PER_GROUP = REQUESTS * TWINS
ANSWER_TOKENS = 64

Setting: TypeAlias = Callable[[Random], dict[str, Any]]
"""One processor of the list with chosen values, as keyword arguments of `SamplingParameters`."""


def _bias(chance: Random) -> dict[str, Any]:
    tokens = sorted(chance.sample(range(VOCAB), 6))
    return {"logit_bias": tuple((token, chance.choice([-100.0, -4.0, 3.0, 6.5])) for token in tokens)}


SETTINGS: tuple[Setting, ...] = (
    lambda chance: {"top_k": chance.choice([1, 2, 20, 200])},
    lambda chance: {"top_p": chance.choice([0.3, 0.8, 0.95])},
    lambda chance: {"min_p": chance.choice([0.01, 0.1, 0.5])},
    _bias,
    lambda chance: {"repetition_penalty": chance.choice([0.8, 1.3, 2.0])},
    lambda chance: {"frequency_penalty": chance.choice([-0.5, 1.0])},
    lambda chance: {"presence_penalty": chance.choice([-1.0, 1.5])},
    lambda chance: {"bad_words": tuple((token,) for token in chance.sample(range(VOCAB), 40))},
    lambda chance: {"allowed_tokens": tuple(sorted(chance.sample(range(VOCAB), 48)))},
    lambda chance: {"end_tokens": tuple(chance.sample(range(VOCAB), 12)), "min_tokens": chance.randrange(1, 20)},
)
"""Each processor is on in a fifth of all requests, whatever the others are. One request of each group has rules that
leave no token in the end."""

SAID_UNTIL_THE_END, ENDING = 24, 2


def _rules_that_end(chance: Random) -> dict[str, Any]:
    """A few tokens are allowed, and behind some of them none: the answer is cut off, within a proposal at times."""
    allowed = sorted(chance.sample(range(VOCAB), SAID_UNTIL_THE_END))
    last = chance.sample(allowed, ENDING)
    return {"allowed_tokens": tuple(allowed), "bad_words": tuple((token, after) for token in last for after in allowed)}


TEMPERATURES = (0.0, 0.3, 1.0, 1.5)


class Drafter(StrEnum):
    """Who guesses: models behind the real draft loop, or a `GuessingDraft`."""

    KIN = "kin"
    STRANGER = "stranger"
    ANYTHING = "anything"
    ECHO = "echo"
    ONE_TOKEN = "one token"
    KNOWING = "knowing"
    NEARLY_KNOWING = "nearly knowing"


WEIGHTS = {Drafter.KIN: 3, Drafter.NEARLY_KNOWING: 3}
"""How often a drafter is drawn, against 1 for the others: those that are right half of the time test the most."""


class Lengths(StrEnum):
    """How K goes over the rounds."""

    FIXED = "fixed"
    EVERY_ROUND = "another in every round"
    ON_AND_OFF = "on and off in stretches"
    AUTO = "the controller's"


@dataclass(frozen=True)
class Twin:
    """How one speculating run of a question goes."""

    drafter: Drafter
    lengths: Lengths
    k: int
    trouble: float
    """Share of the calls to target and draft that fail."""
    seed: int
    overlap: Overlap
    late: int
    """How many turns of the event loop it waits before it begins."""


@dataclass(frozen=True)
class Group:
    number: int
    world: int
    chunk_tokens: int
    questions: tuple[Question, ...]
    twins: tuple[tuple[Twin, ...], ...]


def group_of(number: int, *, master_seed: int = MASTER_SEED) -> Group:
    """The group of that number, the same for ever."""
    chance = Random(f"{master_seed}/{number}")
    return Group(
        number=number,
        world=number % 2,
        chunk_tokens=chance.choice([8, 33, 256]),
        questions=(*(_question(chance) for _ in range(REQUESTS - 1)), _question(chance, _rules_that_end)),
        twins=tuple(tuple(_twin(chance) for _ in range(TWINS)) for _ in range(REQUESTS)),
    )


def bounds_over_time(twin: Twin) -> Iterator[Bounds]:
    """What may be proposed in each round, without end."""
    chance = Random(twin.seed)
    while True:
        match twin.lengths:
            case Lengths.FIXED:
                yield _exactly(twin.k, twin.overlap)
            case Lengths.EVERY_ROUND:
                yield _exactly(chance.randrange(17), twin.overlap)
            case Lengths.ON_AND_OFF:
                yield from [_exactly(twin.k, twin.overlap)] * chance.randrange(1, 6)
                yield OFF
            case Lengths.AUTO:
                yield Bounds(0, max(twin.k, 1), overlap=twin.overlap)


def _exactly(k: int, overlap: Overlap) -> Bounds:
    return Bounds(k, k, Mode.ALWAYS, overlap=overlap) if k else OFF


def _question(chance: Random, *always: Setting) -> Question:
    settings: dict[str, Any] = {}
    for setting in SETTINGS:
        if chance.random() < 1 / 5:
            settings |= setting(chance)
    for setting in always:
        settings |= setting(chance)
    return Question(
        prompt=tuple(chance.randrange(VOCAB) for _ in range(chance.choice([1, 2, 16, 17, 70]))),
        parameters=SamplingParameters(
            seed=chance.getrandbits(64),
            choice=chance.randrange(3),
            temperature=chance.choice(TEMPERATURES),
            **settings,
        ),
        endings=_endings(chance),
        logprobs=chance.choice([None, None, None, 0, 2]),
    )


def _endings(chance: Random) -> Endings:
    """One request in eight can end early, by a token or by a string that lies across tokens."""
    match chance.randrange(16):
        case 0:
            return Endings(ANSWER_TOKENS, end_tokens=frozenset(chance.sample(range(VOCAB), 12)))
        case 1:
            return Endings(ANSWER_TOKENS, stop=(f"{chance.randrange(10)} {chance.randrange(1, 6)}",))
    return Endings(ANSWER_TOKENS)


def _twin(chance: Random) -> Twin:
    return Twin(
        drafter=chance.choices(list(Drafter), [WEIGHTS.get(drafter, 1) for drafter in Drafter])[0],
        lengths=chance.choice(list(Lengths)),
        k=chance.choice([1, 2, 3, 4, 5, 7, 8, 12, 16]),
        trouble=chance.choice([0.0, 0.0, 0.05, 0.2]),
        seed=chance.getrandbits(32),
        overlap=chance.choice([Overlap.ON, Overlap.ON, Overlap.AUTO, Overlap.OFF]),
        late=chance.choice([0, 0, 1, 5, 40]),
    )
