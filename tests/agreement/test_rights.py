"""The rights that the operator says it needs are those that the chart grants, verb by verb."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tandem_operator.rights import AT_HOME, IN_WATCHED, OVER_ALL, Right

TEMPLATES = Path(__file__).parents[2] / "charts" / "tandem" / "templates"


def rights(rules: list[dict[str, Any]]) -> set[Right]:
    return {
        Right(group, resource, verb, name)
        for rule in rules
        for group, resource, verb, name in product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )
    }


def plain(template: str) -> str:
    """The template without its actions, where every condition holds."""
    return re.sub(r"\{\{.*?\}\}", "x", re.sub(r"(?m)^\s*(- )?\{\{.*?\}\}\s*$", "", template))


def test_what_is_granted_where_the_operator_watches_is_what_it_needs() -> None:
    text = (TEMPLATES / "_names.tpl").read_text()
    (block,) = re.findall(r'define "tandem.rules" -}}\n(.*?)\{\{- end -}}', text, re.DOTALL)
    assert rights(yaml.safe_load(block)) == set(IN_WATCHED)


def test_what_is_granted_at_home_and_in_the_whole_cluster_is_what_it_needs() -> None:
    documents = yaml.safe_load_all(plain((TEMPLATES / "rights.yaml").read_text()))
    granted = [rule for document in documents if document is not None for rule in document.get("rules") or []]
    assert rights(granted) == {*AT_HOME, *OVER_ALL}
