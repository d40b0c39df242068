"""Knows the two ways in which a request asks for a grammar, and which grammar each asks for.

Refuses to know how a grammar is followed.

`response_format` is OpenAI's, on both endpoints. `structured_outputs` is vLLM's; its `structural_tag` is written in
another library's dialect and is refused by name. A schema is always followed to the letter: `strict` has no effect.
"""

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandem_runtime.domain.tokens import Grammar, GrammarKind

ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
MOST_CHOICES = 256
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")


class NamedSchema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    description: str | None = None
    body: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_meant(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("`json_schema` belongs to type json_schema, and to no other")
        return self

    def grammar(self) -> Grammar | None:
        match self.type:
            case "text":
                return None
            case "json_object":
                return ANY_OBJECT
            case "json_schema":
                assert self.json_schema is not None, "validated"
                return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(self.json_schema.body))


class StructuredOutputs(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    document: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1, max_length=MOST_CHOICES)
    lark: str | None = Field(default=None, alias="grammar")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        texts = (self.document, self.regex, self.choice, self.lark)
        if sum(text is not None for text in texts) + bool(self.json_object) != 1:
            raise ValueError("exactly one of json, json_object, regex, choice and grammar is needed")
        return self

    @property
    def field(self) -> str:
        """The name of the one that is given."""
        if self.document is not None:
            return "json"
        if self.json_object:
            return "json_object"
        if self.lark is not None:
            return "grammar"
        return "choice" if self.choice is not None else "regex"

    def grammar(self) -> Grammar:
        if self.document is not None:
            text = self.document if isinstance(self.document, str) else json.dumps(self.document)
            return Grammar(GrammarKind.JSON_SCHEMA, text)
        if self.json_object:
            return ANY_OBJECT
        if self.lark is not None:
            return Grammar(GrammarKind.LARK, self.lark)
        if self.choice is not None:
            return Grammar(GrammarKind.REGEX, "|".join(map(_literally, self.choice)))
        assert self.regex is not None, "validated"
        return Grammar(GrammarKind.REGEX, self.regex)


def _literally(text: str) -> str:
    """A regular expression that matches `text` alone."""
    return "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in text)
