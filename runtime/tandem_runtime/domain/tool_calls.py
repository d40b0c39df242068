"""Knows how models write calls of tools into their answers, and reads such calls out of a text that still grows.

Refuses to know what tools do, chat templates, and how a client is told.

Three forms are in use. *Hermes* (Qwen, SmolLM, Hermes): `<tool_call>` JSON `</tool_call>`, after words or none. *Llama*
(3.1 and later): the whole answer is JSON. *Mistral*: `[TOOL_CALLS]` and a JSON array. The JSON of a call is an object
with `name` and `arguments`, which Llama calls `parameters`.

Nothing is lost and nothing is taken back. Text is held while it may still become a call; what does not become one, as
its name is none of the tools or it is no such object, is text like any other, marks included. Once name and the
beginning of the arguments are there it is a call, and the arguments are told as they come, letter by letter as the
model wrote them. So what stands behind the beginning cannot unmake a call, and of arguments given twice the first
count: an answer told whole is read by the same rule, since it must not say anything else than the same answer streamed.
White space before and behind a call belongs to the form and is left out.
"""

import json
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

ARGUMENTS: Final = ("arguments", "parameters")
KEYS: Final = frozenset({"name", "type", "id", *ARGUMENTS})
"""An object with another key is no call."""
NO_ARGUMENTS: Final = "{}"
_SPACE: Final = " \t\r\n"
_LETTERS_AT_ONCE: Final = 1024
"""What is held is copied at each step."""


class ToolFormat(StrEnum):
    """How a family of models writes calls."""

    HERMES = "Hermes"
    LLAMA = "Llama"
    MISTRAL = "Mistral"


@dataclass(frozen=True, slots=True)
class Form:
    """The letters of one format: what opens calls (nothing: the answer's beginning does) and closes them, what stands
    between, what the arguments are called, and what a model says before a call that it has to make."""

    opening: str
    closing: str
    between: str
    arguments: str
    prelude: str


FORMS: Final = {
    ToolFormat.HERMES: Form("<tool_call>", "</tool_call>", _SPACE, "arguments", "<tool_call>\n"),
    ToolFormat.LLAMA: Form("", "", f"{_SPACE};", "parameters", ""),
    ToolFormat.MISTRAL: Form("[TOOL_CALLS]", "", f"{_SPACE}[,]", "arguments", "[TOOL_CALLS] ["),
}


@dataclass(frozen=True, slots=True)
class Said:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The call of this number, from 0, has begun."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """Its arguments go on with `text`."""

    call: int
    text: str


Event: TypeAlias = Said | Called | Argued


class _Place(StrEnum):
    IN_TEXT = "in text"
    BETWEEN_CALLS = "between calls"
    IN_OBJECT = "in an object"


class CallReader:
    """Reads one answer. `names` are those of the tools. `inside`: the prelude stands before the answer already. Calls
    beyond `most` are read and not told."""

    def __init__(self, format: ToolFormat, names: Set[str], *, inside: bool = False, most: int | None = None) -> None:
        self._form = FORMS[format]
        self._names = names
        self._most = most
        begins_inside = inside or not self._form.opening
        self._place = _Place.BETWEEN_CALLS if begins_inside else _Place.IN_TEXT
        self._held = ""
        """Read, and not yet told or understood."""
        self._taken = ""
        """What opened calls, to be told as text if none follows."""
        self._object = _Object()
        self._calls = 0
        self._sent: int | None = None
        """How much of the arguments of this object was told; absent while it is no call."""
        self._behind_call = False
        self._events: list[Event] = []

    @property
    def calls(self) -> int:
        """How many were told."""
        return self._calls if self._most is None else min(self._calls, self._most)

    @property
    def is_cut(self) -> bool:
        """Whether a call that was told is not whole, as far as the answer goes."""
        return self._is_call and self._calls == self.calls

    def feed(self, text: str) -> list[Event]:
        for start in range(0, len(text), _LETTERS_AT_ONCE):
            self._held += text[start : start + _LETTERS_AT_ONCE]
            while self._step():
                pass
        return self._told()

    def end(self) -> list[Event]:
        """The answer is over."""
        match self._place:
            case _Place.IN_TEXT:
                self._say(self._held)
            case _Place.BETWEEN_CALLS:
                self._say(self._taken + self._held if self._taken else "")
            case _Place.IN_OBJECT:
                self._say("" if self._is_call else self._taken + self._object.text)
        self._held = ""
        return self._told()

    @property
    def _is_call(self) -> bool:
        return self._sent is not None

    def _step(self) -> bool:
        """Understand some of what is held; False where more has to come."""
        match self._place:
            case _Place.IN_TEXT:
                return self._read_text()
            case _Place.BETWEEN_CALLS:
                return self._read_between()
            case _Place.IN_OBJECT:
                return self._read_object()

    def _read_text(self) -> bool:
        opening = self._form.opening
        at = self._held.find(opening) if opening else -1
        if at < 0:
            certain = len(self._held) - _may_open(self._held, opening)
            self._say(self._held[:certain])
            self._held = self._held[certain:]
            return False
        words = self._held[:at].rstrip()
        self._say(words)
        self._taken = self._held[len(words) : at + len(opening)]
        self._held = self._held[at + len(opening) :]
        self._place = _Place.BETWEEN_CALLS
        return True

    def _read_between(self) -> bool:
        rest, closing = self._held.lstrip(self._form.between), self._form.closing
        if self._taken or not self._calls:
            self._taken += self._held[: len(self._held) - len(rest)]
        self._held = rest
        if not rest:
            return False
        if rest.startswith("{"):
            self._object, self._place = _Object(), _Place.IN_OBJECT
            return True
        if closing and closing.startswith(rest[: len(closing)]) and not self._taken:
            self._held = rest.removeprefix(closing)
            self._place = _Place.IN_TEXT if len(rest) >= len(closing) else self._place
            return len(rest) >= len(closing)
        self._back_to_text(self._taken)
        return True

    def _read_object(self) -> bool:
        self._held = self._held[self._object.feed(self._held) :]
        if not self._is_call and not self._decide():
            self._back_to_text(self._taken + self._object.text)
            return True
        if self._is_call:
            self._argue()
        if not self._object.closed:
            return bool(self._held)
        self._sent, self._behind_call = None, True
        self._place = _Place.BETWEEN_CALLS
        return True

    def _decide(self) -> bool:
        """Begin a call if the object is known to be one; False if it is known to be none."""
        name, arguments = self._object.value("name"), self._object.arguments
        if not self._object.keys <= KEYS or (name is None and self._object.closed):
            return False
        if name is None or (arguments is None and not self._object.closed):
            return True
        if name not in {json.dumps(each) for each in self._names} or (arguments or "{")[0] != "{":
            return False
        self._sent, self._taken = 0, ""
        self._tell(Called(self._calls, json.loads(name)))
        self._calls += 1
        return True

    def _argue(self) -> None:
        arguments = NO_ARGUMENTS if self._object.arguments is None else self._object.arguments
        assert self._sent is not None, "it is a call"
        if more := arguments[self._sent :]:
            self._tell(Argued(self._calls - 1, more))
            self._sent += len(more)

    def _back_to_text(self, text: str) -> None:
        self._held = text + self._held
        self._place, self._taken, self._sent = _Place.IN_TEXT, "", None
        opening = self._form.opening
        if opening and text.lstrip().startswith(opening):  # it would be found again
            certain = text.find(opening) + len(opening)
            self._say(self._held[:certain])
            self._held = self._held[certain:]

    def _say(self, text: str) -> None:
        words = text.lstrip() if self._behind_call else text
        if words:
            self._behind_call = False
            self._events.append(Said(words))

    def _tell(self, event: Called | Argued) -> None:
        if self._most is None or event.call < self._most:
            self._events.append(event)

    def _told(self) -> list[Event]:
        told, self._events = self._events, []
        return told


def _may_open(text: str, opening: str) -> int:
    """How many letters at the end of `text` may belong to what opens a call, white space before it included."""
    if not opening:
        return 0
    sizes = range(min(len(opening) - 1, len(text)), 0, -1)
    part = next((size for size in sizes if opening.startswith(text[-size:])), 0)
    return len(text) - len(text[: len(text) - part].rstrip())


class _Object:
    """Follows the text of a JSON object, as far as it has come, and knows where the values of its own keys stand."""

    def __init__(self) -> None:
        self.text = ""
        self.closed = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._key: str | None = None
        self._start: int | None = None
        """Of the key or value that is read."""
        self._has_colon = False
        self._spans: dict[str, tuple[int, int]] = {}

    def feed(self, text: str) -> int:
        """Read up to where a decision may fall, which is outside strings and what is nested; how many letters."""
        before = len(self.text)
        self.text += text
        for at in range(before, len(self.text)):
            self._read(at, self.text[at])
            if self._depth <= 1 and not self._in_string:
                self.closed, self.text = self._depth == 0, self.text[: at + 1]
                break
        return len(self.text) - before

    def value(self, key: str) -> str | None:
        """The text of a value that is complete."""
        return self.text[slice(*self._spans[key])] if key in self._spans else None

    @property
    def keys(self) -> set[str]:
        """Those that were read so far."""
        return {*self._spans, *(() if self._key is None else (self._key,))}

    @property
    def arguments(self) -> str | None:
        """Their text, also while they are read; the first that are not `null`."""
        wholes = (self.value(key) for key in self._spans if key in ARGUMENTS)
        for whole in wholes:
            if whole != "null":
                return whole
        is_open = self._key in ARGUMENTS and self._has_colon and self._start is not None
        return self.text[self._start :] if is_open and self.text[self._start or 0] != "n" else None

    def _read(self, at: int, letter: str) -> None:
        if self._in_string:
            self._read_in_string(at, letter)
        elif letter in '"{[':
            if self._depth == 1:
                self._begin(at)
            self._in_string = letter == '"'
            self._depth += letter != '"'
        elif letter in "}]":
            self._depth -= 1
            self._end_container(at)
        elif self._depth == 1:
            self._read_at_top(at, letter)

    def _read_in_string(self, at: int, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._in_string = False
            if self._depth == 1:
                self._end_string(at)

    def _read_at_top(self, at: int, letter: str) -> None:
        if letter == ":":
            self._has_colon = True
        elif letter == ",":
            self._end_pair(at)
        elif letter not in _SPACE:
            self._begin(at)

    def _begin(self, at: int) -> None:
        self._start = at if self._start is None else self._start

    def _end_string(self, at: int) -> None:
        if self._has_colon:
            self._keep(at + 1)
        else:
            self._key, self._start = self.text[(self._start or 0) + 1 : at], None

    def _end_container(self, at: int) -> None:
        if self._depth == 1:
            self._keep(at + 1)
        elif self._depth == 0:
            self._end_pair(at)

    def _end_pair(self, at: int) -> None:
        """A number or a word ends only here."""
        self._keep(at)
        self._key, self._start, self._has_colon = None, None, False

    def _keep(self, end: int) -> None:
        if self._key is not None and self._has_colon and self._start is not None:
            self._spans.setdefault(self._key, (self._start, len(self.text[:end].rstrip())))
