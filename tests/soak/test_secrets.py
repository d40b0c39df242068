"""What a soak finds of prompts and answers where they do not belong."""

from pathlib import Path

import pytest
from tests.seams.tokenizer_folders import byte_level_folder
from tests.soak.asking import MARK, Part, Said
from tests.soak.secrets import leaks, secrets_of

from tandem_runtime.tokenizer import FolderTokenizer

ANSWER = 'a fox, "quick"\nand brown'


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (f"refused prompt={MARK} the fox", "a prompt"),
        (f"emitted text={ANSWER!r}", f"the answer {ANSWER!r}"),
        (f"emitted {ANSWER}", f"the answer {ANSWER!r}"),
    ],
)
def test_a_log_that_quotes_a_prompt_or_an_answer_is_found(line: str, what: str, tmp_path: Path) -> None:
    secrets = secrets_of({"one": Said({0: Part(ANSWER)})}, FolderTokenizer(byte_level_folder(tmp_path)))
    assert list(leaks({"t1.log": f"started\n{line}\nended", "d1.log": "a fox"}, secrets)) == [f"t1.log: {what}"]


def test_a_log_that_quotes_the_ids_of_a_prompt_is_found(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level_folder(tmp_path))
    secrets = secrets_of({"one": Said({0: Part(ANSWER)})}, tokenizer)
    told = f"ids={list(tokenizer.encode(f'{MARK} the fox'))}"
    assert list(leaks({"t1.log": told}, secrets)) == ["t1.log: ids of a prompt"]
