"""Knows the operator's settings: which environment variable holds what, in what form, with what default.

Knows nothing of what is done with them. `main` hands the environment over; the chart writes these variables,
and a test holds the two together. A setting that cannot be used ends the start with its name, its value and what
would be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tandem_operator.domain.errors import SpecError, TandemError
from tandem_operator.domain.pools import AcceleratorTable, read_table
from tandem_operator.domain.settings import OperatorTerms
from tandem_operator.logs import LOG_FORMATS, LogFormat

EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - in a pod: kubelet and Prometheus come from outside


class SettingsError(TandemError):
    """A variable of the environment cannot be used; says which, what stood there, and what would be right."""

    def __init__(self, name: str, value: str | None, message: str) -> None:
        super().__init__(name, value, message)
        self.name = name

    def __str__(self) -> str:
        name, value, message = self.args
        return f"{name} is {'not set' if value is None else repr(value)}: {message}"


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """Where queries are asked: a base URL, and a file with the bearer token to show, read anew for every query."""

    url: str
    token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator process is started with.

    `watch_namespaces` empty means all. `host` and `port` are where webhook, health and metrics listen; whoever posts an
    alert shows `alert_token`. `identity` names this process in the Lease, which lies in `namespace`. `record_folder` is
    where looks are recorded; None records none.
    """

    namespace: str
    identity: str
    host: str
    port: int
    alert_token: str = field(repr=False)
    record_folder: Path | None
    watch_namespaces: tuple[str, ...]
    terms: OperatorTerms
    prometheus: PrometheusAccess | None = None
    log_format: LogFormat = "text"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment holds; raises SettingsError."""
    return Settings(
        namespace=_demanded(environment, "POD_NAMESPACE"),
        identity=_demanded(environment, "POD_NAME"),
        host=environment.get("POD_IP") or EVERY_ADDRESS,
        port=_port(environment.get("TANDEM_PORT", "9090")),
        alert_token=_token(_demanded(environment, "TANDEM_ALERT_TOKEN_FILE")),
        record_folder=Path(folder) if (folder := environment.get("TANDEM_RECORD_FOLDER")) else None,
        watch_namespaces=_names(environment.get("TANDEM_WATCH_NAMESPACES", "")),
        terms=OperatorTerms(
            runtime_image=_demanded(environment, "TANDEM_RUNTIME_IMAGE"),
            accelerators=_table(environment.get("TANDEM_ACCELERATORS", "{}")),
        ),
        prometheus=_prometheus(environment),
        log_format=_log_format(environment.get("TANDEM_LOG_FORMAT", "text")),
    )


def _prometheus(environment: Mapping[str, str]) -> PrometheusAccess | None:
    url, token_file = environment.get("TANDEM_PROMETHEUS_URL"), environment.get("TANDEM_PROMETHEUS_TOKEN_FILE")
    if not url:
        return None
    wanted = "must be a base URL such as http://prometheus.monitoring:9090"
    if "@" in url:
        # It is not printed: what stands before an @ is often a password.
        raise SettingsError("TANDEM_PROMETHEUS_URL", "...@...", f"{wanted}, and a token goes into a Secret")
    if not _is_base_url(url):
        raise SettingsError("TANDEM_PROMETHEUS_URL", url, wanted)
    return PrometheusAccess(url.rstrip("/"), Path(token_file) if token_file else None)


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment) and port != 0
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def _demanded(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(name, None, "set it in the operator's environment; the chart does")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise SettingsError("TANDEM_PORT", text, "must be a port from 1 to 65535")
    return int(text)


def _log_format(text: str) -> LogFormat:
    for form in LOG_FORMATS:
        if text == form:
            return form
    raise SettingsError("TANDEM_LOG_FORMAT", text, f"must be {' or '.join(LOG_FORMATS)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError("TANDEM_ALERT_TOKEN_FILE", path, f"cannot be read: {error.strerror}") from error
    if not token:
        raise SettingsError("TANDEM_ALERT_TOKEN_FILE", path, "is empty; put into it what senders show")
    return token


def _table(text: str) -> AcceleratorTable:
    try:
        return read_table(json.loads(text))
    except json.JSONDecodeError as error:
        raise SettingsError("TANDEM_ACCELERATORS", text, f"must be JSON: {error}") from error
    except SpecError as error:
        raise SettingsError("TANDEM_ACCELERATORS", text, str(error)) from error
