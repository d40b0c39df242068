"""Knows how an output is held to a JSON schema, a regular expression or a Lark grammar: the Grammars port.

Refuses to know logits, sessions, and how a request names its grammar.

llguidance (MIT, one wheel without dependencies) parses by Earley's algorithm over tokens and gives, for any prefix, the
set of tokens that can still lead to a text of the grammar; it takes tokens back, which is what a rejected proposal
needs. It compiles without holding the interpreter's lock, and a compiled grammar is kept and copied for each session.

A grammar of calls begins where the output begins one (`lark`): before that text is free, and so is its end.

An output under a grammar ends by an end token, which is admitted where the text is whole. What stands behind an end
token is ended, and admits end tokens only; what stands behind a token that was not admitted has left the grammar, and
admits nothing.
"""

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tandem_runtime.domain.errors import BadRequest, ModelRefused, NotSupported
from tandem_runtime.domain.tokens import Grammar, GrammarKind, TokenId
from tandem_runtime.domain.tool_calls import FORMS, ToolFormat
from tandem_runtime.lark import Marks, lark_of_calls

_T = TypeVar("_T")

log = logging.getLogger(__name__)

LONGEST_GRAMMAR = 64 * 1024
"""Characters. Compiling is bounded work per character, and a schema beyond this is a mistake."""
DEEPEST_SCHEMA = 64
"""Levels of objects and arrays: the compiler recurses over them."""
MOST_LEVELS = 800
"""Of a schema and all that its references lead to, one after the other: by a chain of these a text that is not deep of
its own takes the compiler as deep as it is long. Some 2,000 end the process, without an error that could be caught."""
MOST_LINES = 256
"""Of Lark, in which each rule has a line of its own, and leads to others."""
MOST_BRACKETS = 800
"""Of Lark, opening ones of any kind: those of all rules, schemas and expressions may come to stand one in another."""
NO_TEXT = "NoExtensionBias"
"""The library's word for a grammar of which no text is left, such as a rule that only leads to itself."""
LONGEST_FAULT = 300
_PLACE = re.compile(r"(?:at )?([0-9]+)\(([0-9]+)\): ")
MOST_COMPILED = 32
"""Grammars kept; the least recently used goes first."""


class TokenGrammars:
    """`ports.Grammars` over one vocabulary. `read` makes the library's tokenizer: half a second for a large one, so it
    is called with the first grammar, and once. It raises ModelRefused for one that the library does not read, which the
    log tells then, and whoever asks for a grammar. `end_tokens` end an output."""

    def __init__(self, read: Callable[[], LLTokenizer], *, end_tokens: frozenset[TokenId], vocab_size: int) -> None:
        self._read = read
        self._tokenizer: LLTokenizer | ModelRefused | None = None
        self._end_tokens = end_tokens
        self._vocab_size = vocab_size
        self._special: frozenset[TokenId] | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> "TokenMatcher":
        with self._lock:
            kept = self._compiled.get(grammar)
        first = self._compiled_anew(grammar) if kept is None else self._copied(grammar, kept)
        fresh = partial(self._compiled_anew, grammar)
        return TokenMatcher(
            first, fresh, end_tokens=self._end_tokens, vocab_size=self._vocab_size, asked_by=grammar.asked_by
        )

    @property
    def kept(self) -> int:
        """Compiled grammars in memory."""
        return len(self._compiled)

    def _compiled_anew(self, grammar: Grammar) -> LLMatcher:
        """A matcher that shares nothing with those made before."""
        return self._copied(grammar, self._compile(grammar))

    def _copied(self, grammar: Grammar, kept: LLMatcher) -> LLMatcher:
        with self._lock:
            self._compiled[grammar] = kept
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
            return kept.deep_copy()

    def _compile(self, grammar: Grammar) -> LLMatcher:
        if not self._end_tokens:
            raise NotSupported(
                f"{grammar.asked_by} needs an end token to end the answer by, and this model names none",
                parameter=grammar.asked_by,
            )
        vocabulary = self._vocabulary(grammar.asked_by)
        marks = partial(self._marks, vocabulary)
        source = _calls_source(grammar, marks) if grammar.kind is GrammarKind.CALLS else _source(grammar)
        matcher = LLMatcher(vocabulary, source, log_level=0)
        if matcher.is_error():
            raise BadRequest(
                f"{grammar.asked_by} cannot be compiled: {_first_line(matcher.get_error())}", parameter=grammar.asked_by
            )
        return matcher

    def _marks(self, vocabulary: LLTokenizer, format: ToolFormat) -> Marks:
        """This vocabulary's special tokens, as the form of calls has them."""
        form = FORMS[format]
        if self._special is None:
            special = filter(vocabulary.is_special_token, range(self._vocab_size))
            self._special = frozenset(special) - self._end_tokens
        spelt = {text: vocabulary.tokenize_str(text, parse_special=True) for text in (form.opening, form.closing)}
        named = {text: ids[0] for text, ids in spelt.items() if len(ids) == 1 and ids[0] in self._special}
        return Marks(named, sorted(self._special.difference(named.values())))

    def _vocabulary(self, asked_by: str) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read_once()
            found = self._tokenizer
        if isinstance(found, ModelRefused):
            raise NotSupported(
                f"this model's answers cannot be held to a grammar: {found}; leave out {asked_by}, structured_outputs"
                " and calls that are forced or strict",
                parameter=asked_by,
            )
        return found

    def _read_once(self) -> LLTokenizer | ModelRefused:
        try:
            return self._read()
        except ModelRefused as refused:
            log.error("no grammar can be followed, and requests that need one are refused: %s", refused)
            return refused


def folder_grammars(folder: Path, *, end_tokens: frozenset[TokenId], vocab_size: int) -> TokenGrammars:
    """Grammars over the tokenizer of a model folder."""

    def read() -> LLTokenizer:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            return LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(end_tokens))
        except ValueError as error:
            kind = _first_line(str(error))
            raise ModelRefused(
                f"tokenizer.json of {folder.name} is of a kind that grammars cannot be followed with ({kind})"
            ) from error

    return TokenGrammars(read, end_tokens=end_tokens, vocab_size=vocab_size)


def table_grammars(table: Sequence[bytes], *, end_tokens: frozenset[TokenId]) -> TokenGrammars:
    """Grammars over a table of bytes, where token i stands for `table[i]`: what a model without a tokenizer can do."""
    read = partial(_table_vocabulary, tuple(table), end_tokens)
    return TokenGrammars(read, end_tokens=end_tokens, vocab_size=len(table))


def _table_vocabulary(table: tuple[bytes, ...], end_tokens: frozenset[TokenId]) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Table(table, end_tokens)), n_vocab=len(table), eos_token=sorted(end_tokens))


class _Table:
    """A table as the library wants to see it."""

    bos_token_id = None
    unk_token_id = None

    def __init__(self, table: tuple[bytes, ...], end_tokens: frozenset[TokenId]) -> None:
        self.tokens = table
        self.special_token_ids = sorted(end_tokens)
        self.eos_token_id = min(end_tokens)

    def __call__(self, text: str | bytes) -> list[TokenId]:
        """Byte by byte: asked of texts only where a grammar names some, and any spelling will do."""
        written = text.encode() if isinstance(text, str) else text
        return [self.tokens.index(bytes([byte])) for byte in written if bytes([byte]) in self.tokens]


class TokenMatcher:
    """`ports.Matcher`: one output on its way through a grammar.

    The library's matcher has limits, and towards them counts what it looked at on the way of proposals that did not
    stand, and even what its copies looked at in other sessions. So one that fails is replaced by a `fresh` one, which
    shares nothing and has read this output alone; only where that fails too is the grammar too complex.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        fresh: Callable[[], LLMatcher],
        *,
        end_tokens: frozenset[TokenId],
        vocab_size: int,
        asked_by: str = "response_format",
    ) -> None:
        """`asked_by` names the request's field, for what goes wrong."""
        self._matcher = matcher
        self._fresh = fresh
        self._asked_by = asked_by
        self._read: list[TokenId] = []
        self._end_tokens = end_tokens
        self._vocab_size = vocab_size
        self._beyond = 0
        """Tokens said since the text ended or left the grammar, the one that did so included."""
        self._ended = False

    def admitted(self) -> npt.NDArray[np.bool_]:
        if self._beyond:
            return self._after_the_end()
        bits = np.frombuffer(self._surely(LLMatcher.compute_bitmask), np.uint8)
        if self._matcher.is_error():
            if NO_TEXT in self._matcher.get_error():
                raise BadRequest(f"{self._asked_by} leaves no text that could follow", parameter=self._asked_by)
            raise BadRequest(
                f"{self._asked_by} became too complex to follow: {_first_line(self._matcher.get_error())}",
                parameter=self._asked_by,
            )
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(np.bool_)

    def advance(self, token: TokenId) -> None:
        if self._beyond or not self._take(token):
            self._beyond += 1

    def roll_back(self, count: int) -> None:
        beyond = min(count, self._beyond)
        self._beyond -= beyond
        taken = len(self._read) - (count - beyond)
        if taken < len(self._read):
            self._matcher.rollback(len(self._read) - taken)
            del self._read[taken:]

    def _take(self, token: TokenId) -> bool:
        self._ended = token in self._end_tokens and self._matcher.is_accepting()
        if token in self._end_tokens or not self._surely(lambda matcher: matcher.try_consume_tokens([token])):
            return False
        self._read.append(token)
        return True

    def _surely(self, ask: Callable[[LLMatcher], _T]) -> _T:
        """What the matcher answers, or a fresh one in its place if it has come to its limits."""
        answer = ask(self._matcher)
        if self._matcher.is_error():
            self._matcher = self._fresh()
            self._matcher.try_consume_tokens(self._read)
            answer = ask(self._matcher)
        return answer

    def _after_the_end(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self._vocab_size, np.bool_)
        mask[list(self._end_tokens)] = self._ended
        return mask


def refuse_bad_grammar(grammar: Grammar, *, parameter: str) -> None:
    """Raises BadRequest naming the innermost part of a schema that cannot be compiled, by its path under `parameter`.

    Takes as long as compiling without a vocabulary does: milliseconds.
    """
    if len(grammar.text) > LONGEST_GRAMMAR:
        raise BadRequest(
            f"{parameter} has {len(grammar.text)} characters; at most {LONGEST_GRAMMAR} are served",
            parameter=parameter,
        )
    match grammar.kind:
        case GrammarKind.REGEX:
            fault = _fault(LLMatcher.grammar_from_regex(grammar.text))
            if fault:
                raise BadRequest(f"{parameter} cannot be compiled: {fault}", parameter=parameter)
        case GrammarKind.CALLS:
            fault = _fault(_calls_source(grammar, lambda _: Marks()))
            if fault:
                raise BadRequest(f"{parameter} cannot be compiled: {fault}", parameter=parameter)
        case GrammarKind.JSON_SCHEMA:
            _refuse_bad_schema(grammar.text, parameter)
        case GrammarKind.LARK:
            _refuse_bad_lark(grammar, parameter)


def _refuse_bad_lark(grammar: Grammar, parameter: str) -> None:
    """By line and column."""
    fault = _fault(_source(grammar))
    if fault:
        hint = "; this looks like GBNF, and Lark is read here: start: ..." if "::=" in grammar.text else ""
        raise BadRequest(f"{parameter} cannot be compiled: {fault}{hint}", parameter=parameter)


def _lark_source(grammar: Grammar) -> str:
    """Raises BadRequest for what the library must not be given: a peer may send any text."""
    lines = grammar.text.splitlines()
    if len(lines) > MOST_LINES:
        raise BadRequest(
            f"{grammar.asked_by} has {len(lines)} lines; at most {MOST_LINES} are served", parameter=grammar.asked_by
        )
    brackets = sum(map(grammar.text.count, "([{"))
    if brackets > MOST_BRACKETS:
        raise BadRequest(
            f"{grammar.asked_by} opens {brackets} brackets; at most {MOST_BRACKETS} are served",
            parameter=grammar.asked_by,
        )
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("%llguidance"):
            raise BadRequest(
                f"{grammar.asked_by}, line {number}: options of %llguidance are not taken: leave the line out",
                parameter=grammar.asked_by,
            )
    return LLMatcher.grammar_from_lark(grammar.text)


def _refuse_bad_schema(text: str, parameter: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{parameter} is no JSON: {error}", parameter=parameter) from error
    if _is_deeper(schema, DEEPEST_SCHEMA):
        raise BadRequest(f"{parameter} is nested deeper than {DEEPEST_SCHEMA} levels; flatten it", parameter=parameter)
    if not isinstance(schema, Mapping):
        raise BadRequest(f"{parameter} is {text[:40]}; a JSON schema is an object", parameter=parameter)
    if _unfolded_levels(schema) > MOST_LEVELS:
        raise BadRequest(
            f"{parameter} leads through references to definitions of more than {MOST_LEVELS} levels together: use"
            " fewer, or flatten them",
            parameter=parameter,
        )
    if fault := _schema_fault(schema):
        path, fault = _innermost(schema, schema, parameter, fault)
        raise BadRequest(f"{path} cannot be compiled: {fault}", parameter=path)


def _innermost(part: Mapping[str, object], root: Mapping[str, object], path: str, fault: str) -> tuple[str, str]:
    """Where the fault lies: the deepest schema within `part` that is faulty by itself, and what is wrong with it."""
    for name, inner in _schemas_within(part):
        found = _schema_fault({**_definitions(root), **inner})
        if found:
            return _innermost(inner, root, f"{path}.{name}", found)
    return path, fault


def _schemas_within(schema: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The schemas directly within one, each by its path from there."""
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        table = schema.get(keyword)
        if isinstance(table, Mapping):
            yield from _mappings((f"{keyword}.{name}", value) for name, value in table.items())
    for keyword in ("items", "additionalProperties"):
        yield from _mappings([(keyword, schema.get(keyword))])
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        several = schema.get(keyword)
        if isinstance(several, list):
            yield from _mappings((f"{keyword}[{at}]", value) for at, value in enumerate(several))


def _mappings(named: Iterable[tuple[str, object]]) -> Iterator[tuple[str, Mapping[str, object]]]:
    return ((name, value) for name, value in named if isinstance(value, Mapping))


def _definitions(root: Mapping[str, object]) -> dict[str, object]:
    """What references within a part of a schema lead to."""
    return {name: root[name] for name in ("$defs", "definitions") if name in root}


def _schema_fault(schema: Mapping[str, object]) -> str:
    return _fault(_source(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))))


def _fault(source: str) -> str:
    """What is wrong with a grammar, in one line; empty if nothing is."""
    return _first_line(LLMatcher.validate_grammar(source))


def _source(grammar: Grammar) -> str:
    """Of a grammar that is the same over every vocabulary."""
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind is GrammarKind.LARK:
        return _lark_source(grammar)
    return LLMatcher.grammar_from_json_schema(grammar.text)


def _calls_source(grammar: Grammar, marks: Callable[[ToolFormat], Marks]) -> str:
    """Raises BadRequest for a text that is no grammar of calls: a peer may send any."""
    try:
        told = json.loads(grammar.text)
        format, schema, parallel = ToolFormat(told["format"]), told["call"], told.get("parallel", True)
        if not isinstance(schema, dict) or not isinstance(parallel, bool):
            raise TypeError("a schema is an object")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise BadRequest(
            "a grammar of calls is JSON: `format`, a known one, `call`, a JSON schema, and `parallel`, true or false",
            parameter="tools",
        ) from error
    lark = lark_of_calls(format, json.dumps(schema), marks(format), parallel=parallel)
    return LLMatcher.grammar_from_lark(lark)


def _is_deeper(value: object, levels: int) -> bool:
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in _inner(value))


def _unfolded_levels(schema: Mapping[str, object]) -> int:
    """At most so deep does a schema lead, with all definitions that it refers to behind one another."""
    text = json.dumps(schema)
    is_plain = '"$id"' not in text and "draft-04" not in text  # else what a reference means depends on where it stands
    levels: dict[int, int] = {}
    whole = _levels(schema, levels)
    targets = (_referred(schema, each) if is_plain else schema for each in set(_references(schema)))
    return whole + sum(1 + levels.get(id(target), 0) for target in targets)


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        found = (value.get(name) for name in ("$ref", "$dynamicRef", "$recursiveRef"))
        yield from (reference for reference in found if isinstance(reference, str))
    for inner in _inner(value):
        yield from _references(inner)


def _referred(schema: object, reference: str) -> object:
    """What stands there; the whole schema where that is not found out."""
    found: object = schema
    for step in reference.split("/")[1:] if reference.startswith("#/") else ():
        found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            return schema
    return found


def _levels(value: object, found: dict[int, int]) -> int:
    """Of objects and lists within; those of each of them are `found` too, so that many references cost one look."""
    inner = _inner(value)
    if not inner:
        return 0
    found[id(value)] = 1 + max(_levels(each, found) for each in inner)
    return found[id(value)]


def _inner(value: object) -> Collection[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _first_line(message: str) -> str:
    """The library draws a picture of a faulty expression below the first line; a path and a reason say enough."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("error:")]
    told = "; ".join([*lines[:1], *reasons])
    placed = _PLACE.sub(r"line \1, column \2: ", told, count=1) if _PLACE.match(told) else told
    return placed if len(placed) <= LONGEST_FAULT else f"{placed[:LONGEST_FAULT]}..."
