"""Knows which fields this release's resource has, and which of them the definition in the cluster lacks.

Refuses to know what a field is for. Helm never upgrades a definition that it did not template, and a chart may be told
to leave it alone; an API server then refuses the new fields, or drops them without a word, from specs and from our
statuses. What it serves is asked of its OpenAPI, which every account may read.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import yaml

from tandem_operator.domain.errors import ClusterError
from tandem_operator.domain.nested import items, mapping, text
from tandem_operator.ports import Json

OWN = Path(__file__).with_name("speculativedeployments.yaml")
LOOK_AGAIN_SECONDS = 60.0
REMEDY = "apply the CRD of this release: crds/speculativedeployments.yaml, or the chart with crds.install=true"

log = logging.getLogger(__name__)


class Schemas(Protocol):
    """Where the served definition is read."""

    async def served_schema(self) -> Json:
        """The resource's schema as it is served now; empty where the API server does not tell of it yet, which takes it
        some seconds. Raises ClusterError."""
        ...


@dataclass(slots=True)
class Definition:
    """`lacking`: the fields that are not served, outermost first; of one that is not, none of its own is named."""

    lacking: tuple[str, ...] = ()

    async def follow(self, schemas: Schemas) -> None:
        """Compares once a minute, until cancelled; what cannot be read leaves what was known."""
        wanted = await asyncio.to_thread(own_fields)
        while True:
            try:
                served = await schemas.served_schema()
            except ClusterError as error:
                log.warning("definition not compared error=%s", error)
            else:
                self._compare(wanted, frozenset(fields_of(served)) or wanted)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _compare(self, wanted: frozenset[str], served: frozenset[str]) -> None:
        missing = wanted - served
        lacking = tuple(sorted(field for field in missing if field.rpartition(".")[0] not in missing))
        if lacking != self.lacking and lacking:
            log.warning("definition is older than this operator lacking=[%s]: %s", ", ".join(lacking), REMEDY)
        self.lacking = lacking


def own_fields() -> frozenset[str]:
    """Of this release."""
    body = yaml.load(OWN.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    (version,) = items(body, "spec", "versions")
    return frozenset(fields_of(mapping(version, "schema", "openAPIV3Schema")))


def fields_of(schema: Mapping[str, object], path: str = "") -> Iterator[str]:
    """Of spec and status, as `spec.canary.steps.percent`: what holds several is named as one."""
    for name, inner in mapping(schema, "properties").items():
        field = f"{path}.{name}" if path else name
        if path or name in ("spec", "status"):
            yield field
            yield from fields_of(mapping(inner), field)
    for several in ("items", "additionalProperties"):
        if inside := mapping(schema, several):
            yield from fields_of(inside, path)


def schema_of(document: Json) -> Json:
    """The resource's schema within an OpenAPI document of its group; empty where it has none."""
    for schema in mapping(document, "components", "schemas").values():
        found = mapping(schema)
        named = items(found, "x-kubernetes-group-version-kind")
        if any(text(each, "kind") == "SpeculativeDeployment" for each in named):
            return found
    return {}
