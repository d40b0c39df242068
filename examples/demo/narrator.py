"""Knows how the demo speaks: chapters, times, figures. Refuses to know what happens in them."""

import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

Condition = Callable[[], str | None]
"""None: come true; else what it waits for, in a few words."""

LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 900.0
"""Far beyond what any chapter takes: a busy machine tells the same story, slower."""
WORD_SECONDS = 5.0
"""How often a long wait says what it waits for."""


class StoryError(Exception):
    """The story did not go as told; the message says where it stood."""


@dataclass(slots=True)
class Narrator:
    """Prints what happens with the seconds since the start."""

    out: TextIO = sys.stdout
    began: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        stamp = f"[{self.elapsed():6.1f} s] "
        body = textwrap.indent(textwrap.fill(text, 108), " " * len(stamp)).lstrip()
        print(stamp + body, file=self.out, flush=True)

    def chapter(self, letter: str, title: str) -> None:
        print(f"\n--- {letter}) {title} ---", file=self.out, flush=True)

    def show(self, block: str) -> None:
        print(textwrap.indent(block.rstrip("\n"), " " * 11), file=self.out, flush=True)

    def wait(self, what: str, condition: Condition) -> float:
        """Until `condition` comes true; says now and then what is missing. Returns the seconds it took."""
        started = told = time.monotonic()
        while (missing := condition()) is not None:
            now = time.monotonic()
            if now - started > PATIENCE_SECONDS:
                raise StoryError(f"{what}: not within {PATIENCE_SECONDS:.0f} s; waiting for {missing}")
            if now - told > WORD_SECONDS:
                told = now
                self.say(f"... {what}: {missing}")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - started
