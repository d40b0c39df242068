"""Steps planned over any sessions in any memory: something is always computed, and everybody comes to an end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.port_models import hashed_logits

from tandem_runtime.domain.batching import Claim, Shares
from tandem_runtime.domain.blocks import root_key
from tandem_runtime.domain.budget import UNKNOWN, StepSeconds
from tandem_runtime.domain.tokens import Priority, SessionId, TokenId
from tandem_runtime.engines.jobs import Job, Work
from tandem_runtime.engines.lines import Line, Lines, Want
from tandem_runtime.engines.planning import StepSize, plan_step
from tandem_runtime.engines.scripted import ScriptedModel

BLOCKS, LENGTH = 8, 128
DEAR = StepSeconds(0.01, 0.001)


@dataclass
class Talker:
    """A session that asks for rounds of its own sizes, one after the other, with a rest of some steps between."""

    line: Line
    prompt: list[TokenId]
    rounds: list[int]
    rest: int
    job: Job
    wakes: float = 0.0

    believes: bool = False
    """Whether it tells the chances of its guesses, one more of which was asked for than came."""

    def ask(self, lines: Lines, now: float) -> None:
        guesses = self.rounds[0]
        survivals = tuple(0.8**at for at in range(1, guesses + 2)) if self.believes else ()
        self.job.since = now
        need(self.job, lines, self.line, self.prompt, guesses, survivals)


def need(
    job: Job, lines: Lines, line: Line, prompt: Sequence[TokenId], guesses: int, survivals: tuple[float, ...]
) -> None:
    want = Want(line, [*prompt, *range(guesses)], first=len(prompt) - 1, settled=len(prompt), survivals=survivals)
    lines.begin(want)
    job.need(want)


def waiting(number: int, since: float = 0.0) -> Job:
    return Job(SessionId(str(number)), silent(), lambda *_: None, gives_way=False, since=since)


def silent() -> Work[None]:
    yield from ()


CLAIMS = st.builds(
    Claim, st.sampled_from(["a", "b", None]), st.sampled_from([1.0, 3.0]), st.sampled_from([*Priority, Priority(0)])
)
CROWD = 8
SIZES = st.builds(StepSize, st.sampled_from([1, 7, 64]), st.sampled_from([32, 64]))


@st.composite
def crowds(draw: st.DrawFn, lines: Lines) -> list[Talker]:
    stems = [list(range(at, at + 60)) for at in (0, 3)]
    talkers = []
    for number in range(draw(st.integers(1, CROWD))):
        claim = draw(CLAIMS)
        root = None if claim.tenant is None else root_key(tenant=claim.tenant, adapter=None)
        own = [number] * draw(st.integers(1, 40))
        prompt = [*draw(st.sampled_from(stems))[: draw(st.sampled_from([0, 16, 50, 60]))], *own]
        rounds = draw(st.lists(st.integers(0, 28), min_size=1, max_size=3))
        line, rest = lines.open(root, claim), draw(st.integers(0, 3))
        talkers.append(Talker(line, prompt, rounds, rest, waiting(number), believes=draw(st.booleans())))
    return talkers


def is_cut_into_chunks(job: Job, size: StepSize) -> bool:
    """It has more than 32 tokens to read beside its guesses, or is more than fits into any step."""
    return job.compulsory > 32 or job.missing > size.rows


@settings(deadline=None, max_examples=60)
@given(st.data(), SIZES, st.sampled_from([0.0, 2.0]), st.sampled_from([UNKNOWN, DEAR]))
def test_a_step_always_computes_something_and_everybody_comes_to_an_end(
    data: st.DataObject, size: StepSize, patience: float, seconds: StepSeconds
) -> None:
    # The last places of an engine are kept for tenants below their share: here all find one.
    model = ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=CROWD + 2, kv_blocks=BLOCKS)
    clock = [0.0]  # steps as seconds
    lines = Lines(model, now=lambda: clock[0], patience_seconds=patience)
    shares = {priority: Shares() for priority in Priority}
    talkers = data.draw(crowds(lines))
    for talker in talkers:
        talker.ask(lines, 0.0)
    idle_steps = 0
    for step in range(6000):
        clock[0] = float(step)
        if not talkers:
            break
        for talker in talkers:
            if talker.job.want is None and talker.wakes <= step:
                talker.ask(lines, float(step))
        jobs = [talker.job for talker in talkers if talker.job.want is not None]
        plan = plan_step(jobs, lines, shares, size=size, seconds=seconds)
        idle_steps = 0 if plan.parts or not jobs else idle_steps + 1
        assert idle_steps <= patience, "nothing is computed though work waits"
        chunked = sum(len(row.tokens) for job, row in plan.parts if is_cut_into_chunks(job, size))
        assert chunked <= size.chunk_tokens
        assert sum(len(row.tokens) for row in plan.rows) - chunked <= size.rows
        assert all(len(row.tokens) == job.missing for job, row in plan.parts if not is_cut_into_chunks(job, size))
        for job, row in plan.parts:
            lines.fed(job.current, len(row.tokens))
        for talker in list(talkers):
            if talker.job.want is not None and not talker.job.missing:
                talker.job.want, talker.wakes = None, step + talker.rest
                talker.rounds.pop(0)
                if not talker.rounds:
                    lines.close(talker.line)
                    talkers.remove(talker)
    assert not talkers, "somebody never came to an end"
    assert model.blocks.used == 0


@pytest.mark.parametrize("guesses", range(7))
def test_whether_guesses_may_be_left_out_does_not_depend_on_how_many_there_are(guesses: int) -> None:
    """One session has 29 tokens to read besides its guesses, as after a short prompt; 24 others share the step."""
    model = ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=32)
    lines = Lines(model, now=lambda: 0.0, patience_seconds=1.0)
    late, *others = (waiting(number) for number in range(25))
    need(late, lines, lines.open(None, Claim()), range(29), guesses, (0.01,) * 6)
    for other in others:
        need(other, lines, lines.open(None, Claim()), range(1), 1, (0.9,))
    plan = plan_step([late, *others], lines, {each: Shares() for each in Priority}, size=StepSize(), seconds=DEAR)
    assert {job: row.outputs for job, row in plan.parts}[late] == 1
    assert late.kept == 0


@dataclass(frozen=True)
class Guesser:
    """Comes at a step with so much to read and a guess for some of the slots that were asked for."""

    claim: Claim
    prompt: int
    survivals: tuple[float, ...]
    guesses: int
    step: int = 0


SURVIVALS = st.lists(st.integers(0, 8), max_size=8).map(lambda eighths: tuple(sorted(n / 8 for n in eighths)[::-1]))
GUESSERS = st.builds(Guesser, CLAIMS, st.integers(1, 40), SURVIVALS, st.integers(0, 8), st.integers(0, 1)).map(
    lambda drawn: replace(drawn, guesses=min(drawn.guesses, len(drawn.survivals)))
)


def kept_of_the_first(guessers: Sequence[Guesser], *, blocks: int, size: StepSize, seconds: StepSeconds) -> list[int]:
    """How many guesses are judged of those who come to the first step, once all are served."""
    model = ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=16, kv_blocks=blocks)
    lines = Lines(model, now=lambda: 0.0, patience_seconds=1.0)
    shares = {priority: Shares() for priority in Priority}
    served = {waiting(number, one.step): one for number, one in enumerate(guessers)}
    for number, (job, one) in enumerate(served.items()):
        need(job, lines, lines.open(None, one.claim), [number] * one.prompt, one.guesses, one.survivals)
    going = dict(served)
    for step in range(200):
        here = [job for job, one in going.items() if one.step <= step]
        plan = plan_step(here, lines, shares, size=size, seconds=seconds)
        for job, row in plan.parts:
            lines.fed(job.current, len(row.tokens))
        for job in [job for job in going if not job.missing]:
            lines.close(job.line)
            del going[job]
        if not going:
            break
    assert not going, "somebody never came to an end"
    return [job.kept for job, one in served.items() if one.step == 0 and job.kept is not None]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(GUESSERS, min_size=1, max_size=7),
    st.data(),
    st.integers(BLOCKS, 40),
    SIZES,
    st.builds(StepSeconds, st.sampled_from([0.001, 0.01, 0.03]), st.just(0.001)),
)
def test_as_many_guesses_are_judged_however_many_came(
    others: list[Guesser], data: st.DataObject, blocks: int, size: StepSize, seconds: StepSeconds
) -> None:
    """Of everybody who comes to the first step: whatever waits there for room or memory, those who come later have no
    part in it."""
    one = replace(data.draw(GUESSERS), step=0)
    at = data.draw(st.integers(0, len(others)))
    found = {
        tuple(
            kept_of_the_first(
                [*others[:at], replace(one, guesses=guesses), *others[at:]], blocks=blocks, size=size, seconds=seconds
            )
        )
        for guesses in range(len(one.survivals) + 1)
    }
    assert len(found) == 1
