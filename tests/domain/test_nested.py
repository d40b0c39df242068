"""Reading at a path of nested JSON: what is absent and what is of another type read the same."""

import pytest

from tandem_operator.domain.nested import held, items, mapping, number, text, texts

BODY = {"spec": {"replicas": 2, "names": ["a", {"name": "b"}], "labels": {"role": "draft", "count": 1}}}


def test_what_lies_at_a_path_is_read() -> None:
    assert held(BODY, "spec", "names") == ["a", {"name": "b"}]
    assert number(BODY, "spec", "replicas") == 2
    assert text(BODY, "spec", "labels", "role") == "draft"
    assert mapping(BODY, "spec", "labels") == {"role": "draft", "count": 1}
    assert texts(BODY, "spec", "labels") == {"role": "draft"}
    assert items(BODY, "spec", "names") == ({"name": "b"},)


@pytest.mark.parametrize("body", [None, "text", [], {}, {"spec": None}, {"spec": {"at": []}}, {"spec": {"at": True}}])
def test_a_damaged_body_reads_like_one_that_says_nothing(body: object) -> None:
    found = (
        text(body, "spec", "at"),
        mapping(body, "spec", "at"),
        texts(body, "spec", "at"),
        items(body, "spec", "at"),
    )
    assert found == ("", {}, {}, ())
    assert held(body, "spec", "at", "deeper") is None
    assert number(body, "spec", "at", "deeper", default=7) == 7
