"""Knows edits of this repository's history: parts of files before and after a commit.

Refuses to know models and prompts. A clone may be shallow, so the edits stand in `benchmarks/edits.json`, and this
command makes it anew where the history is whole:

    python -m benchmarks.edits

Of each commit, newest first, the largest hunks of its Python files are taken, with 16 lines around what was changed:
such as remove and add something, three lines at least, and are no longer than 56 lines.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__)
EDITS = HERE.with_name("edits.json")
PATHS = (":/runtime/tandem_runtime/*.py", ":/operator/tandem_operator/*.py", ":!/*_pb2*.py")
AROUND, LEAST_CHANGED, MOST_LINES = 16, 3, 56
EDITS_OF_A_COMMIT, MOST_EDITS = 3, 40
HUNK = re.compile(r"^@@ .*?@@.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edit:
    """`commit`: its first digits; `subject`: its message."""

    commit: str
    subject: str
    path: str
    before: str
    after: str

    @property
    def lines(self) -> int:
        return max(self.before.count("\n"), self.after.count("\n"))


def read_edits() -> list[Edit]:
    return [Edit(**each) for each in json.loads(EDITS.read_text())]


def edits_of(commit: str, subject: str, diff: str) -> list[Edit]:
    """The hunks of a commit's `diff` that are edits of fitting size, of each file the longest, longest first."""
    found: dict[str, Edit] = {}
    for path, hunk in _hunks(diff):
        edit = _edit(commit, subject, path, hunk)
        if edit is not None and (path not in found or edit.lines > found[path].lines):
            found[path] = edit
    return sorted(found.values(), key=lambda edit: -edit.lines)[:EDITS_OF_A_COMMIT]


def _hunks(diff: str) -> Iterator[tuple[str, str]]:
    for part in diff.split("\ndiff --git ")[1:]:
        head, *hunks = HUNK.split(f"{part}\n")
        path = head.splitlines()[0].rpartition(" b/")[2]
        yield from ((path, hunk) for hunk in hunks)


def _edit(commit: str, subject: str, path: str, hunk: str) -> Edit | None:
    lines = [line for line in hunk.splitlines(keepends=True) if line[0] in " +-"]
    signs = [line[0] for line in lines]
    if len(lines) > MOST_LINES or not {"+", "-"} <= set(signs) or signs.count("+") + signs.count("-") < LEAST_CHANGED:
        return None
    before, after = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
    return Edit(commit, subject, path, before, after)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=HERE.parent, check=True, capture_output=True, text=True).stdout


def _commits() -> Iterator[tuple[str, str]]:
    for line in _git("log", "--no-merges", "--format=%h %s", "--diff-filter=M", "--", *PATHS).splitlines():
        commit, _, subject = line.partition(" ")
        yield commit, subject


def _history() -> Iterator[Edit]:
    for commit, subject in _commits():
        diff = _git("show", "--format=", "--diff-filter=M", "--no-color", f"-U{AROUND}", commit, "--", *PATHS)
        yield from edits_of(commit, subject, f"\n{diff}")


def main() -> None:
    if _git("rev-parse", "--is-shallow-repository").strip() == "true":
        raise SystemExit("this clone is shallow, so its history has no edits to take; fetch all: git fetch --unshallow")
    found = [edit for edit, _ in zip(_history(), range(MOST_EDITS), strict=False)]
    EDITS.write_text(json.dumps([asdict(edit) for edit in found], indent=1) + "\n")
    print(f"{len(found)} edits of {len({edit.commit for edit in found})} commits in {EDITS}")


if __name__ == "__main__":
    main()
