"""Knows which API keys open the gateway, and whose they are.

Refuses to show them: keys are kept as SHA-256 digests, and no representation prints them.

The file has one `tenant:key` per line. Behind it may stand ` weight=2.5` where the tenant's share is not 1 (see
`domain.batching`), and its quotas, ` concurrent=8` and ` tokens_per_minute=60000` (see `gateway.admission`), which all
lines of a tenant share. Empty lines and lines that begin with `#` are skipped. A key is compared with every known one
in constant time, so that neither a prefix nor a position can be learnt from how long it takes.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.gateway.failures import Unauthorized

LEAST_WEIGHT: Final = 0.001
_SCHEME = "bearer "
_OPTION = re.compile(r"\s+(weight|concurrent|tokens_per_minute)=(\S*)$")
LARGEST_QUOTA: Final = 10**9


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have of one gateway; None: as much as there is."""

    concurrent: int | None = None
    """Choices in progress."""
    tokens_per_minute: int | None = None
    """Of prompts and answers."""


NO_QUOTA: Final = Quota()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks, what its share weighs among others', and what it may have."""

    name: str = ""
    weight: float = 1.0
    quota: Quota = NO_QUOTA


class Doorkeeper(Protocol):
    """Who says whose a key is."""

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose key an Authorization header holds. Raises Unauthorized."""
        ...


class ApiKeys:
    """The keys of one file as it was read. Raises SettingRefused, naming line and fault, if the file is wrong."""

    def __init__(self, text: str, *, source: str) -> None:
        self._tenants: tuple[tuple[Tenant, bytes], ...] = tuple(
            _read_line(line, where=f"{source}, line {number}")
            for number, line in enumerate(text.splitlines(), start=1)
            if line.strip() and not line.lstrip().startswith("#")
        )
        if not self._tenants:
            raise SettingRefused(f"{source} holds no key; write one `tenant:key` per line, or leave --auth-file out")
        quotas = {tenant.name: tenant.quota for tenant, _ in self._tenants}
        for tenant, _ in self._tenants:
            if tenant.quota != quotas[tenant.name]:
                raise SettingRefused(f"{source}: tenant {tenant.name} has quotas that differ by line: write the same")

    @classmethod
    def from_bytes(cls, content: bytes, *, path: Path) -> "ApiKeys":
        try:
            return cls(content.decode(), source=str(path))
        except UnicodeDecodeError as error:  # its message would quote a byte of a key
            raise SettingRefused(f"--auth-file {path} cannot be read: byte {error.start} is not UTF-8") from None

    @property
    def tenants(self) -> frozenset[str]:
        """Who has a key."""
        return frozenset(tenant.name for tenant, _ in self._tenants)

    def tenant(self, authorization: str | None) -> Tenant:
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            raise Unauthorized("send your API key as `Authorization: Bearer KEY`")
        offered = hashlib.sha256(authorization[len(_SCHEME) :].strip().encode()).digest()
        found: Tenant | None = None
        for tenant, digest in self._tenants:
            if hmac.compare_digest(digest, offered):
                found = tenant
        if found is None:
            raise Unauthorized("this API key is not known here")
        return found


def aside(tenant: str | None) -> str | None:
    """Whose engines take a tenant's texts for that are computed once more and read by nobody: its own prefixes must not
    be of use for that, and it is forgotten with the tenant. No line of a file can name it. None: there are no keys."""
    return f"{tenant}:aside" if tenant else None


def read_content(path: Path) -> bytes:
    """What stands in a file of keys. Raises SettingRefused."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingRefused(f"--auth-file {path} cannot be read: {error.strerror}") from error


def _read_line(line: str, *, where: str) -> tuple[Tenant, bytes]:
    rest, told = line.strip(), dict[str, str]()
    while option := _OPTION.search(rest):
        if option[1] in told:
            raise SettingRefused(f"{where} has {option[1]} twice: leave one out")
        told[option[1]], rest = option[2], rest[: option.start()]
    tenant, colon, key = rest.partition(":")
    if not (tenant and colon and key):
        raise SettingRefused(f"{where} is not of the form `tenant:key`")
    quota = Quota(*(_read_quota(told, name, where=where) for name in ("concurrent", "tokens_per_minute")))
    return Tenant(tenant, _read_weight(told, where=where), quota), hashlib.sha256(key.encode()).digest()


def _read_weight(told: Mapping[str, str], *, where: str) -> float:
    text = told.get("weight", "1")
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not LEAST_WEIGHT <= weight <= 1 / LEAST_WEIGHT:
        raise SettingRefused(f"{where}: weight={text}; write a number from {LEAST_WEIGHT} to {1 / LEAST_WEIGHT:.0f}")
    return weight


def _read_quota(told: Mapping[str, str], name: str, *, where: str) -> int | None:
    text = told.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text) or int(text) > LARGEST_QUOTA:
        raise SettingRefused(f"{where}: {name}={text}; write a whole number from 1 to {LARGEST_QUOTA}, or leave it out")
    return int(text)
