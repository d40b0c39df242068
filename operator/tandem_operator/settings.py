"""Knows the operator's settings: which environment variable holds what, in what form, with what default.

Knows nothing of what is done with them. It is the only reader of the environment; the chart writes these variables,
and a test holds the two together. A setting that cannot be used ends the start with its name, its value and what
would be right.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.pools import AcceleratorTable, read_table

VARIABLES = (
    "POD_IP",
    "POD_NAME",
    "POD_NAMESPACE",
    "TANDEM_ACCELERATORS",
    "TANDEM_ALERT_TOKEN_FILE",
    "TANDEM_LEASE_NAME",
    "TANDEM_PORT",
    "TANDEM_RUNTIME_IMAGE",
    "TANDEM_WATCH_NAMESPACES",
)


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - in a pod: kubelet and Prometheus come from outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator process is started with.

    `watch_namespaces` empty means all. `host` and `port` are where webhook, health and metrics listen. `identity`
    names this process in the Lease `lease_name` of `namespace`. `alert_token_file` is None where no alerts are
    taken; it is read at each start.
    """

    namespace: str
    identity: str
    runtime_image: str
    accelerators: AcceleratorTable
    host: str
    port: int
    lease_name: str
    alert_token_file: Path | None = None
    watch_namespaces: tuple[str, ...] = ()


def from_environment() -> Settings:
    """The settings of this process; raises SpecError with the variable's name as its path."""
    return read(os.environ)


def read(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment holds; raises SpecError with the variable's name as its path."""
    token_file = environment.get("TANDEM_ALERT_TOKEN_FILE")
    return Settings(
        namespace=_demanded(environment, "POD_NAMESPACE"),
        identity=_demanded(environment, "POD_NAME"),
        runtime_image=_demanded(environment, "TANDEM_RUNTIME_IMAGE"),
        accelerators=_table(environment.get("TANDEM_ACCELERATORS", "{}")),
        host=environment.get("POD_IP") or EVERY_ADDRESS,
        port=_port(environment.get("TANDEM_PORT", "9090")),
        lease_name=environment.get("TANDEM_LEASE_NAME") or "tandem-operator",
        alert_token_file=Path(token_file) if token_file else None,
        watch_namespaces=_names(environment.get("TANDEM_WATCH_NAMESPACES", "")),
    )


def _demanded(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SpecError(name, None, "set it in the operator's environment; the chart does")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise SpecError("TANDEM_PORT", text, "must be a port from 1 to 65535")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _table(text: str) -> AcceleratorTable:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError("TANDEM_ACCELERATORS", text, f"must be JSON: {error}") from None
    return read_table(raw)
