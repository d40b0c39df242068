"""Knows how a look and what was decided from it become one JSON document, and how that document is decided anew.

Refuses to know files. `decide` is pure, so a recorded look gives the same decision on any machine, and one that does
not shows what a change of the rules changes. Of a decision everything is kept but the parsed spec, which the look holds
as the API server does. No prompt and no output is ever in a look, and Secrets are never read; but a person may have
written a secret into the spec as the plain value of a variable or an argument, and such a look is not recorded:
`revealed_by` names the place. What `kubectl apply` keeps in an annotation is a second copy of the spec, and is left
out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from tandem_operator.domain import observed, record
from tandem_operator.domain.decide import decide
from tandem_operator.domain.decision import Decision
from tandem_operator.domain.nested import held, items, mapping, text
from tandem_operator.domain.observed import Observed
from tandem_operator.domain.record import RecordError

FORMAT = 1
APPLIED_BY_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
SECRET_NAMES = re.compile(r"TOKENS?$|SECRET|PASSW|CREDENTIAL|KEYS?$", re.IGNORECASE)
ROLES = ("target", "draft", "gateway")


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded look decided anew; `differences` say where this decision is another than the recorded one."""

    seen: Observed
    decision: Decision
    differences: tuple[str, ...]


def revealed_by(seen: Observed) -> str | None:
    """The path of a variable or an argument that may hold a secret as its plain value; None where there is none.

    Older revisions hold what the spec held when they were made, and Deployments what somebody else put into them, so
    they are asked too.
    """
    specs = [("spec", seen.resource.spec)]
    stored = ((f"revision {held.name}", mapping(held.data, "values")) for held in seen.revisions)
    of_specs = (found for where, spec in (*specs, *stored) for found in _in_spec(spec, where))
    deployments = ((f"Deployment {child.name}", child.body) for child in seen.of_kind("Deployment"))
    of_pods = (found for where, body in deployments for found in _in_pod(held(body, "spec", "template"), where))
    return next(chain(of_specs, of_pods), None)


def _in_spec(spec: Mapping[str, object], where: str) -> Iterator[str]:
    for role in ROLES:
        for name, value in mapping(spec, role, "engineArgs").items():
            if _tells(name, value):
                yield f"{where}.{role}.engineArgs.{name}"
        yield from _in_pod(held(spec, role, "podTemplate"), f"{where}.{role}.podTemplate")


def _in_pod(template: object, where: str) -> Iterator[str]:
    for group in ("initContainers", "containers"):
        for container in items(held(template, "spec"), group):
            place = f"{where}.spec.{group}[{text(container, 'name')}]"
            for variable in items(container, "env"):
                if _tells(text(variable, "name"), held(variable, "value")):
                    yield f"{place}.env[{text(variable, 'name')}]"
            for field in ("command", "args"):
                yield from (
                    f"{place}.{field}[{name}]" for name, value in _flags(container, field) if _tells(name, value)
                )


def _flags(container: Mapping[str, object], field: str) -> Iterator[tuple[str, object]]:
    """`--a=1 --b 2` are ("--a", "1") and ("--b", "2")."""
    found = held(container, field)
    words = [str(word) for word in found] if isinstance(found, list) else []
    for word, after in zip(words, [*words, ""][1:], strict=True):
        name, sign, value = word.partition("=")
        if name.startswith("-"):
            yield name, value if sign else after


def _tells(name: str, value: object) -> bool:
    """Whether this is a secret's name with a value; a plain number, as `max-tokens` has, is no secret."""
    return isinstance(value, str) and bool(value) and not value.isdecimal() and bool(SECRET_NAMES.search(name))


def write(seen: Observed) -> str:
    """The document of a look, with the decision that follows from it."""
    resource = seen.resource
    kept = {name: value for name, value in resource.annotations.items() if name != APPLIED_BY_KUBECTL}
    seen = replace(seen, resource=replace(resource, annotations=kept))
    document = {"format": FORMAT, "observed": observed.dump(seen), "decision": _form(decide(seen))}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def replay(document: str) -> Replay:
    """Raises RecordError where the document is none of ours."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise RecordError("$", document, f"it is no JSON: {error}") from error
    if held(found, "format") != FORMAT:
        raise RecordError("$.format", held(found, "format"), f"wanted {FORMAT}")
    seen = observed.load(found.get("observed"))
    decision = decide(seen)
    return Replay(seen, decision, tuple(_differences(found.get("decision"), _form(decision), "decision")))


def _form(decision: Decision) -> dict[str, object]:
    form: dict[str, object] = record.dump(decision)
    return {name: value for name, value in form.items() if name != "spec"}


def _differences(before: object, after: object, path: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: recorded {json.dumps(before)}, now {json.dumps(after)}"
