"""Knows the work that drafters are measured on: prompts, and what is said to them, real text in all its parts.

Refuses to know tokens, models and costs. What is said is no model's answer: it is recited.

    edit     a file of Python's library with one name changed throughout and a comment at each function, after it
    quote    sentences of its docs, each with a few words before it, after those docs
    agent    replayed edits of this repository's history: the part of a file after a commit, after the part before it
             and the commit's message
    again    the edit of `edit` with another name, after the same file, by a tenant whose first edit was served before
    free     the docs of one module after those of another: little to look up, so nothing to gain
"""

import importlib
import inspect
import re
from dataclasses import dataclass

from benchmarks.edits import Edit, read_edits

EDITED = ("textwrap", "shlex", "fnmatch", "bisect", "string", "queue", "sched", "cmd")
QUOTED = ("json", "os.path", "shutil", "random", "statistics", "itertools", "functools", "re")
LINES = 90
REPETITIVE = ("edit", "quote", "agent")


@dataclass(frozen=True, slots=True)
class Case:
    """`counts`: else it only comes before one that does. `tenant`: who shares earlier outputs with whom."""

    prompt: str
    output: str
    counts: bool = True
    tenant: str | None = None


def edit(source: str, number: int) -> str:
    """The file with its most frequent longer name replaced, and a comment at each function."""
    names = re.findall(r"\b[a-z_]{4,}\b", source)
    common = max(set(names) - {"self", "return"}, key=lambda name: (names.count(name), name))
    renamed = re.sub(rf"\b{common}\b", f"{common}_{number}", source)
    return re.sub(r"(?m)^(\s*)(def .*:)$", rf"\1# revision {number}\n\1\2", renamed)


def work() -> dict[str, list[Case]]:
    """The cases by kind; each kind's sessions come one after the other, as a gateway has them."""
    sources = [_source(name) for name in EDITED]
    docs = [_docs(name) for name in QUOTED]
    asked = [f"{source}\n\nRename as discussed, and mark each function.\n\n" for source in sources]
    again: list[Case] = []
    for number, (prompt, source) in enumerate(zip(asked, sources, strict=True)):
        first, second = edit(source, 2), edit(source, 3)
        again += [Case(prompt, first, counts=False, tenant=str(number)), Case(prompt, second, tenant=str(number))]
    return {
        "edit": [Case(prompt, edit(source, 2)) for prompt, source in zip(asked, sources, strict=True)],
        "quote": [Case(f"{text}\n\nSummarise with quotes.\n\n", _quoted(text)) for text in docs],
        "agent": [_step(edit) for edit in read_edits()],
        "again": again,
        "free": [Case(docs[number - 1], text) for number, text in enumerate(docs)],
    }


def _step(edit: Edit) -> Case:
    """One step of an agent that changes a repository: it is shown a part of a file and says the part anew. The steps of
    a commit are one agent's, so that it may look in what it said before."""
    asked = f"{edit.path} is:\n\n{edit.before}\n{edit.subject}. {edit.path} becomes:\n\n"
    return Case(asked, edit.after, tenant=edit.commit)


def _source(name: str) -> str:
    return "".join(inspect.getsource(importlib.import_module(name)).splitlines(keepends=True)[:LINES])


def _docs(name: str) -> str:
    module = importlib.import_module(name)
    texts = [inspect.getdoc(member) for _, member in sorted(vars(module).items()) if callable(member)]
    return "\n\n".join(text for text in texts if text)[:4000]


def _quoted(text: str) -> str:
    sentences = [" ".join(one.split()) for one in re.findall(r"[A-Z][^.]{30,200}\.", text)]
    return " ".join(f'Point {number} says: "{one}"' for number, one in enumerate(sentences[::2], start=1))
