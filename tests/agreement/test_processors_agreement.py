"""The processors of a session in numpy equal the plain reference, bit for bit, wherever its output has been."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem_runtime.domain import sampling
from tandem_runtime.domain.errors import NotANumber, NothingAdmitted
from tandem_runtime.domain.processors import History, processed
from tandem_runtime.domain.tokens import Grammar, GrammarKind, SamplingParameters, TokenId
from tandem_runtime.engines import sampler
from tandem_runtime.engines.processors import Processors

VOCAB = 9
TOKENS = st.integers(0, VOCAB - 1)
IDS = st.lists(TOKENS, max_size=8)
LOGITS = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30), st.just(-math.inf))
ROWS = st.lists(st.lists(LOGITS, min_size=VOCAB, max_size=VOCAB), min_size=5, max_size=5)
GRAMMAR = Grammar(GrammarKind.REGEX, "not read here")


def admitted_after(said: tuple[TokenId, ...]) -> set[TokenId]:
    """A grammar of sorts: what follows depends on all that was said, and never includes 8."""
    return {token for token in range(VOCAB - 1) if (sum(said) + len(said) + token) % 3}


class SortOfMatcher:
    """`ports.Matcher` for it."""

    def __init__(self) -> None:
        self.said: list[TokenId] = []

    def admitted(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(VOCAB, np.bool_)
        mask[list(admitted_after(tuple(self.said)))] = True
        return mask

    def advance(self, token: TokenId) -> None:
        self.said.append(token)

    def roll_back(self, count: int) -> None:
        del self.said[len(self.said) - count :]


@st.composite
def requests(draw: st.DrawFn) -> SamplingParameters:
    return SamplingParameters(
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_k=draw(st.sampled_from([0, 3])),
        logit_bias=tuple(sorted(draw(st.dictionaries(TOKENS, st.floats(-5, 5), max_size=3)).items())),
        grammar=draw(st.sampled_from([None, GRAMMAR])),
        allowed_tokens=tuple(sorted(draw(st.sets(TOKENS, max_size=7)))),
        bad_words=tuple(draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3))),
        min_tokens=draw(st.integers(0, 12)),
        end_tokens=(0, 5),
        repetition_penalty=draw(st.sampled_from([1.0, 0.7, 1.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.1, -1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
    )


def reference(row: list[float], asked: SamplingParameters, history: History) -> list[float] | None:
    """None: the rules leave nothing."""
    admitted = None if asked.grammar is None else admitted_after(tuple(history.output))
    try:
        return processed(row, asked, history, admitted)
    except NothingAdmitted:
        return None


@settings(suppress_health_check=[HealthCheck.too_slow])  # five rows of floats; a busy machine is no fault of theirs
@given(
    requests(),
    IDS,
    st.lists(st.tuples(st.integers(0, 5), IDS), max_size=4),
    ROWS.filter(lambda rows: all(max(row) > -math.inf for row in rows)),
    st.lists(TOKENS, min_size=4, max_size=4),
)
def test_rows_are_the_reference_rows_after_any_history_of_commits_and_roll_backs(
    asked: SamplingParameters,
    prompt: list[TokenId],
    commits: list[tuple[int, list[TokenId]]],
    table: list[list[float]],
    proposed: list[TokenId],
) -> None:
    matcher = None if asked.grammar is None else SortOfMatcher()
    ours = Processors(asked, prompt, vocab_size=VOCAB, matcher=matcher)
    output: list[TokenId] = []
    for back, ids in commits:
        at = max(0, len(output) - back)
        ours.commit(at, ids)
        output[at:] = ids
    rows = ours.rows(np.array(table), proposed)
    for at, row in enumerate(rows):
        expected = reference(table[at], asked, History(prompt, [*output, *proposed[:at]]))
        assert row.tolist() == (expected or [-math.inf] * VOCAB)
        if at < len(proposed) and row[proposed[at]] == -math.inf:
            break  # what stands behind a token that is rejected for certain is never looked at
    assert ours.rows(np.array(table), proposed).tolist() == rows.tolist()
    if expected := reference(table[0], asked, History(prompt, output)):
        law = sampler.distribution(rows[0], asked.after_processors())
        assert law.ids.tolist() == list(
            sampling.distribution(
                table[0],
                asked,
                History(prompt, output),
                None if asked.grammar is None else admitted_after(tuple(output)),
            )
        )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_any_float_type_are_processed_in_float64(dtype: type[np.floating]) -> None:
    asked = SamplingParameters(seed=0, repetition_penalty=1.3, frequency_penalty=0.1)
    row = np.array([[0.1, 2.7, -1.3]], dtype)
    ours = Processors(asked, [0], vocab_size=3, matcher=None)
    ours.commit(0, [1, 1])
    assert ours.rows(row, ()).tolist() == [processed(row[0].tolist(), asked, History([0], [1, 1]))]


def test_counts_grow_over_many_distinct_tokens() -> None:
    asked = SamplingParameters(seed=0, presence_penalty=1.0)
    ours = Processors(asked, (), vocab_size=1000, matcher=None)
    ours.commit(0, list(range(0, 1000, 2)))
    assert ours.rows(np.zeros((1, 1000)), ())[0].tolist() == [-1.0, 0.0] * 500


def test_a_proposed_id_outside_the_vocabulary_ends_what_is_processed() -> None:
    ours = Processors(SamplingParameters(seed=0, allowed_tokens=(1,)), (), vocab_size=3, matcher=None)
    rows = ours.rows(np.zeros((3, 3)), (1, 99))
    assert rows.tolist() == [[-math.inf, 0.0, -math.inf]] * 2 + [[0.0, 0.0, 0.0]]


def test_whose_fault_a_row_without_a_law_is() -> None:
    ours = Processors(SamplingParameters(seed=0, bad_words=((0,), (1,))), (), vocab_size=2, matcher=None)
    error = NotANumber("no law")
    for logits, expected in (
        ([0.0, 0.0], NothingAdmitted),
        ([math.nan, 0.0], NotANumber),
        ([-math.inf] * 2, NotANumber),
    ):
        rows = np.array([logits])
        assert type(ours.cause_of(error, rows, ours.rows(rows, ()))) is expected
