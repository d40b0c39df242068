"""The automaton against a naive search of the text, and what the guesses of both drafters promise."""

import tracemalloc
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.suffix import (
    COUNTED,
    LEAST_SURVIVAL,
    Calibration,
    EarlierOutputs,
    NGramText,
    Owner,
    PredictedText,
    Step,
    SuffixAutomaton,
    SuffixText,
    prediction_of,
)
from tandem_runtime.domain.tokens import TokenId

LETTERS = st.integers(0, 3)
TEXTS = st.lists(LETTERS, max_size=COUNTED)
"""Short enough for every suffix to be told what followed it."""


def automaton_of(*texts: Sequence[TokenId]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.separate()
        for token in text:
            automaton.append(token)
    return automaton


def followers(texts: Sequence[Sequence[TokenId]], match: Sequence[TokenId]) -> list[TokenId]:
    """What followed each occurrence of `match`, in order."""
    n = len(match)
    return [text[at + n] for text in texts for at in range(len(text) - n) if list(text[at : at + n]) == list(match)]


def naive_step(texts: Sequence[Sequence[TokenId]], match: Sequence[TokenId]) -> Step | None:
    """The likeliest follower of the longest end of `match` that anything followed; the latest of equals."""
    for start in range(len(match)):
        found = followers(texts, match[start:])
        if found:
            count = max(map(found.count, found))
            latest = [each for each in found if found.count(each) == count][-1]
            return Step(latest, count / len(found), len(match) - start)
    return None


def longest_match(texts: Sequence[Sequence[TokenId]], read: Sequence[TokenId]) -> list[TokenId]:
    """The longest end of `read` that stands in one of `texts`."""
    for start in range(len(read) + 1):
        end = list(read[start:])
        if any(end == list(text[at : at + len(end)]) for text in texts for at in range(len(text) - len(end) + 1)):
            return end
    return []


@given(text=TEXTS)
def test_the_next_step_is_that_of_a_naive_search_behind_every_token(text: list[TokenId]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.append(token)
        assert next(automaton.ahead(automaton.place), None) == naive_step([text[:end]], text[:end])


@given(texts=st.lists(st.lists(LETTERS, max_size=7), min_size=1, max_size=4), read=TEXTS)
def test_a_place_follows_the_longest_match_in_other_texts(texts: list[list[TokenId]], read: list[TokenId]) -> None:
    automaton, place = automaton_of(*texts), SuffixAutomaton().place
    for end, token in enumerate(read, start=1):
        place = automaton.follow(place, token)
        match = longest_match(texts, read[:end])
        assert place.length == len(match)
        assert next(automaton.ahead(place), None) == naive_step(texts, match)


@given(before=TEXTS, later=TEXTS, read=TEXTS)
def test_a_place_stays_true_while_the_automaton_grows(
    before: list[TokenId], later: list[TokenId], read: list[TokenId]
) -> None:
    automaton, place = automaton_of(before), SuffixAutomaton().place
    for token in read:
        place = automaton.follow(place, token)
    automaton.separate()
    for token in later:
        automaton.append(token)
    match = longest_match([before], read)
    after = automaton.follow(place, 1)
    assert after.length == len(longest_match([before, later], [*match, 1]))


@given(text=st.lists(LETTERS, max_size=300))
def test_an_automaton_has_two_states_and_three_edges_a_token_at_most(text: list[TokenId]) -> None:
    automaton = automaton_of(text)
    assert automaton.size_bytes <= (len(text) + 1) * (2 * 28 + 200 + 3 * 80) + 28


@given(text=TEXTS, k=st.integers(1, 12))
def test_the_n_gram_guess_is_that_of_a_naive_search(text: list[TokenId], k: int) -> None:
    reader = NGramText()
    reader.read(text)
    expected: tuple[TokenId, ...] = ()
    for n in (3, 2):
        starts = [at + n for at in range(len(text) - n) if text[at : at + n] == text[-n:]]
        if starts:
            tail = text[starts[-1] :]
            expected = tuple(tail[at % len(tail)] for at in range(k))
            break
    assert reader.guess(k).ids == expected


@given(st.lists(st.sampled_from([0, 1, 256, 257, 65536, 65793]), max_size=60))
def test_ids_that_look_alike_when_packed_are_told_apart(text: list[TokenId]) -> None:
    reader = NGramText()
    reader.read(text)
    if reader.guess(1).ids:
        assert any(text[at : at + 2] == text[-2:] for at in range(len(text) - 2))


@pytest.mark.parametrize("reader", [NGramText(), SuffixText()], ids=["n-gram", "suffix"])
def test_a_period_goes_on_for_as_long_as_one_asks(reader: NGramText | SuffixText) -> None:
    reader.hear((7, 8, 9) * 5)
    assert reader.guess(7).ids == (7, 8, 9, 7, 8, 9, 7)


@pytest.mark.parametrize("reader", [NGramText(), SuffixText()], ids=["n-gram", "suffix"])
def test_nothing_is_guessed_where_nothing_came_back(reader: NGramText | SuffixText) -> None:
    assert reader.guess(4).ids == ()
    reader.read(tuple(range(20)))
    assert reader.guess(4).ids == ()


def test_a_longer_match_is_followed_further() -> None:
    lengths = []
    for match in (1, 2, 8):
        reader = SuffixText()
        reader.read((*range(100, 120), *range(50), *range(200, 220), *range(20 - match, 20)))
        lengths.append(len(reader.guess(30).ids))
    assert lengths == sorted(set(lengths))
    assert lengths[-1] > 8


def test_a_text_that_does_not_keep_to_its_past_is_guessed_less() -> None:
    reader = SuffixText()
    past = tuple(range(40))
    reader.read(past)
    hopeful = None
    for token in range(0, 40, 2):
        reader.hear((token, 77))
        reader.hear((token,))
        hopeful = hopeful or len(reader.guess(8).ids)
        reader.hear((78,))
    reader.read((21,))
    assert hopeful
    assert reader.guess(8).ids == ()


def test_chances_are_learnt_for_each_kind_of_match_apart() -> None:
    calibration = Calibration()
    short, long = Step(5, 1.0, 1), Step(5, 1.0, 20)
    for _ in range(30):
        calibration.learn(short, hit=False)
        calibration.learn(long, hit=True)
    assert calibration.chance(short) < LEAST_SURVIVAL < 0.95 < calibration.chance(long)


def test_an_earlier_output_is_guessed_from_where_this_one_meets_it() -> None:
    earlier = EarlierOutputs(100_000)
    earlier.add(Owner("a"), range(10, 40))
    mine, other = SuffixText(earlier.of(Owner("a"))), SuffixText(earlier.of(Owner("b")))
    for reader in (mine, other):
        reader.read((1, 2, 14, 15, 16))
    assert mine.guess(3).ids == (17, 18, 19)
    assert other.guess(3).ids == ()


def test_no_guess_runs_from_one_output_into_the_next() -> None:
    earlier = EarlierOutputs(100_000)
    earlier.add(Owner("a"), (1, 2, 3, 4, 5))
    earlier.add(Owner("a"), (6, 7, 8))
    reader = SuffixText(earlier.of(Owner("a")))
    reader.read((2, 3, 4))
    assert reader.guess(8).ids == (5,)


OWNERS = st.sampled_from([Owner("a"), Owner("b"), Owner("c", "sha256:x")])


@given(st.lists(st.tuples(OWNERS, st.lists(LETTERS, max_size=60)), max_size=40))
def test_earlier_outputs_keep_to_their_budget(outputs: list[tuple[Owner, list[TokenId]]]) -> None:
    earlier = EarlierOutputs(8_000)
    for owner, output in outputs:
        earlier.add(owner, output)
        assert earlier.size_bytes <= 8_000


def test_the_owner_who_came_least_lately_is_forgotten_first() -> None:
    earlier = EarlierOutputs(20_000)
    earlier.add(Owner("idle"), range(20))
    earlier.add(Owner("busy"), range(20))
    for number in range(20):
        assert len(earlier.of(Owner("busy"))) == 1
        earlier.add(Owner(str(number)), range(20))
    assert earlier.of(Owner("idle")) == ()


def test_a_tenant_that_is_forgotten_has_nothing_under_any_adapter_and_others_keep_theirs() -> None:
    earlier = EarlierOutputs(100_000)
    for owner in (Owner("a"), Owner("a", "sha256:x"), Owner("b"), Owner("b", "sha256:x")):
        earlier.add(owner, range(20))
    size = earlier.size_bytes
    earlier.forget("a")
    earlier.forget("nobody")
    assert (earlier.of(Owner("a")), earlier.of(Owner("a", "sha256:x"))) == ((), ())
    assert all(len(earlier.of(Owner("b", adapter))) == 1 for adapter in (None, "sha256:x"))
    assert earlier.size_bytes == size // 2


def test_of_one_owner_the_later_outputs_are_kept() -> None:
    earlier = EarlierOutputs(40_000)
    for number in range(100):
        earlier.add(Owner("a"), range(100 * number, 100 * number + 20))
    old, new = SuffixText(earlier.of(Owner("a"))), SuffixText(earlier.of(Owner("a")))
    old.read((101, 102, 103))
    new.read((9901, 9902, 9903))
    assert (old.guess(2).ids, new.guess(2).ids) == ((), (9904, 9905))


def test_a_step_ahead_is_only_looked_for_when_asked() -> None:
    automaton = automaton_of((1, 2, 1))
    assert [step.token for step in islice(automaton.ahead(automaton.place), 3)] == [2, 1, 2]


def test_the_text_that_was_right_so_far_is_followed() -> None:
    """Both know what follows, by matches alike; the earlier output is what the session goes on to repeat."""
    earlier = EarlierOutputs(1_000_000)
    theirs, mine = tuple(range(100, 160)), tuple(token for at in range(100, 160) for token in (at, 7))
    earlier.add(Owner("a"), theirs)
    reader = SuffixText(earlier.of(Owner("a")))
    reader.read(mine)
    doubtful = SuffixText(earlier.of(Owner("a")))
    doubtful.read(mine)
    reader.hear(theirs[:20])
    doubtful.hear(mine[:40])
    assert (reader.guess(2).ids, doubtful.guess(2).ids) == ((120, 121), (120, 7))


@pytest.mark.parametrize(
    "text",
    [
        [at * at % 997 for at in range(6000)],
        list(range(6000)),
        [at * 7919 % 10007 % 50 for at in range(6000)],
        [at % 7 for at in range(6000)],
    ],
    ids=["varied", "all different", "fifty letters", "a period"],
)
def test_the_memory_that_it_takes_is_about_what_it_says(text: list[TokenId]) -> None:
    tracemalloc.start()
    automaton = automaton_of(text)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.7 * taken < automaton.size_bytes < 1.6 * taken


def test_a_prediction_is_followed_from_its_beginning() -> None:
    reader = PredictedText(prediction_of(range(50, 90)))
    reader.read((1, 2, 3))
    first = reader.guess(4)
    assert first.ids == (50, 51, 52, 53)
    reader.hear(range(50, 60))
    later = reader.guess(4)
    assert later.ids == (60, 61, 62, 63)
    assert all(known > hoped for known, hoped in zip(later.survivals, first.survivals, strict=True))


def test_a_prediction_that_was_left_is_found_again() -> None:
    reader = PredictedText(prediction_of(range(50, 90)))
    reader.hear((50, 51, 7, 8, 9))
    assert reader.guess(4).ids == ()
    reader.hear((70, 71))
    assert reader.guess(2).ids == (72, 73)


def test_sessions_of_one_prediction_do_not_disturb_each_other() -> None:
    prediction = prediction_of(range(50, 90))
    one, other = PredictedText(prediction), PredictedText(prediction)
    one.hear((60, 61, 62))
    assert (one.guess(2).ids, other.guess(2).ids) == ((63, 64), (50, 51))


@given(predicted=TEXTS, output=TEXTS, k=st.integers(0, 12))
def test_a_guess_is_a_piece_of_the_prediction(predicted: list[TokenId], output: list[TokenId], k: int) -> None:
    reader = PredictedText(prediction_of(predicted))
    reader.hear(output)
    guess = reader.guess(k).ids
    assert len(guess) <= k
    assert any(predicted[at : at + len(guess)] == list(guess) for at in range(len(predicted) + 1))
    if output == predicted[: len(output)] and len(output) < len(predicted) and k:
        assert guess[:1] == (predicted[len(output)],)
