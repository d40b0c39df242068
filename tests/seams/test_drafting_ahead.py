"""What is drafted ahead is what would have been proposed anyway, over every model that can stand behind a draft."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.seams.port_models import LENGTH, PAIRS, SLOTS, VOCAB, Pair, hashed_logits
from tests.seams.port_words import LIFE, draft_of, opening, propose_of, target_of

from tandem_runtime.domain.blocks import Copy
from tandem_runtime.domain.tokens import (
    OpenSession,
    Outlook,
    Proposal,
    ProposeRound,
    SamplingParameters,
    SessionId,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.engines import ahead
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.ports import Logits, Row

K = 3

PARAMETERS = {
    "sampled": SamplingParameters(seed=7),
    "greedy": SamplingParameters(seed=9, temperature=0.0),
    "biased": SamplingParameters(seed=10, temperature=0.7, logit_bias=((3, 2.5), (9, -100.0))),
    "punished": SamplingParameters(seed=11, repetition_penalty=1.4, presence_penalty=0.5),
    "filtered": SamplingParameters(seed=12, top_k=20, top_p=0.9),
}


@pytest.fixture(params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> Pair:
    return PAIRS[request.param]


def ahead_of(
    base: int, committed: Sequence[TokenId], k: int, *, name: str = "a", enough: int | None = None
) -> ProposeRound:
    survivals = tuple(0.7**i for i in range(1, k + 1))
    return replace(propose_of(base, committed, k, name=name), outlook=Outlook(survivals, 24, enough))


async def settled(draft: BatchedDraft) -> None:
    """Returns once everything that was asked for by now is prepared."""
    await draft.close(SessionId("nobody"))  # the model's thread has begun to prepare when it comes to this
    while draft.drafting_ahead:
        await asyncio.sleep(0.001)


def said(proposal: Proposal) -> tuple[object, object]:
    return proposal.ids, proposal.q


async def hits_of(pair: Pair, request: OpenSession) -> int:
    """Rounds that were answered with what was prepared; each proposal is the one that a plain draft makes."""
    output: list[TokenId] = []
    base, hits = 0, 0
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft, draft_of(pair.draft()) as plain:
        for engine in (target, draft, plain):
            await engine.open(request)
        for number, k in enumerate((3, 3, 4, 2, 3, 1, 5, 3)):
            found = await draft.propose(ahead_of(base, output[base:], k))
            assert said(found) == said(await plain.propose(propose_of(base, output[base:], k)))
            hits += found.ahead is not None and found.ahead.hit
            verdict = await target.verify(VerifyRound(request.session, LIFE, number, len(output), found))
            base = len(output)
            output += [*found.ids[: verdict.accepted], verdict.token]
            await settled(draft)
    return hits


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_prepared_proposal_is_the_one_that_would_have_been_made(pair: Pair, mode: Verification) -> None:
    hits = [
        await hits_of(pair, opening("a", parameters=parameters, verification=mode))
        for parameters in PARAMETERS.values()
    ]
    assert sum(hits) >= 5


def scripted(*, kv_blocks: int | None = None) -> ScriptedModel:
    return ScriptedModel(hashed_logits, max_length=LENGTH, max_sessions=SLOTS, kv_blocks=kv_blocks)


async def test_a_prepared_answer_is_as_long_as_enough_at_least_and_as_k_at_most(pair: Pair) -> None:
    with draft_of(pair.draft()) as draft, draft_of(pair.draft()) as plain:
        for engine in (draft, plain):
            await engine.open(opening())
        first = (await plain.propose(propose_of(0, (), 4))).ids
        found = await draft.propose(ahead_of(0, (), 4, enough=2))
        assert found.ids == first[:2]
        await settled(draft)
        prepared = await draft.propose(ahead_of(2, first[2:3], 5, enough=2))
        assert prepared.ahead is not None
        assert prepared.ahead.hit
        assert prepared.ids == (await plain.propose(propose_of(2, first[2:3], 5))).ids[: len(prepared.ids)]
        assert 2 <= len(prepared.ids) <= 5


async def test_a_verdict_that_comes_early_finds_the_same_tokens(pair: Pair) -> None:
    with draft_of(pair.draft()) as draft, draft_of(pair.draft()) as plain:
        for engine in (draft, plain):
            await engine.open(opening())
        output: list[TokenId] = []
        for _ in range(6):
            found = await draft.propose(ahead_of(len(output), (), K))
            assert said(found) == said(await plain.propose(propose_of(len(output), (), K)))
            output += found.ids


async def test_a_session_that_is_opened_again_gets_nothing_that_was_prepared_before() -> None:
    with draft_of(scripted()) as draft, draft_of(scripted()) as plain:
        await draft.open(opening())
        first = (await draft.propose(ahead_of(0, (), K))).ids
        await settled(draft)
        for engine in (draft, plain):
            await engine.open(opening(parameters=SamplingParameters(seed=8), output=first))
        again = await draft.propose(ahead_of(len(first), (1,), K))
        assert said(again) == said(await plain.propose(propose_of(len(first), (1,), K)))
        assert again.ahead is None


@pytest.mark.parametrize("waits", [True, False])
async def test_closing_a_session_frees_what_was_drafted_ahead_for_it(pair: Pair, waits: bool) -> None:
    model = pair.draft()
    with draft_of(model) as draft:
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), K))
        if waits:
            await settled(draft)
            assert model.blocks.used > 1
        await draft.close(SessionId("a"))
        assert draft.drafting_ahead == 0
        assert model.blocks.used == 0


async def test_what_is_drafted_ahead_is_the_first_to_give_up_its_memory() -> None:
    model = scripted(kv_blocks=16)
    with draft_of(model) as draft, draft_of(scripted()) as plain:
        for engine in (draft, plain):
            await engine.open(opening())
        first = await draft.propose(ahead_of(0, (), K))
        await settled(draft)
        held = model.blocks.used
        await draft.open(opening("b", prompt=tuple(i % VOCAB for i in range(16 * 15 - 8))[:LENGTH]))
        await draft.open(opening("c", prompt=tuple((i + 1) % VOCAB for i in range(16 * 7 - 8))))
        await draft.propose(propose_of(0, (), 1, name="b"))
        await draft.propose(propose_of(0, (), 1, name="c"))
        assert held > 2
        assert draft.memory.abandoned > 0
        assert draft.memory.preemptions == 0
        again = await draft.propose(propose_of(len(first.ids), (1,), K))
        await plain.propose(propose_of(0, (), K))
        assert said(again) == said(await plain.propose(propose_of(len(first.ids), (1,), K)))


async def test_what_is_drafted_ahead_takes_no_memory_from_a_session() -> None:
    model = scripted(kv_blocks=9)
    with draft_of(model) as draft:
        await draft.open(opening("b", prompt=tuple(i % VOCAB for i in range(16 * 8 - 2))))
        await draft.propose(propose_of(0, (), 1, name="b"))
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), K))
        await settled(draft)
        assert draft.memory.preemptions == 0
        assert model.blocks.used <= 9


async def test_nobody_counts_what_is_drafted_ahead_as_waiting() -> None:
    with draft_of(scripted()) as draft:
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), K))
        assert draft.waiting == 0
        await settled(draft)


async def test_what_is_drafted_ahead_for_others_counts_as_no_session_in_a_step() -> None:
    """Else a draft of four sessions would seem to be shared by a crowd, and be left alone."""
    model = GatedModel(hashed_logits)
    with draft_of(model) as draft:
        for name in ("a", "b"):
            await draft.open(opening(name))
        asked = (ahead_of(0, (), 3), propose_of(0, (), 9, name="b"))
        _, found = await asyncio.gather(*map(draft.propose, asked))
        await settled(draft)
    assert model.widest > 2
    assert found.rows <= 2


class GatedModel(ScriptedModel):
    """Counts the blocks that are copied and the rows of its widest step, and takes none while its gate is shut."""

    def __init__(self, script: Script, *, max_length: int = LENGTH, kv_blocks: int | None = None) -> None:
        super().__init__(script, max_length=max_length, max_sessions=SLOTS, kv_blocks=kv_blocks)
        self.gate, self.stands = threading.Event(), threading.Event()
        self.gate.set()
        self.copied = self.widest = 0

    def forward(self, rows: Sequence[Row]) -> list[Logits]:
        self.widest = max(self.widest, len(rows))
        self.stands.set()
        assert self.gate.wait(30)
        return super().forward(rows)

    def copy(self, copies: Sequence[Copy]) -> None:
        self.copied += len(copies)
        super().copy(copies)


@pytest.mark.parametrize("mode", list(Verification))
async def test_what_is_ready_is_answered_while_a_step_is_under_way(mode: Verification) -> None:
    model = GatedModel(hashed_logits)
    asked = opening(verification=mode, parameters=SamplingParameters(seed=7, temperature=0.0))
    with draft_of(model) as draft, draft_of(scripted()) as plain:
        for engine in (draft, plain):
            await engine.open(asked)
            await engine.open(opening("b"))
        first = (await plain.propose(propose_of(0, (), 4))).ids
        await draft.propose(ahead_of(0, (), 3))
        await settled(draft)
        model.gate.clear()
        model.stands.clear()
        other = asyncio.create_task(draft.propose(propose_of(0, (), 1, name="b")))
        await asyncio.to_thread(model.stands.wait, 30)
        found = await draft.propose(ahead_of(3, first[3:], 3))
        assert found.ahead is not None
        assert found.ahead.hit
        assert not other.done()
        assert said(found) == said(await plain.propose(propose_of(3, first[3:], 3)))
        model.gate.set()
        await other
        again = await draft.propose(ahead_of(7, (), 3))
        assert said(again) == said(await plain.propose(propose_of(7, (), 3)))


async def test_a_verdict_that_nothing_is_ready_for_waits_for_the_step() -> None:
    model = GatedModel(hashed_logits)
    with draft_of(model) as draft:
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), 3))
        await settled(draft)
        model.gate.clear()
        missed = asyncio.create_task(draft.propose(ahead_of(0, (63, 63), 3)))
        await asyncio.sleep(0)
        assert not missed.done()
        model.gate.set()
        found = (await missed).ahead
        assert found is not None
        assert not found.hit


async def test_a_fault_in_preparing_ends_that_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object, **__: object) -> None:
        raise ValueError("a secret")

    model = scripted()
    with draft_of(model) as draft, draft_of(scripted()) as plain:
        for engine in (draft, plain):
            await engine.open(opening())
        monkeypatch.setattr(ahead, "shortlist", faulty)
        first = await draft.propose(ahead_of(0, (), K))
        await settled(draft)
        assert [line for line in draft.loop.lines._lines.values() if line.is_ahead] == []
        assert model.blocks.used == 1  # the session's own was not forgotten
        assert "ValueError at faulty" in caplog.text
        assert "secret" not in caplog.text
        await plain.propose(propose_of(0, (), K))
        again = await draft.propose(propose_of(len(first.ids), (1,), K))
        assert said(again) == said(await plain.propose(propose_of(len(first.ids), (1,), K)))


async def test_a_branch_that_gives_up_holds_nothing_any_more() -> None:
    model = scripted(kv_blocks=9)
    with draft_of(model) as draft:
        await draft.open(opening("b", prompt=tuple(i % VOCAB for i in range(16 * 8 - 2))))
        await draft.propose(propose_of(0, (), 1, name="b"))
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), K))
        await settled(draft)
        assert [line for line in draft.loop.lines._lines.values() if line.is_ahead] == []


async def test_to_drop_what_is_drafted_ahead_twice_is_to_drop_it_once() -> None:
    with draft_of(scripted()) as draft:
        await draft.open(opening())
        await draft.propose(ahead_of(0, (), K))
        await settled(draft)
        preparation = draft._sessions._known[SessionId("a")].ahead
        assert preparation is not None
        await draft.loop.call(preparation.drop)
        await draft.loop.call(preparation.drop)
        assert len(draft.loop.lines._lines) == 1


def local_logits(prefix: tuple[TokenId, ...]) -> Logits:
    return hashed_logits(prefix[-3:])


async def test_a_branch_costs_the_same_however_long_the_text_is() -> None:
    async def cost(blocks: int) -> tuple[int, list[tuple[int, int]]]:
        """Blocks copied in a round, and of each branch the ids and blocks that it holds."""
        model = GatedModel(local_logits, max_length=4096)
        prompt = tuple(at % VOCAB for at in range(VOCAB)) * (blocks * 16 // VOCAB) + (1, 2, 3)
        with draft_of(model) as draft:
            await draft.open(opening(prompt=prompt, parameters=SamplingParameters(seed=7, temperature=0.0)))
            await draft.propose(ahead_of(0, (), K))
            await settled(draft)
            branches = [line for line in draft.loop.lines._lines.values() if line.is_ahead]
            return model.copied, [(len(line.held), len(line.table.blocks)) for line in branches]

    short = await cost(4)
    assert short == await cost(200)
    copied, branches = short
    assert 3 <= copied <= len(branches) + 1
    assert all(held < 16 and blocks == 1 for held, blocks in branches)
