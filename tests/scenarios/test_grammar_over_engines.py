"""C05 (vLLM #9423): constrained output stays valid and alive whatever the draft proposes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.scenarios.test_processors_over_engines import (
    FACTS,
    GREEDY,
    KS,
    Answer,
    Pair,
    SystemClock,
    answers,
    asks,
)

from tandem_runtime.domain.errors import BadRequest, NothingAdmitted
from tandem_runtime.domain.lookahead import OFF, Bounds
from tandem_runtime.domain.tokens import (
    Grammar,
    GrammarKind,
    OpenSession,
    Proposal,
    SamplingParameters,
    SessionId,
    SparseRow,
    TokenId,
    Verification,
    VerifyRound,
)
from tandem_runtime.domain.tool_calls import Argued, CallReader, ToolFormat
from tandem_runtime.engines.scripted import Script, ScriptedModel
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.grammar import table_grammars
from tandem_runtime.testing import constant

END = 0
TABLE = [b"", *(bytes([code]) for code in range(32, 127))]
WITH_GRAMMARS = replace(FACTS, end_tokens=frozenset({END}), grammars=table_grammars(TABLE, end_tokens=frozenset({END})))
OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


def preferring(preferences: dict[str, float]) -> list[float]:
    """Logits over the table: 0 but for the letters of each key."""
    logits = [0.0] * len(TABLE)
    for letters, logit in preferences.items():
        for letter in letters:
            logits[TABLE.index(letter.encode())] = logit
    return logits


PROSE = preferring({"abcdefghijklmnopqrstuvwxyz": 5.0, "}": 9.0, '"': 8.0, "{": 7.0, " ": -5.0})


def at_random(prefix: tuple[TokenId, ...]) -> list[float]:
    """A draft that is sure of a token that has nothing to do with anything."""
    chosen = int.from_bytes(hashlib.sha256(repr(prefix).encode()).digest()[:4]) % len(TABLE)
    return [30.0 if token == chosen else 0.0 for token in range(len(TABLE))]


PAIR = Pair(constant(PROSE), at_random, WITH_GRAMMARS)

LEAD = b"Hm <tool_call>"
CALLS = Grammar(
    GrammarKind.CALLS,
    json.dumps(
        {
            "format": "Hermes",
            "call": {
                "type": "object",
                "properties": {
                    "name": {"const": "add"},
                    "arguments": {"type": "object", "properties": {"a": {"enum": [12, 345]}}, "required": ["a"]},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            },
        }
    ),
)


LARK = {
    "rules that lead to one another": 'start: item (", " item)+ "."\nitem: WORD | "(" start ")"\nWORD: /[a-z]{2,5}/\n',
    "a part of at most so many tokens": 'start: note ";" /[0-9]{3}/\nnote[max_tokens=5]: /[a-z }]*/\n',
    "a schema within": 'start: "say " %json {"type": "object"}\n',
    "a lazy part": 'start: said "!" said\nsaid[lazy]: /[a-z}]*}/\n',
}


def calling(prefix: tuple[TokenId, ...]) -> list[float]:
    """A model that opens a call and then babbles; behind what closes it, it ends."""
    said = b"".join(TABLE[token] for token in prefix[1:])
    if len(said) < len(LEAD):
        return [9.0 if TABLE[token] == LEAD[len(said) : len(said) + 1] else 0.0 for token in range(len(TABLE))]
    return [20.0 if token == END and said.endswith(b"</tool_call>") else PROSE[token] for token in range(len(TABLE))]


def constrained(seed: int, *, temperature: float, grammar: Grammar | None = OBJECT) -> SamplingParameters:
    return SamplingParameters(seed=seed, temperature=temperature, grammar=grammar)


def text_of(ids: Sequence[TokenId]) -> str:
    return b"".join(TABLE[token] for token in ids).decode()


@pytest.mark.parametrize(
    "size", [24, pytest.param(100, marks=(pytest.mark.exactness, pytest.mark.timeout(0)), id="100, as handed")]
)
@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("bounds", [KS[1], KS[3], KS[4]], ids=str)
async def test_constrained_answers_parse_whatever_the_draft_proposes(
    bounds: Bounds, verification: Verification, size: int
) -> None:
    requests = [
        asks(constrained(seed, temperature=seed % 2), max_tokens=60, end_tokens=(END,), verification=verification)
        for seed in range(size)
    ]
    free = asks(constrained(1, temperature=0.0, grammar=None), max_tokens=60, end_tokens=(END,))
    plain, _ = await answers(PAIR, [*requests, free], OFF)
    found, proposed = await answers(PAIR, [*requests, free], bounds)
    assert proposed > 0
    for seed, (answer, alone) in enumerate(zip(found, plain, strict=True)):
        assert isinstance(answer, Answer), answer
        assert isinstance(alone, Answer), alone
        if seed < len(requests):
            assert isinstance(json.loads(text_of(answer.ids[:-1])), dict)
            assert answer.ids[-1] == END
        if seed % 2 == 0 or seed == len(requests) or verification is Verification.COUPLED:
            assert answer.ids == alone.ids
    print(f"{len(requests)} constrained answers parse; {proposed} tokens were proposed")
    unconstrained = found[-1]
    assert isinstance(unconstrained, Answer)
    assert text_of(unconstrained.ids) == "}" * 60


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("draft", [at_random, calling], ids=["a draft of no sense", "a draft like its target"])
@pytest.mark.parametrize("bounds", [KS[1], KS[3], KS[4]], ids=str)
async def test_a_call_that_nobody_forced_fits_its_schema_whatever_the_draft_proposes(
    bounds: Bounds, draft: Script, verification: Verification
) -> None:
    """The grammar begins in the middle of the answer, and in the middle of a proposal."""
    pair = replace(PAIR, target=calling, draft=draft)
    requests = [
        asks(
            constrained(seed, temperature=(seed % 2) * 0.5, grammar=CALLS),
            max_tokens=200,
            end_tokens=(END,),
            verification=verification,
        )
        for seed in range(8)
    ]
    plain, _ = await answers(pair, requests, OFF)
    found, proposed = await answers(pair, requests, bounds)
    assert proposed > 0
    for seed, (answer, alone) in enumerate(zip(found, plain, strict=True)):
        assert isinstance(answer, Answer), answer
        assert isinstance(alone, Answer), alone
        reader = CallReader(ToolFormat.HERMES, {"add"})
        events = [*reader.feed(text_of(answer.ids)), *reader.end()]
        if seed % 2 == 0:
            assert reader.calls == 1
        if reader.calls and answer.ids[-1] == END:
            arguments = "".join(event.text for event in events if isinstance(event, Argued) and event.call == 0)
            assert json.loads(arguments)["a"] in (12, 345)
        if seed % 2 == 0 or verification is Verification.COUPLED:
            assert answer.ids == alone.ids


@pytest.mark.parametrize("text", LARK.values(), ids=LARK.keys())
@pytest.mark.parametrize("verification", list(Verification))
async def test_an_answer_keeps_to_rules_in_lark_whatever_the_draft_proposes(
    verification: Verification, text: str
) -> None:
    lark = Grammar(GrammarKind.LARK, text)
    requests = [
        asks(
            constrained(seed, temperature=seed % 2, grammar=lark),
            max_tokens=60,
            end_tokens=(END,),
            verification=verification,
        )
        for seed in range(12)
    ]
    plain, _ = await answers(PAIR, requests, OFF)
    for draft in (at_random, constant(PROSE)):
        found, proposed = await answers(replace(PAIR, draft=draft), requests, KS[4])
        assert proposed > 0
        for seed, (answer, alone) in enumerate(zip(found, plain, strict=True)):
            assert isinstance(answer, Answer), answer
            assert isinstance(alone, Answer), alone
            matcher = table_grammars(TABLE, end_tokens=frozenset({END})).compile(lark)
            for token in answer.ids:
                assert matcher.admitted()[token], text_of(answer.ids)
                matcher.advance(token)
            if seed % 2 == 0 or verification is Verification.COUPLED:
                assert answer.ids == alone.ids


@pytest.mark.parametrize("verification", list(Verification))
async def test_a_proposal_of_which_the_grammar_leaves_nothing_is_a_round_with_k_zero(
    verification: Verification,
) -> None:
    """Its verdicts are those of empty proposals, round by round."""
    plain, refuted = await _verdicts((), verification), await _verdicts((70, 71, 72), verification)
    assert refuted == plain
    assert text_of([token for _, token in refuted]) == "{}"
    assert all(accepted == 0 for accepted, _ in refuted)


async def _verdicts(proposed: tuple[TokenId, ...], verification: Verification) -> list[tuple[int, TokenId]]:
    q = tuple(SparseRow((token,), (1.0,)) for token in proposed) if verification is not Verification.COUPLED else None
    told: list[tuple[int, TokenId]] = []
    with BatchedTarget(ScriptedModel(PAIR.target), WITH_GRAMMARS, clock=SystemClock()) as target:
        asked = constrained(0, temperature=0.0)
        opened = await target.open(OpenSession(SessionId("s"), (0,), (), asked, verification, 60))
        for number in range(3):
            request = VerifyRound(SessionId("s"), opened.incarnation, number, number, Proposal(proposed, q))
            verdict = await target.verify(request)
            told.append((verdict.accepted, verdict.token))
    return told


async def test_a_session_opened_again_in_the_middle_goes_on_in_its_grammar() -> None:
    """Prompt and output come apart, so that the output alone is read by the grammar."""
    words = Grammar(GrammarKind.REGEX, "cat|cow")
    whole = tuple(TABLE.index(letter) for letter in (b"c", b"o", b"w"))
    logits = preferring({"o": 3.0, "w": 2.0, "t": 1.0})
    with BatchedTarget(ScriptedModel(constant(logits)), WITH_GRAMMARS, clock=SystemClock()) as target:
        asked = constrained(0, temperature=0.0, grammar=words)
        opened = await target.open(OpenSession(SessionId("s"), whole, whole[:1], asked, Verification.COUPLED, 60))
        verdict = await target.verify(VerifyRound(SessionId("s"), opened.incarnation, 0, 1, Proposal(whole[1:])))
    assert (verdict.accepted, verdict.token) == (2, END)


async def test_a_session_opened_again_before_within_and_behind_a_call_goes_on_in_its_grammar() -> None:
    """As after a lost target: whether a call is open follows from the output alone."""
    asked = constrained(0, temperature=0.0, grammar=CALLS)
    (answer,), _ = await answers(replace(PAIR, target=calling), [asks(asked, max_tokens=200, end_tokens=(END,))], OFF)
    assert isinstance(answer, Answer)
    ids = answer.ids
    assert ids[-1] == END
    with BatchedTarget(ScriptedModel(calling), WITH_GRAMMARS, clock=SystemClock()) as target:
        for said in range(len(ids)):
            opened = await target.open(OpenSession(SessionId("s"), (0,), ids[:said], asked, Verification.COUPLED, 200))
            guesses = ids[said : said + 6]
            verdict = await target.verify(VerifyRound(SessionId("s"), opened.incarnation, 0, said, Proposal(guesses)))
            follows = [*ids[said + len(guesses) :], END]
            assert (verdict.accepted, verdict.token) == (len(guesses), follows[0]), text_of(ids[:said])


async def test_a_grammar_that_admits_no_token_fails_its_own_request_and_no_other() -> None:
    asked = replace(constrained(3, temperature=0.0), allowed_tokens=(1,))
    found, _ = await answers(PAIR, [asks(asked, max_tokens=9), asks(GREEDY, max_tokens=2)], KS[3])
    assert isinstance(found[0], NothingAdmitted)
    assert found[0].parameter == "response_format"
    assert isinstance(found[1], Answer)


async def test_a_model_without_a_tokenizer_refuses_a_grammar_at_its_door() -> None:
    found, _ = await answers(replace(PAIR, facts=FACTS), [asks(constrained(0, temperature=0.0), max_tokens=9)], OFF)
    assert isinstance(found[0], BadRequest)
    assert found[0].parameter == "response_format"
