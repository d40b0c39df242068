"""Laying one piece of a pod template over another."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.overlay import overlaid

A, B, C, D = ({"key": name, "operator": "Exists"} for name in "abcd")


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 2}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
        (
            {"containers": [{"name": "engine", "image": "x", "tty": True}]},
            {"containers": [{"name": "side", "image": "y"}, {"name": "engine", "image": "z"}]},
            {"containers": [{"name": "engine", "image": "z", "tty": True}, {"name": "side", "image": "y"}]},
        ),
        (
            {"volumes": [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]},
            {"volumes": [{"name": "models", "hostPath": {"path": "/m"}}]},
            {"volumes": [{"name": "models", "hostPath": {"path": "/m"}}, {"name": "tmp", "emptyDir": {}}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {}}}, {"name": "B", "value": "2"}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "y"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "y"}, {"mountPath": "/b", "name": "y"}]},
        ),
        ({"tolerations": [A]}, {"tolerations": [A, B]}, {"tolerations": [A, B]}),
        (
            {"nodeSelectorTerms": [{"matchExpressions": [A]}, {"matchExpressions": [B]}]},
            {"nodeSelectorTerms": [{"matchExpressions": [C]}, {"matchFields": [D]}]},
            {
                "nodeSelectorTerms": [
                    {"matchExpressions": [A, C]},
                    {"matchExpressions": [A], "matchFields": [D]},
                    {"matchExpressions": [B, C]},
                    {"matchExpressions": [B], "matchFields": [D]},
                ]
            },
        ),
        ({}, {"nodeSelectorTerms": [{"matchExpressions": [A]}]}, {"nodeSelectorTerms": [{"matchExpressions": [A]}]}),
    ],
    ids=[
        "maps merge", "null removes", "a scalar replaces", "a map replaces a scalar", "a command is replaced",
        "containers merge by name", "a volume is replaced whole", "a variable is replaced whole",
        "a mount is replaced by its path", "tolerations grow", "both affinities must hold", "one affinity stays",
    ],
)  # fmt: skip
def test_an_overlay(base: Mapping[str, object], patch: Mapping[str, object], expected: Mapping[str, object]) -> None:
    assert overlaid(base, patch) == expected


KEYS = st.sampled_from(["a", "b", "containers", "tolerations"])
LEAVES = st.integers(0, 3) | st.lists(st.fixed_dictionaries({"name": st.sampled_from("xy")}), max_size=2, unique_by=str)
OBJECTS = st.dictionaries(KEYS, LEAVES | st.dictionaries(KEYS, LEAVES, max_size=2), max_size=3)


@given(OBJECTS, OBJECTS)
def test_laying_the_same_over_again_changes_nothing(base: dict[str, object], patch: dict[str, object]) -> None:
    once = overlaid(base, patch)
    assert overlaid(once, patch) == once


@given(OBJECTS)
def test_nothing_laid_over_is_the_same(base: dict[str, object]) -> None:
    assert overlaid(base, {}) == base
