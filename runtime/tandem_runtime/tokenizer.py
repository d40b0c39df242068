"""Knows how a model folder's tokenizer turns text and chats into ids, and ids into text.

Refuses to know weights: it reads tokenizer.json, tokenizer_config.json, generation_config.json and config.json only.

A chat template is a program from a model folder: it runs in jinja2's immutable sandbox, where it can neither reach
Python's internals nor change its arguments. What it may call beyond jinja2 is what such templates expect:
`raise_exception` and `strftime_now` are their convention; the latter is absent here, since text must not depend on the
day, and a template that tests for it does without. `tojson` leaves signs of HTML as they are, and what stands in a
`generation` block, by which trainers find the assistant's words, is text like any other.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as TokenizerModel

from tandem_runtime.domain.errors import BadRequest, ModelRefused
from tandem_runtime.domain.tokens import SamplingDefaults, TokenId
from tandem_runtime.model_folder import read_object, read_text


class FolderTokenizer:
    """The Tokenizer port over one model folder. Raises ModelRefused, naming file and field, if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._model = _read_model(folder / "tokenizer.json")
        self._settings = _settings(folder / "tokenizer_config.json")
        self._end_tokens = _end_tokens(folder)
        self._defaults = _defaults(folder / "generation_config.json")
        self._template = _compile_template(folder, self._settings)

    @property
    def end_tokens(self) -> frozenset[TokenId]:
        return self._end_tokens

    @property
    def defaults(self) -> SamplingDefaults:
        """What generation_config.json advises."""
        return self._defaults

    @property
    def size(self) -> int:
        """Ids below this have text; a model's padded rows beyond it have none."""
        return int(self._model.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> tuple[TokenId, ...]:
        """With the special tokens that the folder's post-processor adds, as for plain completion."""
        return self._ids(text, add_special_tokens=True)

    def spellings(self, text: str) -> tuple[tuple[TokenId, ...], ...]:
        """Two, or one where a space before the text changes nothing."""
        bare = text.lstrip(" ")
        ways = (self._ids(way, add_special_tokens=False) for way in (bare, f" {bare}"))
        return tuple(dict.fromkeys(way for way in ways if way))

    def encode_chat(self, messages: Sequence[dict[str, object]]) -> tuple[TokenId, ...]:
        """The template writes its own special tokens, so none are added."""
        if self._template is None:
            raise BadRequest(
                "this model has no chat template; use /v1/completions, or serve it with a `chat_template` in"
                " tokenizer_config.json",
                parameter="messages",
            )
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=True, **_special_tokens(self._settings)
            )
        except TemplateError as error:
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


def _template_source(folder: Path, settings: Mapping[str, object]) -> str | None:
    """A file of its own goes before the settings, and among several the one named default is taken."""
    beside, source = folder / "chat_template.jinja", settings.get("chat_template")
    if beside.is_file():
        return read_text(beside)
    if isinstance(source, list):
        source = next((each.get("template") for each in source if _is_default(each)), source)
    if source is not None and not isinstance(source, str):
        what = "chat_template must be a text, or a list in which one named default has it as template"
        raise ModelRefused(f"{folder / 'tokenizer_config.json'}: {what}")
    return source


def _is_default(template: object) -> bool:
    return isinstance(template, dict) and template.get("name") == "default"


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` is what stands in it."""

    tags = {"generation"}  # noqa: RUF012  # the library's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _compile_template(folder: Path, settings: Mapping[str, object]) -> Template | None:
    source = _template_source(folder, settings)
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
        return environment.from_string(source)
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
