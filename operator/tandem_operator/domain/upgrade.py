"""Knows what a revision of the same spec would be made from today, and how it comes to be made on purpose.

Refuses to know who may ask for it and when (`steering`), and how the revision is then rolled out.

Children are made from what a ControllerRevision stores, so that a new operator or chart leaves every pod as it was.
What it would do otherwise (another default image, other terms of a device, another template) waits until somebody asks.
Then the roles that would come out otherwise get a new *edition*: another hash, so other pods, beside those that serve.
From there on it is a revision like any other, with a canary, a verdict and a way back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tandem_operator.domain import manifests
from tandem_operator.domain.nested import held, items, text
from tandem_operator.domain.observed import StoredRevision
from tandem_operator.domain.progress import Upgrade
from tandem_operator.domain.revision import Edition, Role, revision_of
from tandem_operator.domain.situation import Course, Situation
from tandem_operator.domain.templates import Owner


def keep(at: Situation, course: Course) -> Course:
    """An upgrade is asked for one spec: once another one can be followed, what was asked is over."""
    asked = course.progress.upgrade
    if asked is None or at.refusal is not None or asked.of == revision_of(at.given).name:
        return course
    return replace(course, progress=replace(course.progress, upgrade=None))


def upgrade(at: Situation, course: Course, named: StoredRevision) -> Course:
    """The spec means what is made of it today: a stored revision where one is just that, else a new one.

    Where it means that one anyway, there is nothing to do; a Bad one is not tried again by the way.
    """
    made = next((stored for stored in _candidates(at) if not differences(at, stored)), None)
    if made is not None and (made.name == at.current or at.is_bad(made.name)):
        note = f"revision {made.name} is what would be made today{_advice(at, made.name)}"
        return course.say("NothingToUpgrade", note)
    changed = differences(at, named)
    edition = _next_edition(at, named, changed) if made is None else made.pair.edition
    asked = Upgrade(of=revision_of(at.given).name, edition=edition)
    course = replace(course, progress=replace(course.progress, upgrade=asked))
    words = "; ".join(f"{role}: {difference}" for role, difference in changed.items()) or "no difference"
    name = revision_of(at.given, edition).name
    return course.say("Upgrading", f"the spec means revision {name}: {named.name} as it is made today; {words}")


def differences(at: Situation, stored: StoredRevision) -> Mapping[Role, str]:
    """By role, what would come out otherwise if a stored revision of the spec were made today: `image a:1 -> a:2`."""
    today = _made_today(at, stored.pair.edition)
    changed = [role for role in Role if _part(today, role) != _part(stored.data, role)]
    return {role: _in_words(stored.data, today, role) for role in changed}


def _candidates(at: Situation) -> Iterable[StoredRevision]:
    """Stored revisions of the spec: first the one that it means, then stable, then the newest."""
    ours = [stored for stored in reversed(at.seen.revisions) if at.is_of_spec(stored)]
    return sorted(ours, key=lambda stored: (stored.name != at.current, stored.name != at.stable_name))


def _made_today(at: Situation, edition: Edition) -> Mapping[str, object]:
    resource, terms = at.seen.resource, at.seen.terms
    owner = Owner(name=resource.name, namespace=resource.namespace, uid=resource.uid)
    nodes = None if at.seen.nodes is None else [node.labels for node in at.seen.nodes]
    return manifests.revision_data(at.given, owner, terms, nodes=nodes, edition=edition)


def _part(data: Mapping[str, object], role: Role) -> str:
    """What a role is made from, in one spelling: data that were stored are JSON, and those of today may hold tuples."""
    return manifests.as_text({"template": held(data, "templates", role), "resolved": held(data, "resolved", role)})


def _in_words(before: Mapping[str, object], after: Mapping[str, object], role: Role) -> str:
    old, new = (_image(data, role) for data in (before, after))
    return f"image {old} -> {new}" if old != new else "another template"


def _image(data: Mapping[str, object], role: Role) -> str:
    containers = items(data, "templates", role, "spec", "containers")
    return text(containers[0], "image") if containers else ""


def _next_edition(at: Situation, named: StoredRevision, changed: Iterable[Role]) -> Edition:
    """That of the named revision, but for the roles that changed: they bear the number of the revision to come."""
    numbers: dict[str, int] = dict.fromkeys(changed, at.next_number)
    return replace(named.pair.edition, **numbers)


def _advice(at: Situation, name: str) -> str:
    """What there is to do all the same."""
    if name == at.current and (name == at.seen.progress.refused or at.is_bad(name)):
        return f", and is refused; tandem.dev/retry: @{name}#NONCE tries it again"
    if at.is_bad(name):
        return f", and is Bad; tandem.dev/rollback-to: {name}@{at.stable_name}#NONCE goes to it all the same"
    return ""
