"""Grammars over the real library: what is admitted, roll-back, what is kept, and what is refused by its path."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits
from tests.seams.tokenizer_folders import byte_level_folder, letters_folder

from tandem_runtime.domain.errors import BadRequest, NotSupported
from tandem_runtime.domain.tokens import Grammar, GrammarKind, TokenId
from tandem_runtime.grammar import (
    LONGEST_GRAMMAR,
    MOST_COMPILED,
    MOST_LINES,
    TokenMatcher,
    folder_grammars,
    refuse_bad_grammar,
    table_grammars,
)
from tandem_runtime.tokenizer import FolderTokenizer

END = 0
TABLE = [b"", *(bytes([code]) for code in range(32, 127))]
GRAMMARS = table_grammars(TABLE, end_tokens=frozenset({END}))


def ids_of(text: str) -> list[TokenId]:
    return [TABLE.index(letter.encode()) for letter in text]


def regex(text: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, text)


def schema(**fields: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(fields))


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def chain(length: int, brackets: int = 0, last: str = '"x"') -> str:
    """Rules that lead one to the next, each with parentheses."""
    links = (f"a{at}: {'(' * brackets}a{at + 1}{')' * brackets}\n" for at in range(length))
    return "".join(["start: a0\n", *links, f"a{length}: {last}\n"])


def referring(definitions: int, levels: int) -> str:
    """A schema whose definitions lead one to the next, each through so many levels."""

    def one(at: int) -> str:
        return '{"items":' * levels + f'{{"$ref":"#/$defs/{at + 1}"}}' + "}" * levels

    links = [f'"{at}":{one(at)}' for at in range(definitions)]
    return f'{{"$ref":"#/$defs/0","$defs":{{{",".join(links)},"{definitions}":{{"type":"null"}}}}}}'


def admitted(matcher: TokenMatcher) -> str:
    """The admitted letters; `$` stands for the end token."""
    return "".join("$" if token == END else TABLE[token].decode() for token in np.flatnonzero(matcher.admitted()))


def test_a_grammar_admits_what_can_lead_to_a_text_of_it_and_an_end_where_one_is_whole() -> None:
    matcher = GRAMMARS.compile(regex("ab?c"))
    seen = [admitted(matcher)]
    for token in [*ids_of("abc"), END, END]:
        matcher.advance(token)
        seen.append(admitted(matcher))
    assert seen == ["a", "bc", "c", "$", "$", "$"]


def test_rolling_back_restores_what_was_admitted_from_anywhere() -> None:
    """Also over an end token, and over tokens that the grammar did not admit: the proposals that are rejected."""
    said = [*ids_of("ab"), *ids_of("zzc")]
    for path in (said, [*ids_of("abc"), END, END], [*ids_of("a"), END, *ids_of("bc")]):
        matcher = GRAMMARS.compile(regex("ab?c"))
        before = [admitted(matcher)]
        for token in path:
            matcher.advance(token)
            before.append(admitted(matcher))
        for count in range(1, len(path) + 1):
            matcher.roll_back(count)
            assert admitted(matcher) == before[len(path) - count]
            for token in path[len(path) - count :]:
                matcher.advance(token)
        assert admitted(matcher) == before[-1]


WIDE = "(a|b)*a(a|b){6}c"
"""As a machine without memory it has 128 states, of which a text meets new ones for long."""


def limited_matcher(*, states: int) -> TokenMatcher:
    """Its library's limit is so low that a few ways fill it."""
    fresh = fresh_matcher(states=states)
    return TokenMatcher(fresh(), fresh, end_tokens=frozenset({END}), vocab_size=len(TABLE))


def fresh_matcher(*, states: int) -> Callable[[], LLMatcher]:
    source, limits = LLMatcher.grammar_from_regex(WIDE), LLParserLimits(max_lexer_states=states)
    return lambda: LLMatcher(GRAMMARS._vocabulary("response_format"), source, log_level=0, limits=limits)


def test_ways_that_were_taken_back_never_make_a_grammar_too_complex() -> None:
    matcher, straight, chance = limited_matcher(states=40), GRAMMARS.compile(regex(WIDE)), Random(1)
    for token in ids_of("abbabaabab"):
        for _ in range(5):
            way = [chance.choice(ids_of("ab")) for _ in range(6)]
            for guess in way:
                matcher.advance(guess)
                matcher.admitted()
            matcher.roll_back(len(way))
        assert admitted(matcher) == admitted(straight)
        matcher.advance(token)
        straight.advance(token)
    assert admitted(matcher) == admitted(straight)


def test_a_session_that_came_to_the_limit_leaves_the_grammar_as_it_was_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies of one compiled grammar share what they looked at; the copy that fills it up is followed by no other."""
    grammars = table_grammars(TABLE, end_tokens=frozenset({END}))
    fresh = fresh_matcher(states=40)
    monkeypatch.setattr(grammars, "_compile", lambda _: fresh())
    chance = Random(1)
    for _ in range(6):
        matcher, straight = grammars.compile(regex(WIDE)), GRAMMARS.compile(regex(WIDE))
        for _ in range(10):
            assert admitted(matcher) == admitted(straight)
            token = chance.choice(ids_of("ab"))
            matcher.advance(token)
            straight.advance(token)


def test_a_grammar_is_too_complex_after_the_same_output_whatever_was_proposed() -> None:
    matcher, straight = limited_matcher(states=20), limited_matcher(states=20)
    said = ids_of("abbaabababbbaaabbabab")

    def refused_at(matcher: TokenMatcher, *, proposals: Sequence[Sequence[TokenId]]) -> int:
        for place, token in enumerate(said):
            for way in proposals:
                for guess in way:
                    matcher.advance(guess)
                    with suppress(BadRequest):
                        matcher.admitted()
                matcher.roll_back(len(way))
            try:
                matcher.admitted()
            except BadRequest:
                return place
            matcher.advance(token)
        return len(said)

    plain = refused_at(straight, proposals=())
    assert 0 < plain < len(said)
    assert refused_at(matcher, proposals=(ids_of("aababb"), ids_of("bba"), [END, *ids_of("ab")])) == plain


def test_nothing_is_admitted_behind_a_token_that_left_the_grammar() -> None:
    matcher = GRAMMARS.compile(regex("ab"))
    matcher.advance(END)  # before the text is whole, an end is no end
    assert admitted(matcher) == ""


def test_sessions_of_one_grammar_do_not_move_each_other() -> None:
    first, second = GRAMMARS.compile(regex("ab")), GRAMMARS.compile(regex("ab"))
    first.advance(ids_of("a")[0])
    assert (admitted(first), admitted(second)) == ("b", "a")


def test_so_many_compiled_grammars_are_kept_and_no_more() -> None:
    grammars = table_grammars(TABLE, end_tokens=frozenset({END}))
    for number in range(MOST_COMPILED + 5):
        grammars.compile(regex(f"a{number}"))
    assert grammars.kept == MOST_COMPILED


def test_a_compiled_grammar_may_be_used_on_another_thread() -> None:
    matcher = GRAMMARS.compile(regex("ab"))
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(admitted(matcher)))
    thread.start()
    thread.join()
    assert seen == ["a"]


async def test_compiling_leaves_the_event_loop_free() -> None:
    """The loop turns while a schema is compiled, which it cannot if the lock is held. Each takes about 50 ms; there are
    many, since on a busy machine the loop may not get a core for as long as that."""

    def wide(size: int) -> Grammar:
        patterns = {f"property {number}": f"^[a-z]{{1,{number}}}x$" for number in range(1, size)}
        table = {name: {"type": "string", "pattern": pattern} for name, pattern in patterns.items()}
        return schema(type="object", properties=table, required=list(table))

    turned_in = 0
    for size in range(50, 70):
        compiling, turns = asyncio.create_task(asyncio.to_thread(GRAMMARS.compile, wide(size))), 0
        while not compiling.done():
            await asyncio.sleep(0)
            turns += 1
        assert admitted(await compiling)
        turned_in += turns > 10
    assert turned_in > 0


def test_answers_under_a_schema_validate_against_it() -> None:
    """A walk that always takes the first admitted letter but spaces ends in a document of the schema."""
    person = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 9}, "kind": {"enum": ["cat", "dog"]}},
        "required": ["age", "kind"],
        "additionalProperties": False,
    }
    matcher = GRAMMARS.compile(schema(**person))
    text = ""
    while (letters := admitted(matcher).replace(" ", "").replace(",", "") or admitted(matcher).strip(" "))[0] != "$":
        text += letters[-1]
        matcher.advance(ids_of(letters[-1])[0])
        assert len(text) < 100
    jsonschema.validate(json.loads(text), person)


def test_a_model_folders_own_tokenizer_can_be_followed(tmp_path: Path) -> None:
    """Padded rows behind the tokenizer's ids are never admitted, nor is a token by its special name."""
    folder = byte_level_folder(tmp_path)
    tokenizer = FolderTokenizer(folder)
    grammars = folder_grammars(folder, end_tokens=tokenizer.end_tokens, vocab_size=tokenizer.size + 20)
    matcher = grammars.compile(regex("(the|a) fox"))
    mask = matcher.admitted()
    assert {tokenizer.decode([int(token)]) for token in np.flatnonzero(mask)} <= {"t", "th", "the", "a", " ", "the "}
    for token in tokenizer.encode("the fox")[1:]:  # without the <s> before it
        assert matcher.admitted()[token]
        matcher.advance(token)
    assert mask.shape == (tokenizer.size + 20,)


@pytest.mark.parametrize("kind", [GrammarKind.REGEX, GrammarKind.CALLS])
def test_a_tokenizer_that_cannot_be_read_is_what_the_refusal_names_and_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: GrammarKind
) -> None:
    """It is no fault of the request's: no other value of the field would be served."""
    grammars = folder_grammars(letters_folder(tmp_path / "letters"), end_tokens=frozenset({0}), vocab_size=7)
    call = json.dumps({"format": "Hermes", "call": {"type": "object"}})
    asked = Grammar(kind, call if kind is GrammarKind.CALLS else "a")
    for _ in range(3):
        with pytest.raises(NotSupported, match=r"grammar: tokenizer\.json of letters is of a kind") as caught:
            grammars.compile(asked)
        assert caught.value.parameter == asked.asked_by
    (told,) = [record.getMessage() for record in caplog.records]
    assert "tokenizer.json of letters" in told
    assert "Fuse" in told


def test_a_model_without_an_end_token_serves_no_grammar() -> None:
    with pytest.raises(BadRequest, match="names none"):
        table_grammars(TABLE, end_tokens=frozenset()).compile(regex("a"))


def properties(**inner: object) -> Grammar:
    return schema(type="object", properties=inner)


BAD: list[tuple[Grammar, str, str]] = [
    (regex("(a|b"), "f", "unclosed group"),
    (regex("a" * (LONGEST_GRAMMAR + 1)), "f", str(LONGEST_GRAMMAR)),
    (Grammar(GrammarKind.JSON_SCHEMA, "{"), "f", "no JSON"),
    (Grammar(GrammarKind.JSON_SCHEMA, "[]"), "f", "an object"),
    (schema(type="objekt"), "f", "objekt"),
    (properties(a={"type": "strin"}), "f.properties.a", "strin"),
    (properties(a={"type": "array", "items": {"type": "x"}}), "f.properties.a.items", "x"),
    (properties(ok={"type": "string"}, b={"anyOf": [{}, {"not": {}}]}), "f.properties.b.anyOf[1]", "not"),
    (properties(a={"$ref": "#/$defs/none"}), "f.properties.a", "does not exist"),
    (properties(a={"type": "string", "pattern": "(?=a)b"}), "f.properties.a", "look-around"),
    (schema(type="integer", minimum=3, maximum=1), "f", "nsatisfiable"),
    (lark('start: "a"\nx: (\n'), "f", "^f cannot be compiled: line 2, column 5: Expected token"),
    (lark('start: "a"\nx: ' + "(" * 500 + '"a"' + ")" * 500), "f", "line 2, column 33: .* too deeply nested.{0,200}$"),
    (lark('start: %json {"type": 3}'), "f", "line 1, column 8: failed to compile JSON schema"),
    (lark(chain(MOST_LINES - 1)), "structured_outputs.grammar", "has 257 lines; at most 256 are served"),
    (lark('start: "a"\n%llguidance {}'), "structured_outputs.grammar", "line 2: options of %llguidance"),
    (lark(chain(100, 9)), "structured_outputs.grammar", "opens 900 brackets; at most 800 are served"),
    (lark("start: %json " + referring(100, 25)), "structured_outputs.grammar", "opens 2603 brackets"),
    (Grammar(GrammarKind.JSON_SCHEMA, referring(100, 25)), "f", "more than 800 levels together"),
    (Grammar(GrammarKind.JSON_SCHEMA, referring(1500, 1)), "f", "more than 800 levels together"),
    (Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 80 + "{}" + "}" * 80), "f", "deeper than 64"),
]


@pytest.mark.parametrize(("grammar", "path", "part"), BAD, ids=[str(at) for at in range(len(BAD))])
def test_a_grammar_that_does_not_compile_is_refused_by_the_path_of_what_is_wrong(
    grammar: Grammar, path: str, part: str
) -> None:
    with pytest.raises(BadRequest, match=part) as caught:
        refuse_bad_grammar(grammar, parameter="f")
    assert caught.value.parameter == path
    assert "\n" not in str(caught.value)


DEEPEST = [
    lark(chain(MOST_LINES - 2)),
    lark(chain(28, 27)),
    lark(chain(200, 3)),
    lark(chain(250, 1, "%json " + referring(35, 12))),
    Grammar(GrammarKind.JSON_SCHEMA, referring(240, 1)),
    Grammar(GrammarKind.JSON_SCHEMA, referring(28, 25)),
]


@pytest.mark.parametrize("deepest", DEEPEST, ids=[str(at) for at in range(len(DEEPEST))])
def test_what_recurses_as_deep_as_it_may_ends_no_process(deepest: Grammar) -> None:
    """On a thread, as engines compile. More ends it by a signal: nobody can catch that."""
    refuse_bad_grammar(deepest, parameter="f")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(admitted(GRAMMARS.compile(deepest))))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_an_engine_refuses_rules_that_no_gateway_has_looked_at() -> None:
    with pytest.raises(BadRequest, match="has 4002 lines") as caught:
        GRAMMARS.compile(lark(chain(4000)))
    assert caught.value.parameter == "structured_outputs.grammar"
    with pytest.raises(BadRequest, match=r"structured_outputs\.grammar cannot be compiled"):
        GRAMMARS.compile(lark("start: <[999999]>"))


def test_schemas_that_compile_are_let_through() -> None:
    refuse_bad_grammar(schema(**{"$defs": {"n": {"type": "number"}}, "anyOf": [{"$ref": "#/$defs/n"}]}), parameter="f")
    refuse_bad_grammar(Grammar(GrammarKind.JSON_SCHEMA, '{"items":' * 60 + "{}" + "}" * 60), parameter="f")
    refuse_bad_grammar(regex("a|b"), parameter="f")
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "other": {"$ref": "#/properties/next"}}}
    refuse_bad_grammar(schema(**tree), parameter="f")
