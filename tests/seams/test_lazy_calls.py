"""Grammars of calls over the real library: words are free, and whatever opens a call is a call that fits its schema."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import pytest
from tests.seams.tokenizer_folders import byte_level_folder
from tokenizers import Tokenizer

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import Grammar, GrammarKind, TokenId
from tandem_runtime.domain.tool_calls import FORMS, Argued, Called, CallReader, Said, ToolFormat
from tandem_runtime.grammar import TokenMatcher, folder_grammars, refuse_bad_grammar, table_grammars
from tandem_runtime.tokenizer import FolderTokenizer

END = 0
LETTERS = [b"\n", *(bytes([code]) for code in range(32, 127))]
ACROSS = [
    b"<tool",
    b"_call>",
    b"<tool_call>",
    b'l>{"',
    b'>\n{"name"',
    b"</tool_call>",
    b"}}</tool",
    b"}}\n<",
    b"tool_call>ok",
    b"[TOOL_CALLS]",
    b'S] [{"',
    b"}}]",
    b'}}, {"',
    b'}};{"',
    b'{"name": "',
    b" <",
    b'": {',
    b"4}}",
    b"\xc3",
    b"\xa4",
    "ä".encode(),
    b"\xf0\x9f\x98",
    b"a<tool_call> {",
]
"""Tokens that begin within one part of an answer and end within another."""
TABLE = [b"", *LETTERS, *ACROSS]
GRAMMARS = table_grammars(TABLE, end_tokens=frozenset({END}))
PLACES = {piece: token for token, piece in enumerate(TABLE)}
ADD = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/Digit"}, "b": {"enum": ["x", "yz"]}},
    "required": ["a"],
    "additionalProperties": False,
}
DEFINITIONS = {"Digit": {"type": "integer", "minimum": 0, "maximum": 9}}


def calls_of(format: ToolFormat, **more: object) -> Grammar:
    """Of `add`, which is held to a schema, and of `free`, which takes any object."""
    name = FORMS[format].arguments
    call = {
        "$defs": DEFINITIONS,
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": tool}, name: schema},
                "required": ["name", name],
                "additionalProperties": False,
            }
            for tool, schema in (("add", ADD), ("free", {"type": "object"}))
        ],
    }
    return Grammar(GrammarKind.CALLS, json.dumps({"format": format, "call": call, **more}))


def letters_of(text: str) -> list[TokenId]:
    return [PLACES[bytes([code])] for code in text.encode()]


def refused_at(format: ToolFormat, text: str, **more: object) -> int | str | None:
    """The first letter that is not admitted; "end" if all are and the answer may not end there; else None."""
    matcher = GRAMMARS.compile(calls_of(format, **more))
    for at, token in enumerate(letters_of(text)):
        if not matcher.admitted()[token]:
            return at
        matcher.advance(token)
    return None if matcher.admitted()[END] else "end"


ONE = '{"name": "add", "arguments": {"a": 4}}'
OTHER = '{"name":"free","arguments":{"what":[1,{}]}}'
LLAMA_ONE = '{"name": "add", "parameters": {"a": 4, "b": "yz"}}'
HERMES, LLAMA, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL
WHOLE = [
    (HERMES, ""),
    (HERMES, '{"name": "add", "arguments": 7} is no call, nor is <tool_ call> or [TOOL_CALLS].'),
    (HERMES, "It ends with <tool_call"),
    (HERMES, f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>"),
    (HERMES, f"<tool_call>{OTHER}</tool_call>, and\n<<tool_call>{ONE}</tool_call> is all."),
    (LLAMA, ""),
    (LLAMA, "No { call } here <tool_call>."),
    (LLAMA, " \n"),
    (LLAMA, f" {LLAMA_ONE};\n{LLAMA_ONE} "),
    (MISTRAL, "No [{ call }] here <tool_call>{."),
    (MISTRAL, f"Well: [TOOL_CALLS] [{ONE}, {OTHER}]"),
]


@pytest.mark.parametrize(("format", "text"), WHOLE)
def test_words_are_free_and_calls_that_fit_may_stand_among_them(format: ToolFormat, text: str) -> None:
    assert refused_at(format, text) is None


REFUSED: list[tuple[ToolFormat, str, str, str]] = [
    (HERMES, "<tool_call>", "x", "no object"),
    (HERMES, '<tool_call>{"name": "', "sub", "no tool"),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": ', '"4"', "no number"),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 4', "2", "too large"),
    (HERMES, '<tool_call>{"name": "add", "arguments": {', "}", "lacks what is required"),
    (HERMES, '<tool_call>{"', "arguments", "arguments before the name"),
    (HERMES, f"Twice <tool_call>{ONE}</tool_call><tool_call>", "!", "the second"),
    (LLAMA, '\n; {"', 'x"', "another object"),
    (LLAMA, LLAMA_ONE, " and words", "words behind"),
    (MISTRAL, "[TOOL_CALLS]", '{"name"', "no list"),
    (MISTRAL, "[TOOL_CALLS] [", "]", "an empty list"),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}]", " words", "words behind"),
]


@pytest.mark.parametrize(("format", "begins", "wrong", "why"), REFUSED)
def test_what_opens_a_call_goes_on_as_one(format: ToolFormat, begins: str, wrong: str, why: str) -> None:
    at = refused_at(format, begins + wrong)
    assert isinstance(at, int), why
    assert len(begins) <= at < len(begins + wrong), why


SINGLE = [
    (HERMES, f"Let me see.\n<tool_call>\n{ONE}\n</tool_call> \n", "<tool_call>"),
    (HERMES, f"<tool_call>{OTHER}</tool_call>", "words"),
    (LLAMA, f" {LLAMA_ONE};\n", "{"),
    (MISTRAL, f"Well: [TOOL_CALLS] [{ONE} ] ", "[TOOL_CALLS]"),
]


@pytest.mark.parametrize(("format", "text", "more"), SINGLE)
def test_where_one_call_may_be_made_the_answer_is_over_behind_it(format: ToolFormat, text: str, more: str) -> None:
    assert refused_at(format, text, parallel=False) is None
    assert refused_at(format, text + more, parallel=False) == len(text)


def test_where_one_call_may_be_made_a_list_holds_no_second_one() -> None:
    begins = f"[TOOL_CALLS] [{ONE}"
    assert refused_at(MISTRAL, f"{begins}, {OTHER}]", parallel=False) == len(begins)
    assert refused_at(MISTRAL, f"{begins}, {OTHER}]", parallel=True) is None


@pytest.mark.parametrize(("format", "text"), [each for each in WHOLE if "free" not in each[1] and ";" not in each[1]])
def test_where_one_call_may_be_made_words_are_as_free_as_ever(format: ToolFormat, text: str) -> None:
    assert refused_at(format, text, parallel=False) is None


@pytest.mark.parametrize("text", ["<tool_call>", "<tool_call>{", f"<tool_call>{ONE}", f"<tool_call>{ONE}</tool_"])
def test_an_answer_does_not_end_within_a_call(text: str) -> None:
    assert refused_at(HERMES, text) == "end"


SCRIPTS = {
    HERMES: [
        "Hm. <tool_call>\n",
        '{"name": "add", "arguments": {"a": 3',
        '{"name": "free", "arguments": {',
        "}}\n</tool_call>",
    ],
    LLAMA: ['{"name": "add", "parameters": {"a": 3', '{"name": "free", "parameters": {"', '"', "}};", "words"],
    MISTRAL: [
        "Hm. [TOOL_CALLS] [",
        '{"name": "add", "arguments": {"a": 3',
        '{"name": "free", "arguments": {',
        "}}, ",
        "}}]",
    ],
}
"""What a walk is likely to say: chance alone hardly ever opens a call."""


def walked(matcher: TokenMatcher, format: ToolFormat, chance: Random, *, most: int = 160) -> list[TokenId]:
    """Tokens that were admitted, one after the other; an END ends them."""
    said: list[TokenId] = []
    wish = b""
    while len(said) < most and said[-1:] != [END]:
        mask = matcher.admitted()
        wish = wish or chance.choice(SCRIPTS[format]).encode()
        ways = [token for token in np.flatnonzero(mask) if TABLE[token] and wish.startswith(TABLE[token])]
        ends = mask[END] and len(said) > 9 and chance.random() < 0.1
        token = END if ends else int(chance.choice(ways or [*np.flatnonzero(mask)]))
        wish = wish[len(TABLE[token]) :] if ways else b""
        matcher.advance(token)
        said.append(token)
    return said


def text_of(said: Sequence[TokenId]) -> str:
    return b"".join(TABLE[token] for token in said).decode(errors="replace")


@pytest.mark.parametrize("format", ToolFormat)
def test_whatever_is_said_a_reader_finds_calls_that_fit_and_words(format: ToolFormat) -> None:
    """The reader and the grammar know the forms apart from each other, so each is a witness of the other."""
    ended = called = 0
    for seed in range(120):
        said = walked(GRAMMARS.compile(calls_of(format)), format, Random(seed))
        reader = CallReader(format, {"add", "free"})
        events = [*reader.feed(text_of(said)), *reader.end()]
        names = {event.call: event.name for event in events if isinstance(event, Called)}
        arguments = dict.fromkeys(names, "")
        for event in events:
            if isinstance(event, Argued):
                arguments[event.call] += event.text
        words = "".join(event.text for event in events if isinstance(event, Said))
        is_over = said[-1] == END
        whole = [call for call in names if is_over or call + 1 in names]
        for call in whole:
            schema = {**ADD, "$defs": DEFINITIONS} if names[call] == "add" else {"type": "object"}
            jsonschema.validate(json.loads(arguments[call]), schema)
        if is_over and FORMS[format].opening:
            assert FORMS[format].opening not in words
        ended, called = ended + is_over, called + len(whole)
    assert ended > 20
    assert called > 20


@pytest.mark.parametrize("format", ToolFormat)
def test_a_token_is_admitted_exactly_where_its_letters_are(format: ToolFormat) -> None:
    """Also one that ends the words, opens the call and begins its object, all at once."""
    grammar = calls_of(format)
    for seed in range(12):
        chance = Random(1000 + seed)
        said = walked(GRAMMARS.compile(grammar), format, chance, most=60)
        said = said[: chance.randrange(1, len(said) + 1)]
        matcher = followed(grammar, said)
        mask = matcher.admitted()
        for token in range(1, len(TABLE)):
            count = 0
            for code in TABLE[token]:
                if bytes([code]) not in PLACES or not matcher.admitted()[PLACES[bytes([code])]]:
                    break
                matcher.advance(PLACES[bytes([code])])
                count += 1
            matcher.roll_back(count)
            if all(bytes([code]) in PLACES for code in TABLE[token]):
                assert mask[token] == (count == len(TABLE[token])), (text_of(said), TABLE[token])


def followed(grammar: Grammar, said: Sequence[TokenId]) -> TokenMatcher:
    matcher = GRAMMARS.compile(grammar)
    for token in said:
        matcher.advance(token)
    return matcher


@pytest.mark.parametrize("format", ToolFormat)
def test_taking_tokens_back_over_the_opening_of_a_call_restores_what_was_admitted(format: ToolFormat) -> None:
    """A proposal opens a call and is rejected, wholly or in part; or it leaves the grammar."""
    grammar = calls_of(format)
    for seed in range(6):
        chance = Random(2000 + seed)
        said = walked(GRAMMARS.compile(grammar), format, chance, most=50)
        matcher = GRAMMARS.compile(grammar)
        straight = GRAMMARS.compile(grammar)
        for token in said:
            guesses = [chance.choice([token, chance.randrange(len(TABLE))]) for _ in range(6)]
            for guess in guesses:
                matcher.advance(guess)
                matcher.admitted()
            matcher.roll_back(len(guesses))
            assert (matcher.admitted() == straight.admitted()).all()
            matcher.advance(token)
            straight.advance(token)


def special_folder(folder: Path, *, special: Sequence[str]) -> FolderTokenizer:
    """A tokenizer that has these as special tokens, which are no text to it."""
    byte_level_folder(folder)
    model = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model.add_special_tokens(list(special))
    model.save(str(folder / "tokenizer.json"))
    return FolderTokenizer(folder)


Ids = Callable[[str], tuple[TokenId, ...]]


@pytest.fixture
def marked(tmp_path: Path) -> tuple[TokenMatcher, Ids]:
    tokenizer = special_folder(tmp_path, special=["<tool_call>", "</tool_call>", "[THINK]"])
    grammars = folder_grammars(tmp_path, end_tokens=tokenizer.end_tokens, vocab_size=tokenizer.size + 3)
    return grammars.compile(calls_of(HERMES)), tokenizer.continuation


def admits(matcher: TokenMatcher, ids: Sequence[TokenId]) -> bool:
    """All of them, one after the other; those that are admitted stay said."""
    for token in ids:
        if not matcher.admitted()[token]:
            return False
        matcher.advance(token)
    return True


def test_a_special_token_opens_a_call_and_so_do_its_letters(marked: tuple[TokenMatcher, Ids]) -> None:
    """Who reads the answer sees the same text."""
    matcher, ids = marked
    (opening,), (closing,) = ids("<tool_call>"), ids("</tool_call>")
    assert admits(matcher, [*ids("Hm."), opening])
    assert not matcher.admitted()[ids("x")[0]]
    assert admits(matcher, [*ids(ONE), closing, *ids("and <"), *ids("tool_call"), *ids(">")])
    assert not matcher.admitted()[ids("x")[0]]
    assert admits(matcher, [*ids(ONE), *ids("<"), *ids("/tool_call"), *ids(">"), *ids("end")])


def test_where_one_call_may_be_made_special_tokens_open_and_close_it_too(tmp_path: Path) -> None:
    tokenizer = special_folder(tmp_path, special=["<tool_call>", "</tool_call>", "[THINK]"])
    grammars = folder_grammars(tmp_path, end_tokens=tokenizer.end_tokens, vocab_size=tokenizer.size + 3)
    matcher, ids = grammars.compile(calls_of(HERMES, parallel=False)), tokenizer.continuation
    (opening,), (closing,), (think,) = ids("<tool_call>"), ids("</tool_call>"), ids("[THINK]")
    assert admits(matcher, [think, *ids("Hm."), opening, *ids(ONE), closing])
    mask = matcher.admitted()
    assert [bool(mask[token]) for token in (opening, think, ids("x")[0], *tokenizer.end_tokens)] == [False] * 3 + [True]


def test_other_special_tokens_may_stand_in_words_but_not_within_what_opens_a_call(
    marked: tuple[TokenMatcher, Ids],
) -> None:
    matcher, ids = marked
    (opening,), (think,) = ids("<tool_call>"), ids("[THINK]")
    assert admits(matcher, [think, *ids("Hm. "), think, think, *ids("a < b <tool")])
    assert not matcher.admitted()[think]
    assert admits(matcher, [*ids(" "), think, opening])
    assert not matcher.admitted()[think]


JUNK = [
    '{"format": "Hermes", "call": {}, "parallel": 1}',
    "",
    "[]",
    "{",
    '{"format": "Hermes"}',
    '{"format": "Klingon", "call": {}}',
    '{"format": "Hermes", "call": []}',
    '{"format": [], "call": {}}',
    '{"format": "Hermes", "call": {"type": "colour"}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", JUNK, ids=range(len(JUNK)))
def test_what_is_no_grammar_of_calls_is_refused(text: str) -> None:
    grammar = Grammar(GrammarKind.CALLS, text)
    with pytest.raises(BadRequest):
        refuse_bad_grammar(grammar, parameter="tools[0].function.strict")
    with pytest.raises(BadRequest) as caught:
        GRAMMARS.compile(grammar)
    assert caught.value.parameter == "tools"
