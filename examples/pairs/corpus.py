"""The text the pairs learn from: the prose of Python's own documentation, and made-up weather bulletins.

Refuses to know tokens and models.

Two kinds of traffic, chosen so that a draft can know one and not the other:

* ``prose``: paragraphs of English from the language reference in ``pydoc_data.topics`` and from the docstrings of the
  standard library of the running interpreter. Every machine with Python has them, under the PSF licence.
* ``other``: weather bulletins in capitals, telegraph style, written by a seeded grammar. A target trained on both knows
  them well; a draft that has seen prose only has never met one of their words.
"""

import ast
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

SHORTEST_PARAGRAPH_CHARACTERS = 70
SHORTEST_DOCUMENT_CHARACTERS = 600
HELD_OUT_EVERY = 20  # one document in twenty is never trained on; the prompts come from there
SKIPPED_FOLDERS = frozenset({"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings"})

_FIELD_OR_LIST = re.compile(r"^\s*([-*+>|.=:@%$#]|\d+[.)]|\w+\s*::=|\.\. )")
_PLAIN_CHARACTERS = re.compile(r"[A-Za-z ,.;'\"()-]")
_MARKUP = re.compile(r"[`*|]+|:[a-z]+:(?=\w)")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents of one kind, those to train on apart from those held out."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]


def build_prose() -> Corpus:
    """The documentation prose of the running interpreter, in a fixed order."""
    documents = tuple(_documents(dict.fromkeys(_paragraphs(_sources()))))
    kept = tuple(text for index, text in enumerate(documents) if index % HELD_OUT_EVERY)
    return Corpus(training=kept, held_out=documents[::HELD_OUT_EVERY])


def build_bulletins(count: int, *, held_out: int, seed: int) -> Corpus:
    """``count`` documents of weather bulletins and ``held_out`` more; the same seed writes the same text."""
    chance = random.Random(seed)
    documents = tuple("\n".join(_bulletin(chance) for _ in range(4)) for _ in range(count + held_out))
    return Corpus(training=documents[:count], held_out=documents[count:])


def _sources() -> Iterator[str]:
    for name in sorted(topics):
        yield topics[name]
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not SKIPPED_FOLDERS & set(path.relative_to(library).parts):
            yield from _docstrings(path)


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return  # a few files of the library are kept broken, or in old encodings, on purpose
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _paragraphs(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        for block in re.split(r"\n\s*\n", source):
            text = " ".join(_MARKUP.sub("", block).split())
            if not _FIELD_OR_LIST.match(block) and _is_prose(text):
                yield text


def _is_prose(text: str) -> bool:
    """Whole sentences in plain letters: no code, no tables, no grammar rules."""
    if len(text) < SHORTEST_PARAGRAPH_CHARACTERS or not text.isascii() or not text[0].isupper() or text[-1] not in ".:":
        return False
    plain = len(_PLAIN_CHARACTERS.findall(text))
    return plain >= 0.96 * len(text) and text.count(" ") >= len(text) / 8


def _documents(paragraphs: Iterable[str]) -> Iterator[str]:
    """Neighbouring paragraphs joined until a document is long enough to have a middle."""
    gathered: list[str] = []
    for paragraph in paragraphs:
        gathered.append(paragraph)
        if sum(map(len, gathered)) >= SHORTEST_DOCUMENT_CHARACTERS:
            yield "\n".join(gathered)
            gathered = []


_STATIONS = ("HARBOUR POINT", "SIGNAL HILL", "GREYWATER", "NORTH FERRY", "KESTREL ISLAND", "OLD LIGHTHOUSE")
_WINDS = ("NORTH EAST", "SOUTH WEST", "VARIABLE", "WESTERLY", "BACKING SOUTH")
_FORCES = ("LIGHT", "FRESH", "STRONG", "GALE FORCE")
_SKIES = ("OVERCAST", "BROKEN CLOUD", "CLEAR", "FOG PATCHES", "SLEET SHOWERS")
_SEAS = ("SMOOTH", "SLIGHT", "MODERATE", "ROUGH", "HEAVY SWELL")
_GLASS = ("RISING SLOWLY", "FALLING QUICKLY", "STEADY")


def _bulletin(chance: random.Random) -> str:
    wind, force = chance.choice(_WINDS), chance.choice(_FORCES)
    return (
        f"STATION {chance.choice(_STATIONS)} REPORTS WIND {wind} {force} STOP SKY {chance.choice(_SKIES)} STOP "
        f"SEA STATE {chance.choice(_SEAS)} STOP BAROMETER {chance.choice(_GLASS)} STOP "
        "VESSELS ADVISED ACCORDINGLY STOP MESSAGE ENDS"
    )
