"""Knows what the process is told by its environment: the only reader of it, beside main.

Refuses to know the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES_TERMINATION_LOG = "/dev/termination-log"
TRACES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(frozen=True, slots=True)
class Settings:
    """One frozen reading of the environment; an empty variable counts as absent."""

    hugging_face_token: str | None = field(default=None, repr=False)
    hugging_face_endpoint: str | None = None
    """Absent: the public hub."""
    termination_message_path: Path | None = None
    """Where Kubernetes reads a container's last words; absent outside of it."""
    kubeconfig: Path | None = None
    """Absent in a pod, whose service account opens the API."""
    traced: bool = False
    """Whether OpenTelemetry's variables name who takes spans."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    def named(name: str) -> str | None:
        return environment.get(name) or None

    return Settings(
        hugging_face_token=named("HF_TOKEN"),
        hugging_face_endpoint=named("HF_ENDPOINT"),
        kubeconfig=None if named("KUBECONFIG") is None else Path(str(named("KUBECONFIG"))),
        traced=any(map(named, TRACES)) and named("OTEL_SDK_DISABLED") != "true",
        termination_message_path=_termination_message_path(named("TERMINATION_MESSAGE_PATH")),
    )


def _termination_message_path(named: str | None) -> Path | None:
    """Kubernetes mounts the default as a file; where it is missing there is nobody to read it."""
    if named is not None:
        return Path(named)
    usual = Path(KUBERNETES_TERMINATION_LOG)
    return usual if usual.is_file() else None
