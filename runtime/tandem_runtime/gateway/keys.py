"""Knows which API keys open the gateway, and whose they are.

Refuses to show them: keys are kept as SHA-256 digests, and no representation prints them.

The file has one `tenant:key` per line, with ` weight=2.5` behind it where the tenant's share is not 1 (see
`domain.batching`); empty lines and lines that begin with `#` are skipped. A key is compared with every known one in
constant time, so that neither a prefix nor a position can be learnt from how long it takes.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.gateway.failures import Unauthorized

LEAST_WEIGHT: Final = 0.001
_SCHEME = "bearer "
_WEIGHT = re.compile(r"\s+weight=(\S*)$")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks, and what its share weighs among others'."""

    name: str = ""
    weight: float = 1.0


class ApiKeys:
    """The keys of one file. Raises SettingRefused, naming line and fault, if the file is wrong."""

    def __init__(self, text: str, *, source: str) -> None:
        self._tenants: tuple[tuple[Tenant, bytes], ...] = tuple(
            _read_line(line, where=f"{source}, line {number}")
            for number, line in enumerate(text.splitlines(), start=1)
            if line.strip() and not line.lstrip().startswith("#")
        )
        if not self._tenants:
            raise SettingRefused(f"{source} holds no key; write one `tenant:key` per line, or leave --auth-file out")

    @classmethod
    def from_file(cls, path: Path) -> "ApiKeys":
        try:
            return cls(path.read_text(encoding="utf-8"), source=str(path))
        except OSError as error:
            raise SettingRefused(f"--auth-file {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:  # its message would quote a byte of a key
            raise SettingRefused(f"--auth-file {path} cannot be read: byte {error.start} is not UTF-8") from None

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose key an Authorization header holds. Raises Unauthorized."""
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


def _read_line(line: str, *, where: str) -> tuple[Tenant, bytes]:
    told = _WEIGHT.search(line.rstrip())
    tenant, colon, key = line[: told.start() if told else None].strip().partition(":")
    if not (tenant and colon and key):
        raise SettingRefused(f"{where} is not of the form `tenant:key`")
    weight = _read_weight(told[1], where=where) if told else 1.0
    return Tenant(tenant, weight), hashlib.sha256(key.encode()).digest()


def _read_weight(text: str, *, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not LEAST_WEIGHT <= weight <= 1 / LEAST_WEIGHT:
        raise SettingRefused(f"{where}: weight={text}; write a number from {LEAST_WEIGHT} to {1 / LEAST_WEIGHT:.0f}")
    return weight
