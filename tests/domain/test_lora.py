"""Adapters in the resource: what makes another revision of them, and which lists are refused."""

from typing import Any

import pytest
from tests.domain.simulated_specs import BASE, TERMS, changed

from tandem_operator.domain import manifests
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.nested import held
from tandem_operator.domain.revision import NOTHING, Revision, RoleHash, adapter_values, content_of, revision_of
from tandem_operator.domain.spec import parse
from tandem_operator.domain.templates import Owner

COMMIT = "a" * 40
HUB: dict[str, Any] = {"name": "legal", "model": {"uri": "hf://acme/legal-lora", "revision": COMMIT}}
FOLDER: dict[str, Any] = {"name": "medical", "model": {"uri": "file:///srv/adapters/medical"}}
OWNER = Owner(name="chat", namespace="llm", uid="u")


def spec_with(*adapters: dict[str, Any], folder: str = "/srv/adapters", **paths: Any) -> dict[str, Any]:
    return changed(BASE, adapters=list(adapters), target__adaptersFolder=folder, **paths)


def revision(*adapters: dict[str, Any], **others: Any) -> Revision:
    return revision_of(parse(spec_with(*adapters, **others)))


def test_no_adapters_hash_as_before_there_were_any() -> None:
    before = revision_of(parse(BASE))
    assert before.adapters == NOTHING
    assert revision_of(parse(changed(BASE, adapters=[]))) == before
    assert revision_of(parse(changed(BASE, target__adaptersFolder=""))) == before


def test_hashes_of_adapters_are_pinned_for_ever() -> None:
    assert revision(HUB, FOLDER).adapters == RoleHash("eacd5687")
    assert content_of(adapter_values(parse(spec_with(HUB)).adapters)[0]) == "87ae0bde68660ff8"


def test_another_list_of_adapters_shares_target_and_draft() -> None:
    one, two = revision(HUB), revision(HUB, FOLDER)
    assert (one.target, one.draft) == (two.target, two.draft)
    assert one.adapters != two.adapters
    assert one.name != two.name


def test_the_order_of_adapters_is_no_change() -> None:
    assert revision(HUB, FOLDER) == revision(FOLDER, HUB)


@pytest.mark.parametrize(
    "model",
    [
        {"uri": "hf://acme/other", "revision": COMMIT},
        {"uri": "hf://acme/legal-lora", "revision": "b" * 40},
        {"uri": "hf://acme/legal-lora", "revision": COMMIT, "digest": "sha256:" + "0" * 64},
    ],
)
def test_other_weights_under_a_name_are_another_revision_and_another_content(model: dict[str, Any]) -> None:
    before, after = spec_with(HUB), spec_with({"name": "legal", "model": model})
    assert revision_of(parse(before)).adapters != revision_of(parse(after)).adapters
    contents = {content_of(adapter_values(parse(spec).adapters)[0]) for spec in (before, after)}
    assert len(contents) == 2


def test_another_name_for_the_same_weights_is_the_same_content() -> None:
    values = [adapter_values(parse(spec_with({**HUB, "name": name})).adapters)[0] for name in ("legal", "law")]
    assert content_of(values[0]) == content_of(values[1])


@pytest.mark.parametrize(
    ("adapters", "folder", "words"),
    [
        ([{**HUB, "name": "a:b"}], None, "spec.adapters[0].name is 'a:b': give 1 to 63 letters"),
        ([{**HUB, "name": ".."}], None, "spec.adapters[0].name is '..': give 1 to 63 letters"),
        ([HUB, HUB], None, "spec.adapters[1].name is 'legal': another adapter has this name"),
        ([{**HUB, "name": f"a{n}"} for n in range(17)], None, "spec.adapters is 'a list of 17': give at most 16"),
        ([{"name": "a", "model": {"uri": "s3://b/c"}}], None, "spec.adapters[0].model.uri is 's3://b/c': use hf://"),
        (
            [{"name": "a", "model": {"uri": "hf://b/c"}}],
            None,
            "spec.adapters[0].model.revision is missing: give",
        ),
        (
            [FOLDER],
            None,
            "file:///srv/adapters/medical': target pods load from no folder",
        ),
        ([FOLDER], "/srv/other", "does not lie below /srv/other, which is spec.target.adaptersFolder"),
        (
            [{"name": "a", "model": {"uri": "file:///srv/adapters/../secret"}}],
            "/srv/adapters",
            "does not lie below /srv/adapters",
        ),
        (
            [{"name": "a", "model": {"uri": "file:///srv/adapters/a", "revision": COMMIT}}],
            "/srv/adapters",
            "spec.adapters[0].model.revision",
        ),
    ],
)
def test_a_list_that_no_target_loads_is_refused(adapters: list[dict[str, Any]], folder: str | None, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(changed(BASE, adapters=adapters, target__adaptersFolder=folder))
    assert words in str(refused.value)


def test_a_target_is_told_of_its_folder_and_its_room_and_is_another_one_by_them() -> None:
    spec = parse(changed(BASE, target__adaptersFolder="/srv/adapters", target__maxAdapters=20))
    data = manifests.revision_data(spec, OWNER, TERMS, nodes=None)
    template: Any = held(data, "templates", "target")
    command = " ".join(template["spec"]["containers"][0]["command"])
    assert "--adapters-dir /srv/adapters --max-adapters 20" in command
    assert revision_of(spec).target != revision_of(parse(BASE)).target


def test_what_is_stored_of_a_revision_names_its_adapters_and_leaves_templates_alone() -> None:
    before, after = (
        manifests.revision_data(parse(spec), OWNER, TERMS, nodes=None) for spec in (spec_with(), spec_with(HUB))
    )
    assert "adapters" not in before["values"]  # type: ignore[operator]  # plain JSON
    assert held(after, "values", "adapters") == [
        {"name": "legal", "uri": "hf://acme/legal-lora", "revision": COMMIT},
    ]
    assert after["templates"] == before["templates"]
