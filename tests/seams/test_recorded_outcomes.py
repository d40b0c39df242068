"""Recorded outcomes: what a trace says of a draft is what serving with that draft does."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from benchmarks.outcomes import Written, confidences, coupled_bits, lookup_outcomes, read, rejection_outcome, write
from benchmarks.recorded import NotATrace, Outcomes, Trace, read_trace, read_traces, write_trace
from tests.seams.port_models import PAIRS
from tests.seams.port_words import draft_of, opening, plain, propose_of, round_of, target_of

from tandem_runtime.domain.suffix import NGramText, SuffixText, Text
from tandem_runtime.domain.tokens import (
    Capabilities,
    Drafter,
    Incarnation,
    SamplingParameters,
    ScoreTokens,
    SessionId,
    TokenId,
)
from tandem_runtime.drafters import LookupDraft
from tandem_runtime.engines.sampler import Law

PROMPT: tuple[TokenId, ...] = (3, 1, 4, 1, 5, 9, 2, 6)
TOKENS = 24


class Still:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


@pytest.mark.parametrize("name", sorted(PAIRS))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_bits_of_a_coupled_draft_are_what_serving_accepts(name: str, temperature: float) -> None:
    pair, parameters = PAIRS[name], SamplingParameters(seed=7, temperature=temperature)
    texts = [Written(prompt, parameters) for prompt in (PROMPT, PROMPT[:3])]
    write(pair.target(), texts, tokens=TOKENS, ends=frozenset())
    text = texts[0]
    [rows] = read(pair.draft(), [text])
    bits = coupled_bits(rows, text)
    request = opening(prompt=PROMPT, parameters=parameters)
    with target_of(pair.target()) as target, draft_of(pair.draft()) as draft:
        assert text.output == await plain(target, request, TOKENS)
        await target.open(request)
        await draft.open(request)
        at = base = number = 0
        while at + 4 < TOKENS:
            proposal = await draft.propose(propose_of(base, text.output[base:at], 4))
            verdict = await target.verify(round_of(number, at, proposal.ids))
            assert verdict.accepted == len(bits[at : at + 4].partition("0")[0])
            base, at, number = at, at + verdict.accepted + 1, number + 1


@pytest.mark.parametrize(("drafter", "text"), [(Drafter.NGRAM, NGramText), (Drafter.SUFFIX, SuffixText)])
async def test_the_bits_of_a_lookup_are_those_that_it_scores(drafter: Drafter, text: type[Text]) -> None:
    output = (1, 5, 9, 2, 6, 3, 1, 4, 1, 5, 9, 2, 7, 9, 2, 7, 9, 2)
    bits, offered = lookup_outcomes(text(), PROMPT, output)
    lookup = LookupDraft(drafter, Capabilities("model", "tokenizer", 64, 512, "Bitwise"), Still())
    await lookup.open(opening("a", prompt=PROMPT))
    scored = await lookup.score(ScoreTokens(SessionId("a"), Incarnation(drafter), 0, output))
    assert bits == "".join("1" if bit else "0" for bit in scored)
    assert "1" in bits
    assert all(asked == "1" for bit, asked in zip(bits, offered, strict=True) if bit == "1")


def test_a_rejection_read_from_its_end_has_the_law_of_serving() -> None:
    """20,000 draws: the guess follows q, the share of accepted is that of min(p, q), within 5 standard errors."""
    p = Law(np.array([0, 1, 2]), np.array([0.6, 0.3, 0.1]))
    q = Law(np.array([0, 1, 3]), np.array([0.2, 0.5, 0.3]))
    chance, draws = random.Random(3), 20_000
    said = chance.choices([0, 1, 2], p.probabilities.tolist(), k=draws)
    found = Counter(rejection_outcome(p, q, token, chance) for token in said)
    credit_of_guess = {1.0: 0.2, 0.6: 0.5, 0.0: 0.3}
    for credit, share in credit_of_guess.items():
        seen = sum(count for (_, each), count in found.items() if each == pytest.approx(credit))
        assert seen / draws == pytest.approx(share, abs=5 * (share * (1 - share) / draws) ** 0.5)
    accepted = sum(count for (stands, _), count in found.items() if stands)
    assert accepted / draws == pytest.approx(0.5, abs=5 * 0.5 / draws**0.5)
    assert not any(stands for stands, credit in found if credit == 0.0)


def test_a_draft_is_as_sure_as_its_likeliest_token_is_likely() -> None:
    rows = np.log(np.array([[0.5, 0.25, 0.25], [0.98, 0.01, 0.01]]))
    assert confidences(rows) == (0.5, 0.98)


def trace(*sequences: Outcomes) -> Trace:
    return Trace("a-b", "recorded", "a", "b", "Rejection", "t", {"prose": "somewhere"}, sequences)


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = trace(
        Outcomes("prose", "p-1", 1.0, 12, "011", credits=(0.5, 1.0, 1.0), confidences=(0.1, 0.9, 1.0)),
        Outcomes("prose", "p-2", 0.0, 7, "10", offered="11", group="g"),
    )
    assert read_trace(write_trace(written, {"seed": 1}, tmp_path)) == written
    assert written.acceptance == 3 / 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": ""}, r"sequences\[0\].bits is ''"),
        ({"bits": "01x"}, r"sequences\[0\].bits is '01x'"),
        ({"credits": [0.5]}, r"sequences\[0\].credits has 1 entries; it needs one for each of 2 bits"),
        ({"confidences": [0.5, 1.5]}, r"sequences\[0\].confidences holds 1.5"),
        ({"offered": "1"}, r"sequences\[0\].offered has 1 entries"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = write_trace(trace(Outcomes("prose", "p", 0.0, 3, "01")), {}, tmp_path)
    told = json.loads(path.read_text())
    told["sequences"][0] |= changes
    path.write_text(json.dumps(told))
    with pytest.raises(NotATrace, match=said):
        read_trace(path)


def test_the_recorded_traces_are_whole_and_hold_no_text() -> None:
    traces = read_traces()
    assert len({each.pair for each in traces}) >= 2
    for each in traces:
        assert set(each.prompts) == {sequence.task for sequence in each.sequences}
        assert all(sequence.temperature > 0 for sequence in each.sequences if sequence.credits is not None)
        assert 0 < each.acceptance < 1
