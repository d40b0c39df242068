"""What a container finds in its environment, and how `$(NAME)` in its command is replaced.

It reads no API: config maps and secrets arrive as values. The rules are those of the Kubernetes API reference for
`Container.env`, `envFrom`, `command` and `args`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from typing import Any

from tandem_devcluster.errors import PodConfigError
from tandem_devcluster.workload import Container, Object, parse_quantity

_REFERENCE = re.compile(r"\$\$|\$\(([^()\s]+)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True, slots=True)
class Sources:
    """What references may point at: data of config maps and of decoded secrets by name, and the pod's fields.

    An absent object is not in its mapping; whether that is an error depends on the reference's `optional`.
    """

    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    fields: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


def build_environment(container: Container, sources: Sources, base: Mapping[str, str]) -> dict[str, str]:
    """`base`, then `envFrom`, then `env`, later ones winning; each value may refer to what came before it.

    Raises:
        PodConfigError: a reference that is not optional points at nothing.
    """
    environment = dict(base)
    for entry in container.environment_from:
        environment.update(_whole_object(entry, sources))
    for entry in container.environment:
        value = _value(entry, container, sources, environment)
        if value is not None:
            environment[entry["name"]] = value
    return environment


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; an unknown name stays as it is, and `$$` is an escaped `$`.

    Example: with A=1, `$(A) $(B) $$(A)` becomes `1 $(B) $(A)`.
    """

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def expand_command(container: Container, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command line to run.

    Raises:
        PodConfigError: the container relies on its image for the command.
    """
    if not container.command:
        raise PodConfigError(f"container {container.name}: images are not run here, so `command` must be given")
    return tuple(expand(part, environment) for part in (*container.command, *container.arguments))


def pod_fields(pod: Object, *, address: str, host_address: str) -> dict[str, str]:
    """The values of every `fieldRef` path but those of one label or annotation."""
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "metadata.labels": _as_lines(metadata.get("labels", {})),
        "metadata.annotations": _as_lines(metadata.get("annotations", {})),
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": host_address,
        "status.hostIPs": host_address,
    }


def read_field(path: str, sources: Sources) -> str:
    """The value of a `fieldRef`; an absent label or annotation is empty."""
    keyed = _KEYED_FIELD.fullmatch(path)
    if keyed:
        chosen = sources.labels if keyed[1] == "labels" else sources.annotations
        return chosen.get(keyed[2], "")
    if path not in sources.fields:
        raise PodConfigError(f"fieldRef.fieldPath={path!r} is not offered here")
    return sources.fields[path]


def read_resource(reference: Object, container: Container) -> str:
    """The value of a `resourceFieldRef`: `limits.memory` over its divisor, rounded up."""
    kind, _, name = reference["resource"].partition(".")
    amounts = container.resources.get(kind, {})
    if name not in amounts:
        raise PodConfigError(f"resourceFieldRef.resource={reference['resource']!r} is not set on {container.name}")
    divisor = parse_quantity(str(reference.get("divisor", "1"))) or 1
    return str((parse_quantity(amounts[name]) / divisor).to_integral_value(ROUND_CEILING))


def references(environment: Sequence[Object], environment_from: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Every `(kind, name)` of config maps and secrets that the entries point at."""
    for entry in environment:
        source = entry.get("valueFrom", {})
        if "configMapKeyRef" in source:
            yield "ConfigMap", source["configMapKeyRef"]["name"]
        if "secretKeyRef" in source:
            yield "Secret", source["secretKeyRef"]["name"]
    for entry in environment_from:
        if "configMapRef" in entry:
            yield "ConfigMap", entry["configMapRef"]["name"]
        if "secretRef" in entry:
            yield "Secret", entry["secretRef"]["name"]


def _as_lines(values: Mapping[str, str]) -> str:
    return "".join(f'{key}="{value}"\n' for key, value in sorted(values.items()))


def _whole_object(entry: Object, sources: Sources) -> dict[str, str]:
    kind = "configMapRef" if "configMapRef" in entry else "secretRef"
    reference, objects = entry[kind], sources.config_maps if kind == "configMapRef" else sources.secrets
    if reference["name"] not in objects:
        _refuse_absent(f"envFrom.{kind}.name={reference['name']!r}", reference)
        return {}
    return {entry.get("prefix", "") + key: value for key, value in objects[reference["name"]].items()}


def _value(entry: Object, container: Container, sources: Sources, known: Mapping[str, str]) -> str | None:
    match entry.get("valueFrom"):
        case None:
            return expand(entry.get("value", ""), known)
        case {"fieldRef": reference}:
            return read_field(reference["fieldPath"], sources)
        case {"resourceFieldRef": reference}:
            return read_resource(reference, container)
        case {"configMapKeyRef": reference}:
            return _key(reference, sources.config_maps, f"env[{entry['name']}].valueFrom.configMapKeyRef")
        case {"secretKeyRef": reference}:
            return _key(reference, sources.secrets, f"env[{entry['name']}].valueFrom.secretKeyRef")
        case other:
            raise PodConfigError(f"env[{entry['name']}].valueFrom={sorted(other)} is not offered here")


def _key(reference: Object, objects: Mapping[str, Mapping[str, str]], where: str) -> str | None:
    found = objects.get(reference["name"], {}).get(reference["key"])
    if found is None:
        _refuse_absent(f"{where}: {reference['name']}/{reference['key']}", reference)
    return found


def _refuse_absent(where: str, reference: Mapping[str, Any]) -> None:
    if not reference.get("optional", False):
        raise PodConfigError(f"{where} does not exist")
