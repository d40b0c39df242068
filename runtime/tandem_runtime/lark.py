"""Knows how an answer in which a model may call tools, or leave it, is one grammar: in Lark, as llguidance reads it.

Refuses to know requests and sessions, and how a grammar is followed.

Text is free until something opens a call, and that is found by a lazy lexeme: it ends with the first letter at which it
can. From there on one call after the other is held to a schema, up to what closes it. In the form that has calls among
words text is then free again; in the others the answer is over, and so it is in each where only one call may be made.

Special tokens are no text. One may stand for what opens or closes a call; the others may stand in free text, as they
would without a grammar, but for one place: within the letters that open a call. Whoever reads the answer does not see
them, and would see a call there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.tool_calls import FORMS, Form, ToolFormat

_SPACE = r" \t\r\n"
_BLANKS = 8
"""At most so much white space stands at each place around a call: a model could say nothing else for ever."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The special tokens of a vocabulary, but for those that end an output: `named` stand for texts of a form."""

    named: Mapping[str, TokenId] = field(default_factory=dict)
    others: Sequence[TokenId] = ()


def lark_of_calls(format: ToolFormat, schema: str, marks: Marks, *, parallel: bool = True) -> str:
    """Answers with any number of calls, none included, or with one at most; `schema` (JSON) is that of one call."""
    form = FORMS[format]
    several = _rules(format, form, marks) if parallel else _rules_of_one(format, form, marks)
    rules = [*several, *_openings(form, marks), f"one: %json {schema}"]
    terminals = ["ANY: /(?s:.*)/", f"BLANK: /[{_SPACE}{';' if ';' in form.between else ''}]{{0,{_BLANKS}}}/"]
    return "\n".join(["%llguidance {}", *rules, *terminals, ""])


def _rules(format: ToolFormat, form: Form, marks: Marks) -> list[str]:
    has_marks = bool(marks.others)
    match format:
        case ToolFormat.HERMES:
            return [
                f"start: {'(call | mark)*' if has_marks else 'call*'} ANY",
                f"call: opened BLANK one BLANK {_written(form.closing, marks)}",
            ]
        case ToolFormat.MISTRAL:
            return [
                f"start: {'mark* ' if has_marks else ''}(ANY | call)",
                'call: opened BLANK "[" BLANK one (BLANK "," BLANK one)* BLANK "]" BLANK',
            ]
        case ToolFormat.LLAMA:
            return [*_words_or_call(marks), "call: BLANK one (BLANK one)* BLANK"]


def _rules_of_one(format: ToolFormat, form: Form, marks: Marks) -> list[str]:
    """Behind a call the answer is over, in every form: of words that were free again, what opens calls had to be kept
    out, which a model that wants to call again would only talk around."""
    first = f"start: {'mark* ' if marks.others else ''}(ANY | call)"
    match format:
        case ToolFormat.HERMES:
            return [first, f"call: opened BLANK one BLANK {_written(form.closing, marks)} BLANK"]
        case ToolFormat.MISTRAL:
            return [first, 'call: opened BLANK "[" BLANK one BLANK "]" BLANK']
        case ToolFormat.LLAMA:
            return [*_words_or_call(marks), "call: BLANK one BLANK"]


def _words_or_call(marks: Marks) -> list[str]:
    """Of the form in which an answer is words or calls, as its first letter says."""
    special = _one_of(marks.others) if marks.others else ""
    return [
        f"start: {f'{special}* ' if special else ''}(BLANK | words | call)",
        f"words: WORDS{f' ({special} ANY)*' if special else ''}",
        f"WORDS: /[{_SPACE};]*[^{{{_SPACE};](?s:.*)/",
    ]


def _openings(form: Form, marks: Marks) -> list[str]:
    """What opens a call: the first time that its letters stand there, or its token. And what passes for none."""
    if not form.opening:
        return []
    token = marks.named.get(form.opening)
    rules = [
        "opened: spelt" if token is None else f"opened: spelt | ANY {_one_of([token])}",
        f"spelt[lazy]: ANY {json.dumps(form.opening)}",
    ]
    if marks.others:
        begun = "|".join(re.escape(form.opening[:size]) for size in range(1, len(form.opening)))
        rules += [f"mark: UNOPENED {_one_of(marks.others)}", f"UNOPENED: /(?s:.*)/ & ~/(?s:.*)({begun})/"]
    return rules


def _written(text: str, marks: Marks) -> str:
    token = marks.named.get(text)
    return json.dumps(text) if token is None else f"({json.dumps(text)} | {_one_of([token])})"


def _one_of(tokens: Sequence[TokenId]) -> str:
    """Any one of these tokens: 3, 4, 5 and 9 are <[3-5,9]>."""
    ordered = sorted(tokens)
    breaks = [at for at, (one, next_one) in enumerate(pairwise(ordered), 1) if next_one != one + 1]
    runs = [ordered[start:end] for start, end in pairwise([0, *breaks, len(ordered)])]
    return f"<[{','.join(str(run[0]) if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]>"
