"""Knows the fixed prompts of `engine_cpu`, and what two texts have in common.

Refuses to know engines.

Ten prompts are edits or quotes: a module that shall come again with one name changed, a text that shall be repeated.
Ten are free: openings of texts of many kinds. They are completions, not chats, and were written for this; the copies
that the edits ask for are begun, since a model of 135 M parameters does not always see what is asked.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROMPTS = Path(__file__).with_name("engine_cpu_prompts.json")
KINDS = ("edit", "free")


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    kind: str
    ids: tuple[int, ...]


def prompts_digest() -> str:
    return hashlib.sha256(PROMPTS.read_bytes()).hexdigest()[:16]


def read_prompts(encode: Callable[[str], Sequence[int]]) -> list[Prompt]:
    """An edit, a free one, an edit, ...: so every stretch of them holds both kinds."""
    told = json.loads(PROMPTS.read_text())
    prompts = [Prompt(name, each["kind"], tuple(encode(each["text"]))) for name, each in told.items()]
    kinds = [[prompt for prompt in prompts if prompt.kind == kind] for kind in KINDS]
    return [prompt for pair in zip(*kinds, strict=True) for prompt in pair]


def first_difference(ids: Sequence[int], reference: Sequence[int]) -> int | None:
    """Where two texts part; None where they are equal."""
    for at, (one, other) in enumerate(zip(ids, reference, strict=False)):
        if one != other:
            return at
    return None if len(ids) == len(reference) else min(len(ids), len(reference))
