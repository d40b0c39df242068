"""Where outputs end and which text is shown by then, token by token."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_runtime.domain.stopping import Decode, Detokenizer, Endings, Reader, StopScanner
from tandem_runtime.domain.tokens import FinishReason, TokenId

END = 99


def decoding(pieces: Mapping[TokenId, bytes | str]) -> Decode:
    """Byte-level decoding: an incomplete character shows as U+FFFD."""

    def decode(ids: Sequence[TokenId]) -> str:
        parts = [pieces[token] for token in ids]
        return b"".join(part.encode() if isinstance(part, str) else part for part in parts).decode(errors="replace")

    return decode


def read(
    pieces: Sequence[bytes | str], *, stop: Sequence[str] = (), max_tokens: int = 100, end_after: bool = False
) -> tuple[list[str], FinishReason | None, int]:
    """Texts shown per token, the reason, and how many tokens were read."""
    table = dict(enumerate(pieces))
    endings = Endings(max_tokens, frozenset({END}), tuple(stop))
    reader = Reader(endings, decoding(table), prompt=())
    shown: list[str] = []
    for token in [*table, *([END] if end_after else [])]:
        reading = reader.read(token)
        shown.append(reading.text)
        if reading.ended is not None:
            return shown, reading.ended, len(shown)
    return shown, None, len(shown)


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("pieces", "stop", "max_tokens", "expected"),
    [
        # C07 (SGLang #31599): the earliest ending in token order; at the same token stop beats length.
        (["x", " y", "END", " p", " q"], ["END"], 5, (["x", " y", ""], STOP, 3)),
        (["x", " y", " p", " q", " r", "END"], ["END"], 5, (["x", " y", " p", " q", " r"], LENGTH, 5)),
        (["x", " y", " p", " q", "END"], ["END"], 5, (["x", " y", " p", " q", ""], STOP, 5)),
        # C13 (SwiftLM #126): a stop string over token borders, and a false alarm.
        (["The quick br", "own", " fox jumps"], ["own fox"], 100, (["The quick br", "", ""], STOP, 3)),
        (["The quick br", "own", "ish"], ["own fox"], 100, (["The quick br", "", "ownish"], None, 3)),
        (["The quick br", "own"], ["own fox"], 2, (["The quick br", "own"], LENGTH, 2)),
        # No more is withheld than could still become a stop.
        (["aab", "aab", "c"], ["aabaac"], 100, (["", "aab", "aabc"], None, 3)),
        (["a", "a", "a", "b"], ["aab"], 100, (["", "", "a", ""], STOP, 4)),
        # Two stops: the first to be complete wins, the longer one if both end on the same character.
        (["xabcd"], ["abcd", "bc"], 100, (["xa"], STOP, 1)),
        (["xabcd"], ["bcd", "abcd"], 100, (["x"], STOP, 1)),
        (["one", " two"], [" "], 100, (["one", ""], STOP, 2)),
        (["a", "b"], [], 1, (["a"], LENGTH, 1)),
    ],
)
def test_the_earliest_ending_in_token_order_wins(
    pieces: list[str], stop: list[str], max_tokens: int, expected: tuple[list[str], FinishReason | None, int]
) -> None:
    assert read(pieces, stop=stop, max_tokens=max_tokens) == expected


def test_an_end_token_counts_shows_nothing_and_releases_what_was_held() -> None:
    assert read(["a", "EN"], stop=["END"], end_after=True) == (["a", "", "EN"], STOP, 3)


def test_at_the_last_token_an_end_token_beats_length() -> None:
    assert read(["a", "b"], max_tokens=3, end_after=True) == (["a", "b", ""], STOP, 3)


SMILE = "\N{GRINNING FACE}".encode()


@pytest.mark.parametrize(
    ("pieces", "max_tokens", "expected"),
    [
        # C12 (ferrox #124): a character split over tokens arrives whole.
        ([SMILE[:2], SMILE[2:]], 9, (["", "\N{GRINNING FACE}"], None, 2)),
        ([SMILE[:1], SMILE[1:2], SMILE[2:3], SMILE[3:]], 9, (["", "", "", "\N{GRINNING FACE}"], None, 4)),
        ([b"a" + SMILE[:2], SMILE[2:] + b"b"], 9, (["a", "\N{GRINNING FACE}b"], None, 2)),
        ([SMILE[:2], SMILE[2:]], 1, (["\ufffd"], LENGTH, 1)),
        ([b"a\xff", b"b", b"c"], 9, (["a", "\ufffdb", "c"], None, 3)),
        ([b"\xff", b"\xff", b"\xff", b"\xff", b"x"], 9, (["", "", "", "\ufffd", "\ufffd\ufffd\ufffdx"], None, 5)),
    ],
)
def test_no_half_character_is_ever_shown(
    pieces: list[bytes], max_tokens: int, expected: tuple[list[str], FinishReason | None, int]
) -> None:
    assert read(pieces, max_tokens=max_tokens) == expected


def test_a_stop_string_that_only_the_last_half_character_completes_is_still_a_stop() -> None:
    assert read(["a", SMILE[:2]], stop=["\ufffd"], max_tokens=2) == (["a", ""], STOP, 2)


def test_the_text_after_a_prompt_keeps_the_space_that_a_tokenizer_drops_at_the_start() -> None:
    def decode(ids: Sequence[TokenId]) -> str:
        return "".join(" word" for _ in ids).removeprefix(" ")

    characters = Detokenizer(decode, context=(1, 2))
    assert [characters.feed(3), characters.feed(4)] == [" word", " word"]
    assert Detokenizer(decode, context=()).feed(3) == "word"


@given(st.text(max_size=30), st.data())
def test_pieces_add_up_to_the_text_however_its_bytes_are_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[low:high] for low, high in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    characters = Detokenizer(decoding(dict(enumerate(pieces))), context=())
    shown = [characters.feed(token) for token in range(len(pieces))]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)
    assert "".join(shown) + characters.rest() == text


@given(st.lists(st.binary(max_size=3), max_size=40))
def test_bytes_that_are_no_text_do_not_stall_what_follows(pieces: list[bytes]) -> None:
    table = dict(enumerate([*pieces, b"tail "]))
    characters = Detokenizer(decoding(table), context=())
    shown = [characters.feed(token) for token in table]
    assert shown[-1].endswith("tail ")
    assert characters.rest() == ""


letters = st.text(alphabet="ab", min_size=1, max_size=4)


@given(text=st.text(alphabet="abc", max_size=20), stop=st.lists(letters, max_size=3), data=st.data())
def test_what_a_stop_leaves_does_not_depend_on_how_the_text_was_cut(
    text: str, stop: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def shown_by(parts: Sequence[str]) -> tuple[str, bool]:
        scanner, shown = StopScanner(stop), ""
        for part in parts:
            piece, stopped = scanner.feed(part)
            shown += piece
            if stopped:
                return shown, True
        return shown + scanner.rest(), False

    assert shown_by(pieces) == shown_by(list(text)) == shown_by([text])
