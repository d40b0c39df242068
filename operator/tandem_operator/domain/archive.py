"""Knows the second copy of the records of revisions in use, and what of them is missing from the first.

Refuses to know what a revision is, and which ones are in use.

The first copy is the ControllerRevisions. Somebody may delete one by hand, and pods of it go on serving; without its
record nobody could scale, judge or replace them. So what serves, or is tried, also lies in the ConfigMap
`<name>-revisions`: number, data and marks. A record that is missing is read from there and written again, the same to
the byte, so that no pod is touched. Whatever is in both, the first copy says. Nobody deletes a record that is in use
but by mistake; those beyond the history limit have left the second copy before they go.
"""

from collections.abc import Iterator, Mapping

from tandem_operator.domain import manifests
from tandem_operator.domain.decision import Decision, JsonObject
from tandem_operator.domain.nested import mapping, number
from tandem_operator.domain.observed import GROUP, Child, Observed
from tandem_operator.domain.templates import Owner


def copied(decision: Decision, seen: Observed, owner: Owner, data: Mapping[str, JsonObject]) -> JsonObject:
    """The second copy, as this look leaves the first: with the marks that are being written."""
    given = {share.revision for share in decision.shares if share.weight or share.shadow}
    names = sorted(given | ({decision.stable} - {""}))
    return manifests.revisions_config_map(
        owner, {"revisions": [_entry(name, decision, seen, owner, data) for name in names]}
    )


def lost(seen: Observed, owner: Owner) -> Iterator[JsonObject]:
    """The ControllerRevisions to write again."""
    stored = {child.name for child in seen.of_kind("ControllerRevision")}
    for child in seen.records:
        if child.name not in stored:
            yield _restored(child, owner)


def _entry(
    name: str, decision: Decision, seen: Observed, owner: Owner, data: Mapping[str, JsonObject]
) -> dict[str, object]:
    live = next((child for child in seen.records if child.name == f"{owner.name}-{name}"), None)
    fresh = 0 if decision.new_revision is None else decision.new_revision.number
    known = {} if live is None else live.annotations
    marks = [mark.annotations for mark in decision.marks if mark.revision == name]
    return {
        "metadata": {"name": f"{owner.name}-{name}", "annotations": dict(sorted(_merged(known, *marks).items()))},
        "revision": fresh if live is None else number(live.body, "revision"),
        "data": data[name],
    }


def _merged(*marks: Mapping[str, str]) -> dict[str, str]:
    return {name: value for held in marks for name, value in held.items() if name.startswith(f"{GROUP}/")}


def _restored(child: Child, owner: Owner) -> JsonObject:
    name = child.name.removeprefix(f"{owner.name}-")
    body = manifests.controller_revision(
        owner, name=name, number=number(child.body, "revision"), data=mapping(child.body, "data")
    )
    return {**body, "metadata": {**mapping(body, "metadata"), "annotations": dict(child.annotations)}}
