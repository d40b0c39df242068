"""Knows what of requests and answers callers alone may read, and finds it in what roles log and tell of themselves.

Refuses to know sockets and processes.
"""

from collections.abc import Iterator, Mapping

from tests.soak.asking import MARK, Said

from tandem_runtime.tokenizer import FolderTokenizer

LEAST_LETTERS = 12
"""Of an answer that could stand in a log by no chance."""


def secrets_of(said: Mapping[str, Said], tokenizer: FolderTokenizer) -> dict[str, str]:
    """What each is, and how it would be read."""
    ids = [str(token) for token in tokenizer.continuation(MARK)]
    assert len(ids) > 1, "the mark is one token, whose number says nothing"
    answers = {part.text for each in said.values() for part in each.parts.values() if len(part.text) >= LEAST_LETTERS}
    assert answers, "no answer is long enough to be known again"
    return {"a prompt": MARK, "ids of a prompt": ", ".join(ids)} | {f"the answer {text!r}": text for text in answers}


def leaks(told: Mapping[str, str], secrets: Mapping[str, str]) -> Iterator[str]:
    """Of what is `told`, by its place."""
    for place, text in told.items():
        for what, secret in secrets.items():
            if secret in text or repr(secret)[1:-1] in text:
                yield f"{place}: {what}"
