"""Knows what is kept of a draft without pods, so that a revision proposes as it did when the spec means another one.

Refuses to know how a revision's method is found (`situation`) and what gateways are told (`policy`).

A lookup has no pods and changes no text, so it is not hashed: between NGram, Suffix and None the revision stays the
same one, and the spec's method counts at once. What the spec says of another revision's draft is not said of this one.
"""

from tandem_operator.domain.observed import ANNOTATION_METHOD, StoredRevision
from tandem_operator.domain.situation import Course, Situation
from tandem_operator.domain.spec import DraftMethod


def note_methods(at: Situation, course: Course) -> Course:
    """The spec's method stands on the record of its revision, before an edit makes it another's."""
    for stored in at.revisions.values():
        if at.is_of_spec(stored) and stored.pair.draft is None and not _is_noted(at, stored):
            method = str(at.given.draft.method)
            why = f"revision {stored.name} proposes by {method} from now on"
            course = course.mark(stored.name, {ANNOTATION_METHOD: method}, why)
    return course


def _is_noted(at: Situation, stored: StoredRevision) -> bool:
    """No note means None."""
    return at.given.draft.method is (stored.method or DraftMethod.NONE)
