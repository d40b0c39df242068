"""Calls of tools in answers of each form: what is a call, what is text, and that the pieces do not matter."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandem_runtime.domain.tool_calls import Argued, Called, CallReader, Event, Said, ToolFormat

HERMES, LLAMA, MISTRAL = ToolFormat
NAMES = frozenset({"look", "add"})
LOOK = '{"name": "look", "arguments": {"at": "a } \\" {"}}'
LOOKED: list[Event] = [Called(0, "look"), Argued(0, '{"at": "a } \\" {"}')]


def merged(events: list[Event]) -> list[Event]:
    """What is told, whatever the pieces."""
    told: list[Event] = []
    for event in events:
        last = told[-1] if told else None
        match last, event:
            case Said(before), Said(text):
                told[-1] = Said(before + text)
            case Argued(call, before), Argued(same, text) if call == same:
                told[-1] = Argued(call, before + text)
            case _:
                told.append(event)
    return told


def read(format: ToolFormat, pieces: list[str], *, inside: bool = False, most: int | None = None) -> list[Event]:
    reader = CallReader(format, NAMES, inside=inside, most=most)
    return merged([event for piece in pieces for event in reader.feed(piece)] + reader.end())


ANSWERS: list[tuple[ToolFormat, str, list[Event]]] = [
    (HERMES, f"<tool_call>\n{LOOK}\n</tool_call>", LOOKED),
    (HERMES, f"I look.\n\n<tool_call>{LOOK}</tool_call>\n", [Said("I look."), *LOOKED]),
    (
        HERMES,
        f'<tool_call>\n{LOOK}\n</tool_call>\n<tool_call>\n{{"arguments": {{}}, "name": "add"}}\n</tool_call>',
        [*LOOKED, Called(1, "add"), Argued(1, "{}")],
    ),
    (HERMES, f"<tool_call>\n{LOOK}\n</tool_call>\nDone. ", [*LOOKED, Said("Done. ")]),
    (HERMES, f"<tool_call>\n{LOOK}", LOOKED),
    (HERMES, '<tool_call>{"name": "look", "arguments": {"at": [1', [Called(0, "look"), Argued(0, '{"at": [1')]),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', [Called(0, "add"), Argued(0, "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": null}</tool_call>', [Called(0, "add"), Argued(0, "{}")]),
    (HERMES, "1 < 2 <tool", [Said("1 < 2 <tool")]),
    (HERMES, " no call \n", [Said(" no call \n")]),
    (HERMES, LOOK, [Said(LOOK)]),
    (HERMES, "<tool_call> none </tool_call>", [Said("<tool_call> none </tool_call>")]),
    (HERMES, "<tool_call></tool_call>", [Said("<tool_call></tool_call>")]),
    (
        HERMES,
        '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>',
        [Said('<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>')],
    ),
    (
        HERMES,
        '<tool_call>{"name": "add", "arguments": "x"}</tool_call>',
        [Said('<tool_call>{"name": "add", "arguments": "x"}</tool_call>')],
    ),
    (
        HERMES,
        f'<tool_call>{{"a": 1}}</tool_call><tool_call>{LOOK}</tool_call>',
        [Said('<tool_call>{"a": 1}</tool_call>'), *LOOKED],
    ),
    (
        HERMES,
        '<tool_call>{"name": "add", "arguments": {"a": 1}, "arguments": {"b": 22}, "more": 1}</tool_call>',
        [Called(0, "add"), Argued(0, '{"a": 1}')],
    ),
    (LLAMA, '{"parameters": null, "name": "add", "arguments": {"a": 1}}', [Called(0, "add"), Argued(0, '{"a": 1}')]),
    (LLAMA, '{"name": "look", "parameters": {"at": "x"}}', [Called(0, "look"), Argued(0, '{"at": "x"}')]),
    (LLAMA, '\n{"type": "function", "name": "add", "parameters": {}}', [Called(0, "add"), Argued(0, "{}")]),
    (
        LLAMA,
        '{"name": "add", "parameters": {}}; {"name": "look", "parameters": {"at": 1}}',
        [Called(0, "add"), Argued(0, "{}"), Called(1, "look"), Argued(1, '{"at": 1}')],
    ),
    (LLAMA, '{"answer": 42}', [Said('{"answer": 42}')]),
    (LLAMA, f"Well: {LOOK}", [Said(f"Well: {LOOK}")]),
    (LLAMA, "  ", [Said("  ")]),
    (MISTRAL, f"[TOOL_CALLS] [{LOOK}]", LOOKED),
    (
        MISTRAL,
        f'[TOOL_CALLS][{LOOK}, {{"name": "add", "arguments": {{"a": 1.5}}}}]',
        [*LOOKED, Called(1, "add"), Argued(1, '{"a": 1.5}')],
    ),
    (MISTRAL, "A list: [1, 2] [TOOL", [Said("A list: [1, 2] [TOOL")]),
]


@pytest.mark.parametrize(("format", "text", "events"), ANSWERS)
def test_what_a_model_writes_is_calls_and_text(format: ToolFormat, text: str, events: list[Event]) -> None:
    assert read(format, [text]) == events
    assert read(format, list(text)) == events


PARTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<tool",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    '"',
    "\\",
    ":",
    " ",
    "\n",
]
WORDS = ['{"name": "look"', '"name"', '"look"', '"fly"', '"arguments"', '"parameters"', "null", "7", "word", LOOK]
KEYS = ["name", "name", "arguments", "parameters", "id", "type", "more"]
VALUES = ['"look"', '"add"', '"fly"', "null", "7", '{"at": "é } <tool_call>"}', "{}", "[1]"]
PAIRS = st.builds('"{}": {}'.format, st.sampled_from(KEYS), st.sampled_from(VALUES))
OBJECTS = st.lists(PAIRS, max_size=4).map(lambda pairs: f"{{{', '.join(pairs)}}}")
TEXTS = st.lists(st.sampled_from(PARTS + WORDS) | OBJECTS, max_size=14).map("".join)


@given(
    format=st.sampled_from(ToolFormat),
    text=TEXTS,
    inside=st.booleans(),
    most=st.sampled_from([None, 1]),
    cuts=st.lists(st.integers(0, 80)),
)
@example(format=HERMES, text=f"<tool_call>{LOOK}</tool_call> x", inside=False, most=None, cuts=[3, 12, 20, 58])
@example(format=LLAMA, text='{"name": "add", "arguments": {}, "more": 1}', inside=False, most=None, cuts=[33])
@example(
    format=LLAMA,
    text='{"arguments": {"a": 1}, "name": "add", "parameters": {"b": 22}}',
    inside=False,
    most=None,
    cuts=[40],
)
@example(format=MISTRAL, text='[TOOL_CALLS]{"name": "add"}', inside=True, most=None, cuts=[1, 2])
def test_the_pieces_in_which_an_answer_comes_do_not_matter(
    format: ToolFormat, text: str, inside: bool, most: int | None, cuts: list[int]
) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert read(format, pieces, inside=inside, most=most) == read(format, [text], inside=inside, most=most)


@given(format=st.sampled_from(ToolFormat), text=TEXTS)
def test_without_a_call_all_is_text(format: ToolFormat, text: str) -> None:
    events = read(format, [text])
    if not any(isinstance(event, Called) for event in events):
        assert "".join(event.text for event in events if isinstance(event, Said)) == text


@given(format=st.sampled_from(ToolFormat), text=TEXTS)
def test_every_piece_of_arguments_is_of_a_call_that_began(format: ToolFormat, text: str) -> None:
    begun = -1
    for event in read(format, [text]):
        match event:
            case Called(call, name):
                assert (call, name in NAMES) == (begun + 1, True)
                begun = call
            case Argued(call, _):
                assert call == begun


def test_arguments_are_told_while_they_are_written() -> None:
    reader = CallReader(HERMES, NAMES)
    assert reader.feed('<tool_call>\n{"name": "look", "argum') == []
    assert reader.feed('ents": {"at": "he') == [Called(0, "look"), Argued(0, '{"at": "he')]
    assert reader.feed('re"}') == [Argued(0, 're"}')]


def test_words_are_told_at_once_where_they_open_no_call() -> None:
    assert CallReader(HERMES, NAMES).feed("so 1 <") == [Said("so 1")]
    assert CallReader(LLAMA, NAMES).feed("so") == [Said("so")]
    assert CallReader(LLAMA, NAMES).feed('{"answer": ') == [Said('{"answer": ')]


def test_a_call_that_was_forced_needs_no_opening() -> None:
    assert read(HERMES, [LOOK], inside=True) == LOOKED
    assert read(MISTRAL, [LOOK], inside=True) == LOOKED


def test_calls_beyond_the_most_are_not_told() -> None:
    text = f"<tool_call>{LOOK}</tool_call><tool_call>{LOOK}</tool_call>"
    assert read(HERMES, [text], most=1) == LOOKED


@pytest.mark.parametrize(
    ("text", "most", "is_cut"),
    [
        (f"<tool_call>{LOOK}</tool_call>", None, False),
        (f"<tool_call>{LOOK}", None, False),
        (f"<tool_call>{LOOK[:-1]}", None, True),
        (f"<tool_call>{LOOK}</tool_call><tool_call>{LOOK[:-9]}", None, True),
        (f"<tool_call>{LOOK}</tool_call><tool_call>{LOOK[:-9]}", 1, False),
        ('<tool_call>{"name": "look", "arg', None, False),
        ("no call", None, False),
    ],
)
def test_an_answer_that_ends_within_a_call_that_was_told_is_cut(text: str, most: int | None, is_cut: bool) -> None:
    reader = CallReader(HERMES, NAMES, most=most)
    reader.feed(text)
    reader.end()
    assert reader.is_cut is is_cut
