"""Knows the shapes in which a request brings tools and earlier calls, and the grammars that hold calls to schemas.

Refuses to know how models write calls (`domain.tool_calls`), and how one is told in a reply.

A call that is forced (`tool_choice` required, or a named tool) is held to the JSON schema of its tool's parameters: it
is whole JSON that fits, unless the length ends it. Without force the model decides, and writes calls as it likes; but
where a tool is strict, what opens a call is a call: of a strict tool with arguments that fit, of another one with any
object.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import Grammar, GrammarKind
from tandem_runtime.domain.tool_calls import FORMS, ToolFormat
from tandem_runtime.grammar import refuse_bad_grammar

MOST_TOOLS = 128
_DEFINITIONS = ("$defs", "definitions")

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


def _json_object(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("arguments are a JSON object, written as a text")
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FunctionDefinition(_Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(_Strict):
    type: Literal["function"]
    function: FunctionDefinition

    def as_told(self) -> dict[str, object]:
        """As a chat template takes it."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


class FunctionName(_Strict):
    name: Name


class ToolChoice(_Strict):
    """`tool_choice`: one of three words, or the tool that has to be called."""

    type: Literal["none", "auto", "required", "function"]
    function: FunctionName | None = None

    @model_validator(mode="after")
    def _function_where_it_is_meant(self) -> Self:
        if (self.type == "function") != (self.function is not None):
            raise ValueError('name a tool as {"type": "function", "function": {"name": "..."}}')
        return self

    @property
    def forced(self) -> bool:
        return self.type in ("required", "function")

    def allows(self, name: str) -> bool:
        return self.function is None or self.function.name == name


FREE = ToolChoice(type="auto")


def choice_of_word(value: object) -> object:
    """The words have the object's shape from here on."""
    if isinstance(value, str):
        return {"type": value}
    if isinstance(value, dict) and value.get("type") != "function":
        raise ValueError('none, auto and required are texts; an object is {"type": "function", "function": {...}}')
    return value


class MadeCall(_Strict):
    name: str
    arguments: Annotated[str, AfterValidator(_json_object)]


class ToolCall(_Strict):
    """An earlier call, as the assistant's message holds it."""

    id: str
    type: Literal["function"]
    function: MadeCall

    def as_told(self) -> dict[str, object]:
        """As chat templates take it: with the arguments as an object."""
        return {
            "id": self.id,
            "type": self.type,
            "function": {"name": self.function.name, "arguments": json.loads(self.function.arguments)},
        }


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the calls of an answer are read: in which format, of which tools, how many are told. `forced`: the answer is
    a call, and what opens it stands in the prompt."""

    format: ToolFormat
    names: frozenset[str]
    forced: bool = False
    most: int | None = None

    @property
    def prelude(self) -> str:
        """What the prompt ends with."""
        return FORMS[self.format].prelude if self.forced else ""


def refuse_bad_tools(tools: Sequence[Tool]) -> None:
    """Raises BadRequest for tools of one name, and parameters that are no object."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path, function = f"tools[{index}].function", tool.function
        if function.name in names:
            raise BadRequest(
                f"{path}.name is {function.name!r}, as that of another tool: rename one", parameter=f"{path}.name"
            )
        names.add(function.name)
        kind = function.parameters.get("type", "object")
        if kind != "object":
            raise BadRequest(
                f"{path}.parameters.type is {kind!r}; parameters are an object", parameter=f"{path}.parameters"
            )


def call_grammar(tools: Mapping[int, Tool], format: ToolFormat) -> Grammar:
    """One call of one of these tools, by their numbers in the request. Raises BadRequest naming what no call can keep
    to."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(_call_schema(tools, format, held=frozenset(tools))))


def free_calls_grammar(
    tools: Sequence[Tool], format: ToolFormat, *, most: int | None = None
) -> tuple[Grammar | None, str]:
    """Calls, or none, of strict tools and others, or with `most` 1 one at most; and the path of what asks for that.
    None: no tool is strict. Raises BadRequest as `call_grammar`."""
    strict = [index for index, tool in enumerate(tools) if tool.function.strict]
    if not strict:
        return None, ""
    schema = _call_schema(dict(enumerate(tools)), format, held=frozenset(strict))
    one_at_most = {} if most is None else {"parallel": False}
    text = json.dumps({"format": format, "call": schema, **one_at_most})
    return Grammar(GrammarKind.CALLS, text), f"tools[{strict[0]}].function.strict"


def _call_schema(tools: Mapping[int, Tool], format: ToolFormat, *, held: Set[int]) -> dict[str, object]:
    """That of one call: of those of `held` with arguments that fit, of others with any object."""
    definitions: dict[str, dict[str, object]] = {}
    calls = []
    for index, tool in tools.items():
        path = f"tools[{index}].function.parameters"
        parameters = {"type": "object", **(tool.function.parameters if index in held else {})}
        refuse_bad_grammar(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(parameters)), parameter=path)
        _lift_definitions(parameters, definitions, path)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, FORMS[format].arguments: parameters},
                "required": ["name", FORMS[format].arguments],
                "additionalProperties": False,
            }
        )
    return {**definitions, **(calls[0] if len(calls) == 1 else {"anyOf": calls})}


def _lift_definitions(parameters: dict[str, Any], lifted: dict[str, dict[str, object]], path: str) -> None:
    """References lead from the root of a schema, which will be another: have their goals there too."""
    for reference in _references(parameters):
        if not reference.startswith(tuple(f"#/{table}/" for table in _DEFINITIONS)):
            raise BadRequest(
                f"{path} refers to {reference!r}; in a call that is held to it, references lead to $defs: put it there",
                parameter=path,
            )
    for table in _DEFINITIONS:
        schemas = parameters.pop(table, None)
        for name, schema in schemas.items() if isinstance(schemas, dict) else ():
            if lifted.setdefault(table, {}).setdefault(name, schema) != schema:
                raise BadRequest(
                    f"{path}.{table}.{name} differs from that of another tool; where calls are held to schemas they"
                    " share names: rename one",
                    parameter=path,
                )


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str):
            yield reference
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)
