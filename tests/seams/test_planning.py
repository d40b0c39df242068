"""Steps planned over any sessions in any memory: something is always computed, and everybody comes to an end."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seams.port_models import hashed_logits

from tandem_runtime.domain.batching import Claim, Shares
from tandem_runtime.domain.blocks import root_key
from tandem_runtime.domain.budget import StepSeconds
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

    def ask(self, lines: Lines, now: float) -> None:
        tokens = [*self.prompt, *range(self.rounds[0])]
        want = Want(self.line, tokens, first=len(self.prompt) - 1, settled=len(self.prompt))
        self.job.since = now
        lines.begin(want)
        self.job.need(want)


def silent() -> Work[None]:
    yield from ()


CLAIMS = st.builds(
    Claim, st.sampled_from(["a", "b", None]), st.sampled_from([1.0, 3.0]), st.sampled_from([*Priority, Priority(0)])
)
SIZES = st.builds(StepSize, st.sampled_from([1, 7, 64]), st.sampled_from([32, 64]))


@st.composite
def crowds(draw: st.DrawFn, lines: Lines) -> list[Talker]:
    stems = [list(range(at, at + 60)) for at in (0, 3)]
    talkers = []
    for number in range(draw(st.integers(1, 8))):
        claim = draw(CLAIMS)
        root = None if claim.tenant is None else root_key(tenant=claim.tenant, adapter=None)
        own = [number] * draw(st.integers(1, 40))
        prompt = [*draw(st.sampled_from(stems))[: draw(st.sampled_from([0, 16, 50, 60]))], *own]
        rounds = draw(st.lists(st.integers(0, 28), min_size=1, max_size=3))
        job = Job(SessionId(str(number)), silent(), lambda *_: None, gives_way=False, since=0.0)
        talkers.append(Talker(lines.open(root, claim), prompt, rounds, draw(st.integers(0, 3)), job))
    return talkers


@settings(deadline=None, max_examples=60)
@given(st.data(), SIZES, st.sampled_from([0.0, 2.0]))
def test_a_step_always_computes_something_and_everybody_comes_to_an_end(
    data: st.DataObject, size: StepSize, patience: float
) -> None:
    model = ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=8, kv_blocks=BLOCKS)
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
        plan = plan_step(jobs, lines, shares, size=size)
        idle_steps = 0 if plan.parts or not jobs else idle_steps + 1
        assert idle_steps <= patience, "nothing is computed though work waits"
        chunked = sum(len(row.tokens) for job, row in plan.parts if job.missing > 32)
        assert chunked <= size.chunk_tokens
        assert sum(len(row.tokens) for row in plan.rows) - chunked <= size.rows
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


@pytest.mark.parametrize("guesses", range(1, 7))
def test_whether_guesses_may_be_left_out_does_not_depend_on_how_many_there_are(guesses: int) -> None:
    """One session has 29 tokens to read besides its guesses, as after a short prompt; 24 others share the step."""
    model = ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=32)
    lines = Lines(model, now=lambda: 0.0, patience_seconds=1.0)

    def judged(prompt: int, survivals: tuple[float, ...], number: int) -> Job:
        job = Job(SessionId(str(number)), silent(), lambda *_: None, gives_way=False, since=0.0)
        line = lines.open(None, Claim(None, 1.0, Priority.INTERACTIVE))
        tokens = [*range(prompt), *range(len(survivals))]
        want = Want(line, tokens, first=prompt - 1, settled=prompt, survivals=survivals)
        lines.begin(want)
        job.need(want)
        return job

    late = judged(29, (0.01,) * guesses, 0)
    others = [judged(1, (0.9,), number) for number in range(1, 25)]
    plan = plan_step([late, *others], lines, {each: Shares() for each in Priority}, size=StepSize(), seconds=DEAR)
    assert {job: row.outputs for job, row in plan.parts}[late] == 1
    assert late.left_out == guesses
