"""Knows how a model folder's tokenizer turns text and chats into ids, and ids into text.

Refuses to know weights: it reads tokenizer.json, tokenizer_config.json, generation_config.json and config.json only.

A chat template is a program from a model folder: it runs in jinja2's immutable sandbox, where it can neither reach
Python's internals nor change its arguments. What it may call beyond jinja2 is what such templates expect:
`raise_exception` and `strftime_now` are their convention; the latter is absent here, since text must not depend on the
day, and a template that tests for it does without. `tojson` leaves signs of HTML as they are, and what stands in a
`generation` block, by which trainers find the assistant's words, is text like any other.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as TokenizerModel

from tandem_runtime.domain.errors import BadRequest, ModelRefused
from tandem_runtime.domain.tokens import SamplingDefaults, TokenId
from tandem_runtime.domain.tool_calls import FORMS, ToolFormat
from tandem_runtime.model_folder import read_object, read_text

_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError)
"""What a program that was not made for these messages ends with: it adds a text to an object, counts what is absent."""


class FolderTokenizer:
    """The Tokenizer port over one model folder. Raises ModelRefused, naming file and field, if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._model = _read_model(folder / "tokenizer.json")
        self._settings = _settings(folder / "tokenizer_config.json")
        self._end_tokens = _end_tokens(folder)
        self._defaults = _defaults(folder / "generation_config.json")
        self._template = _compile_template(folder, self._settings, name="default")
        self._tool_template = _compile_template(folder, self._settings, name="tool_use")
        self._tool_format = None if self._tool_template is None else self._tool_template.tool_format
        opening = "" if self._tool_format is None else FORMS[self._tool_format].opening
        self._opening: tuple[str, TokenId | None] = opening, self._model.token_to_id(opening)

    @property
    def end_tokens(self) -> frozenset[TokenId]:
        return self._end_tokens

    @property
    def defaults(self) -> SamplingDefaults:
        """What generation_config.json advises."""
        return self._defaults

    @property
    def size(self) -> int:
        """One more than the largest id that has a text; a model's padded rows from here on have none."""
        return 1 + max(self._model.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> tuple[TokenId, ...]:
        """With the special tokens that the folder's post-processor adds, as for plain completion."""
        return self._ids(text, add_special_tokens=True)

    def spellings(self, text: str) -> tuple[tuple[TokenId, ...], ...]:
        """Two, or one where a space before the text changes nothing."""
        bare = text.lstrip(" ")
        ways = (self._ids(way, add_special_tokens=False) for way in (bare, f" {bare}"))
        return tuple(dict.fromkeys(way for way in ways if way))

    def continuation(self, text: str) -> tuple[TokenId, ...]:
        return self._ids(text, add_special_tokens=False)

    @property
    def tool_format(self) -> ToolFormat | None:
        """As the chat template shows it."""
        return self._tool_format

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> tuple[TokenId, ...]:
        """The template writes its own special tokens, so none are added."""
        template = self._tool_template if tools else self._template
        if template is None:
            raise BadRequest(
                "this model has no chat template; use /v1/completions, or serve it with a `chat_template` in"
                " tokenizer_config.json",
                parameter="messages",
            )
        try:
            text = template.program.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                **_special_tokens(self._settings),
            )
        except _TEMPLATE_FAULTS as error:
            raise BadRequest(
                f"the model's chat template refuses these messages: {error}", parameter="messages"
            ) from error
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> tuple[TokenId, ...]:
        """As a batch of one: only so does the library let other threads run meanwhile."""
        (encoding,) = self._model.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoding.ids)

    def decode(self, ids: Sequence[TokenId]) -> str:
        return str(self._model.decode(list(ids), skip_special_tokens=True))

    def decode_calls(self, ids: Sequence[TokenId]) -> str:
        text, token = self._opening
        if token is None or token not in ids or text in self.decode((token,)):
            return self.decode(ids)
        marks = [-1, *(at for at, each in enumerate(ids) if each == token), len(ids)]
        return text.join(self.decode(ids[mark + 1 : end]) for mark, end in itertools.pairwise(marks))


def _read_model(path: Path) -> TokenizerModel:
    if not path.is_file():
        raise ModelRefused(f"{path} does not exist; name the folder that holds the model's tokenizer.json")
    try:
        return TokenizerModel.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise ModelRefused(f"{path} cannot be read as a tokenizer: {error}") from error


def _settings(path: Path) -> Mapping[str, object]:
    """The fields of a file that a folder may lack."""
    return read_object(path) if path.exists() else {}


def _end_tokens(folder: Path) -> frozenset[TokenId]:
    """`eos_token_id` of generation_config.json, else of config.json: one id or a list."""
    for name in ("generation_config.json", "config.json"):
        value = _settings(folder / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise ModelRefused(f"{folder / name}: eos_token_id is {value!r}; a token id or a list of them is needed")
        if ids:
            return frozenset(ids)
    return frozenset()


_SMALLEST = math.ulp(0)
_ADVICE: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_k": (0, 2**31 - 1),
    "top_p": (_SMALLEST, 1),
    "min_p": (0, 1),
    "repetition_penalty": (_SMALLEST, 10),
}
"""Least and most of each number: those that a request may ask for, and so those that may be its default."""


def _defaults(path: Path) -> SamplingDefaults:
    """The advised numbers of a file that a folder may lack."""
    settings, plain = _settings(path), SamplingDefaults()
    return SamplingDefaults(
        temperature=_advised(path, settings, "temperature", absent=plain.temperature),
        top_k=int(_advised(path, settings, "top_k", absent=plain.top_k)),
        top_p=_advised(path, settings, "top_p", absent=plain.top_p),
        min_p=_advised(path, settings, "min_p", absent=plain.min_p),
        repetition_penalty=_advised(path, settings, "repetition_penalty", absent=plain.repetition_penalty),
    )


def _advised(path: Path, settings: Mapping[str, object], name: str, *, absent: float) -> float:
    """Null is no advice."""
    value = settings.get(name)
    if value is None:
        return absent
    least, most = _ADVICE[name]
    kinds = (int,) if name == "top_k" else (int, float)
    if type(value) not in kinds or not isinstance(value, int | float) or not least <= value <= most:
        raise ModelRefused(f"{path}: {name} = {value!r}: no request may ask for it: leave it out, or give {absent}")
    return float(value)


@dataclass(frozen=True, slots=True)
class _ChatTemplate:
    """A template, and how the model that it is for writes calls of tools."""

    program: Template
    tool_format: ToolFormat | None


def _tool_format(source: str, *, takes_tools: bool) -> ToolFormat | None:
    """By what a template shows the model, or writes where it repeats earlier calls. Some forms have calls that are no
    JSON behind marks like those of others."""
    if not takes_tools or any(other in source for other in ("<function=", "<arg_key>", "[ARGS]")):
        return None
    if FORMS[ToolFormat.MISTRAL].opening in source:
        return ToolFormat.MISTRAL
    if FORMS[ToolFormat.HERMES].opening in source:
        return ToolFormat.HERMES
    return ToolFormat.LLAMA if '"parameters":' in source else None


def _template_source(folder: Path, settings: Mapping[str, object], name: str) -> str | None:
    """A file of its own goes before the settings. Among several the one of that name is taken, else the default."""
    beside, source = folder / "chat_template.jinja", settings.get("chat_template")
    if beside.is_file():
        return read_text(beside)
    if isinstance(source, list):
        named = {each["name"]: each.get("template") for each in source if isinstance(each, dict) and "name" in each}
        source = named.get(name, named.get("default", source))
    if source is not None and not isinstance(source, str):
        what = "chat_template must be a text, or a list in which one named default has it as template"
        raise ModelRefused(f"{folder / 'tokenizer_config.json'}: {what}")
    return source


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` is what stands in it."""

    tags = {"generation"}  # noqa: RUF012  # the library's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _compile_template(folder: Path, settings: Mapping[str, object], *, name: str) -> _ChatTemplate | None:
    source = _template_source(folder, settings, name)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        autoescape=False,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    try:
        takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        return _ChatTemplate(environment.from_string(source), _tool_format(source, takes_tools=takes_tools))
    except TemplateError as error:
        raise ModelRefused(f"the chat template of {folder} does not compile: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and its kin, each a text or an object with `content`, by the names that templates use."""
    named: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            named[name] = value
    return named
