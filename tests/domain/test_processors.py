"""The logits processors: each rule by itself, their order, and the law that they share with other samplers."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tandem_runtime.domain.errors import BadRequest, NotANumber, NothingAdmitted
from tandem_runtime.domain.processors import History, processed, refuse_unfit
from tandem_runtime.domain.sampling import coupled_choice, distribution
from tandem_runtime.domain.tokens import Grammar, GrammarKind, SamplingParameters, TokenId

INF = math.inf
ROW = [3.0, 2.0, 1.0, -1.0, 0.5]


def parameters(**changes: object) -> SamplingParameters:
    return SamplingParameters(**{"seed": 0, **changes})  # type: ignore[arg-type]  # a table row names real fields


def after(changes: dict[str, object], *, prompt: Sequence[TokenId] = (), output: Sequence[TokenId] = ()) -> list[float]:
    return processed(ROW, parameters(**changes), History(prompt, output))


RULES: list[tuple[str, dict[str, object], tuple[TokenId, ...], tuple[TokenId, ...], list[float]]] = [
    ("nothing asked", {}, (0, 1), (2, 2), ROW),
    ("only allowed tokens stay", {"allowed_tokens": (1, 4)}, (), (), [-INF, 2.0, -INF, -INF, 0.5]),
    ("a bad word of one token is banned", {"bad_words": ((0,),)}, (), (), [-INF, 2.0, 1.0, -1.0, 0.5]),
    ("a bad word is cut at its end", {"bad_words": ((3, 4, 0),)}, (), (1, 3, 4), [-INF, 2.0, 1.0, -1.0, 0.5]),
    ("a bad word that is not under way", {"bad_words": ((3, 4, 0),)}, (), (3, 1, 4), ROW),
    ("a bad word is not completed by the prompt", {"bad_words": ((3, 4, 0),)}, (3,), (4,), ROW),
    ("an end is held back", {"min_tokens": 2, "end_tokens": (0,)}, (0,), (1,), [-INF, 2.0, 1.0, -1.0, 0.5]),
    ("an end may come after that", {"min_tokens": 2, "end_tokens": (0,)}, (), (1, 1), ROW),
    ("bias is added", {"logit_bias": ((1, 4.0),)}, (), (), [3.0, 6.0, 1.0, -1.0, 0.5]),
    ("repetition counts the prompt", {"repetition_penalty": 2.0}, (0, 3), (1,), [1.5, 1.0, 1.0, -2.0, 0.5]),
    ("frequency counts the output", {"frequency_penalty": 0.5}, (0,), (1, 1, 2), [3.0, 1.0, 0.5, -1.0, 0.5]),
    ("presence counts once", {"presence_penalty": 0.5}, (0,), (1, 1, 2), [3.0, 1.5, 0.5, -1.0, 0.5]),
    ("penalties below zero encourage", {"presence_penalty": -1.0}, (), (4,), [3.0, 2.0, 1.0, -1.0, 1.5]),
    (
        "bias acts before repetition",
        {"logit_bias": ((3, 5.0),), "repetition_penalty": 2.0},
        (3,),
        (),
        [*ROW[:3], 2, 0.5],
    ),
    (
        "repetition acts before frequency and presence",
        {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.25},
        (),
        (0, 0),
        [1.5 - 2.0 - 0.25, *ROW[1:]],
    ),
    ("no bias lifts a mask", {"allowed_tokens": (1,), "logit_bias": ((0, 100.0),)}, (), (), [-INF, 2.0, *[-INF] * 3]),
]


@pytest.mark.parametrize(
    ("changes", "prompt", "output", "expected"), [row[1:] for row in RULES], ids=[r[0] for r in RULES]
)
def test_each_rule_changes_the_row_as_it_says(
    changes: dict[str, object], prompt: tuple[TokenId, ...], output: tuple[TokenId, ...], expected: list[float]
) -> None:
    assert after(changes, prompt=prompt, output=output) == expected


def test_a_grammar_leaves_what_it_admits_and_the_other_rules_act_on_that() -> None:
    asked = parameters(logit_bias=((0, 9.0), (1, 1.0)))
    assert processed(ROW, asked, admitted={1, 3}) == [-INF, 3.0, -INF, -1.0, -INF]
    assert distribution(ROW, parameters(temperature=0.0), admitted={3}) == {3: 1.0}
    assert coupled_choice(ROW, parameters(), 0, admitted={3}) == 3


NOTHING_LEFT: list[tuple[dict[str, object], frozenset[TokenId] | None, str, str]] = [
    ({"grammar": Grammar(GrammarKind.REGEX, "a")}, frozenset(), "response_format", "response_format left no"),
    ({"allowed_tokens": (1,), "bad_words": ((1,),)}, None, "allowed_token_ids", "allowed_token_ids and bad_words left"),
    ({"allowed_tokens": (1,), "min_tokens": 1, "end_tokens": (1,)}, None, "allowed_token_ids", "min_tokens left"),
]


@pytest.mark.parametrize(("changes", "admitted", "parameter", "part"), NOTHING_LEFT)
def test_rules_that_leave_no_token_are_the_requests_fault_and_are_named(
    changes: dict[str, object], admitted: frozenset[TokenId] | None, parameter: str, part: str
) -> None:
    with pytest.raises(NothingAdmitted, match=part) as caught:
        processed(ROW, parameters(**changes), admitted=admitted)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("row", [[math.nan, 1.0], [INF, 1.0], [-INF, -INF], []])
def test_a_row_without_a_law_is_the_models_fault_whatever_the_rules_say(row: list[float]) -> None:
    with pytest.raises(NotANumber):
        processed(row, parameters(allowed_tokens=(1,), bad_words=((1,),)))


UNFIT: list[tuple[dict[str, object], str, str]] = [
    ({"seed": -1}, "seed", "seed is -1; give a whole number from 0 to"),
    ({"seed": 2**64}, "seed", "is 18446744073709551616"),
    ({"temperature": -0.5}, "temperature", "is -0.5"),
    ({"temperature": math.nan}, "temperature", "is nan"),
    ({"temperature": INF}, "temperature", "is inf"),
    ({"top_k": -1}, "top_k", "is -1"),
    ({"top_p": 0.0}, "top_p", "is 0.0"),
    ({"top_p": math.nan}, "top_p", "is nan"),
    ({"min_p": 1.5}, "min_p", "is 1.5"),
    ({"logit_bias": ((1, 2.0), (2, math.nan))}, "logit_bias", "of token 2 is nan"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "is 0.0"),
    ({"repetition_penalty": -1.0}, "repetition_penalty", "is -1.0"),
    ({"repetition_penalty": math.nan}, "repetition_penalty", "is nan"),
    ({"repetition_penalty": INF}, "repetition_penalty", "is inf"),
    ({"frequency_penalty": math.nan}, "frequency_penalty", "is nan"),
    ({"presence_penalty": -INF}, "presence_penalty", "is -inf"),
    ({"bad_words": ((1,), ())}, "bad_words", "leave it out"),
    ({"bad_words": ((1, 5),)}, "bad_words", "token id 5"),
    ({"allowed_tokens": (-1,)}, "allowed_token_ids", "token id -1"),
    ({"min_tokens": 1, "end_tokens": (9,)}, "min_tokens", "token id 9"),
    ({"logit_bias": ((7, 1.0),)}, "logit_bias", "token id 7"),
]


@pytest.mark.parametrize(("changes", "parameter", "part"), UNFIT)
def test_parameters_that_no_row_can_follow_are_refused_by_name_and_value(
    changes: dict[str, object], parameter: str, part: str
) -> None:
    with pytest.raises(BadRequest, match=part) as caught:
        refuse_unfit(parameters(**changes), vocab_size=5)
    assert caught.value.parameter == parameter


def test_parameters_at_their_edges_are_fit() -> None:
    edge = parameters(repetition_penalty=1e-3, bad_words=((4, 0),), allowed_tokens=(0, 4), logit_bias=((4, -100.0),))
    refuse_unfit(edge, vocab_size=5)
    refuse_unfit(parameters(seed=2**64 - 1, temperature=0.0, top_p=1.0, min_p=1.0), vocab_size=5)


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        ({"temperature": 0.3, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "logit_bias": ((1, 2.0),), "choice": 3}, True),
        ({"grammar": Grammar(GrammarKind.REGEX, "a")}, False),
        ({"allowed_tokens": (1,)}, False),
        ({"bad_words": ((1,),)}, False),
        ({"min_tokens": 1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"frequency_penalty": 0.1}, False),
        ({"presence_penalty": 0.1}, False),
    ],
)
def test_a_request_is_plain_iff_no_rule_needs_a_history_or_a_mask(changes: dict[str, object], plain: bool) -> None:
    assert parameters(**changes).is_plain is plain


# Other samplers ------------------------------------------------------------------------------------------------------

VOCAB = 12
TOKENS = st.integers(0, VOCAB - 1)
LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB)
PAST = st.lists(TOKENS, max_size=20).map(tuple)
BIAS = st.dictionaries(TOKENS, st.floats(-10, 10, width=32), max_size=4).map(lambda bias: tuple(sorted(bias.items())))


def as_vllm(logits: Sequence[float], asked: SamplingParameters, history: History) -> torch.Tensor:
    """The formulas of vLLM's v1 sampler up to temperature, in tensors of float64, written out for one row."""
    row = torch.tensor(logits, dtype=torch.float64)
    output, prompt = torch.tensor(history.output, dtype=torch.long), torch.tensor(history.prompt, dtype=torch.long)
    counts = torch.zeros(VOCAB, dtype=torch.float64).scatter_add_(
        0, output, torch.ones(len(output), dtype=torch.float64)
    )
    in_output = counts > 0
    in_prompt = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, prompt, True)
    if asked.allowed_tokens:
        allowed = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, torch.tensor(asked.allowed_tokens), True)
        row = row.masked_fill(~allowed, -INF)
    for word in asked.bad_words:
        past = list(history.output)
        if len(word) <= len(past) + 1 and (len(word) == 1 or past[-(len(word) - 1) :] == list(word[:-1])):
            row[word[-1]] = -INF
    if len(output) < asked.min_tokens:
        row[list(asked.end_tokens)] = -INF
    for token, bias in asked.logit_bias:
        row[token] += bias
    penalties = torch.ones(VOCAB, dtype=torch.float64).masked_fill_(in_prompt | in_output, asked.repetition_penalty)
    row = row * torch.where(row > 0, 1.0 / penalties, penalties)
    row -= asked.frequency_penalty * counts
    return row - asked.presence_penalty * in_output.double()


@st.composite
def requests(draw: st.DrawFn) -> SamplingParameters:
    return parameters(
        allowed_tokens=tuple(draw(st.sets(TOKENS, max_size=6))),
        bad_words=tuple(draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=2))),
        min_tokens=draw(st.integers(0, 20)),
        end_tokens=(0,),
        logit_bias=draw(BIAS),
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.3, 2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.9, -2.0])),
    )


@given(LOGITS, requests(), PAST, PAST)
def test_the_processed_row_is_that_of_vllms_formulas(
    logits: list[float], asked: SamplingParameters, prompt: tuple[TokenId, ...], output: tuple[TokenId, ...]
) -> None:
    history = History(prompt, output)
    expected = as_vllm(logits, asked, history)
    if expected.max() == -INF:
        with pytest.raises(NothingAdmitted):
            processed(logits, asked, history)
    else:
        assert processed(logits, asked, history) == pytest.approx(expected.tolist(), abs=1e-9, rel=1e-9)


@given(
    LOGITS,
    BIAS,
    PAST,
    st.tuples(st.sampled_from([0.3, 1.0, 1.7]), st.integers(1, VOCAB), st.sampled_from([0.4, 0.9, 1.0])),
    st.sampled_from([0.0, 0.05, 0.3]),
)
def test_the_law_is_that_of_transformers_processors_in_their_order(
    logits: list[float],
    bias: tuple[tuple[TokenId, float], ...],
    past: tuple[TokenId, ...],
    shape: tuple[float, int, float],
    min_p: float,
) -> None:
    """transformers knows one sequence, so prompt and output are not apart: repetition sees both, a bad word ends it."""
    (temperature, top_k, top_p), ids = shape, torch.LongTensor([[1, 2, 3, *past]])
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token], value] for token, value in (*bias, (0, 0.5))]),
            RepetitionPenaltyLogitsProcessor(1.3),
            NoBadWordsLogitsProcessor([[2, 3], [4]], eos_token_id=None),
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(top_k),
            TopPLogitsWarper(top_p),
            MinPLogitsWarper(min_p),
        ]
    )
    merged = dict(bias)
    merged[0] = 0.5
    asked = parameters(
        logit_bias=tuple(sorted(merged.items())),
        repetition_penalty=1.3,
        bad_words=((2, 3), (4,)),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
    )
    expected = theirs(ids, torch.tensor([logits], dtype=torch.float64)).softmax(-1)[0].tolist()
    law = distribution(logits, asked, History(output=(1, 2, 3, *past)))
    finite = [value for value in processed(logits, asked, History(output=(1, 2, 3, *past))) if value > -INF]
    if len({round(value, 6) for value in finite}) == len(finite):  # transformers keeps all that tie with the k-th
        assert [law.get(token, 0.0) for token in range(VOCAB)] == pytest.approx(expected, abs=1e-6)
