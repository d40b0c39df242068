"""Kubeconfig files: written with everything inside, read back to make a connection.

It knows one cluster, one user and one context per file, as this program writes them.
"""

import base64
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem_devcluster.certificates import KeyPair
from tandem_devcluster.state import CONTEXT, write_atomically


@dataclass(frozen=True, slots=True)
class Access:
    """Where an API server is, and the TLS context that knows both sides of the connection."""

    server: str
    tls: ssl.SSLContext


def write_kubeconfig(path: Path, *, server: str, authority: Path, pair: KeyPair) -> None:
    """Write a kubeconfig as JSON, which is YAML too."""
    cluster = {"server": server, "certificate-authority-data": _encoded(authority)}
    user = {"client-certificate-data": _encoded(pair.certificate), "client-key-data": _encoded(pair.key)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    write_atomically(path, json.dumps(content, indent=1))


def read_access(path: Path) -> Access:
    """The way in that one of our own kubeconfig files describes."""
    content = json.loads(path.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    tls = ssl.create_default_context(cadata=_decoded(cluster, "certificate-authority-data").decode())
    _load_pair(tls, path, user)
    return Access(cluster["server"], tls)


def _load_pair(tls: ssl.SSLContext, path: Path, user: dict[str, Any]) -> None:
    """OpenSSL reads a key pair only from a file; ours lives beside the kubeconfig for as long as that takes."""
    pem = path.with_name(f".{path.name}.pem")
    text = _decoded(user, "client-certificate-data") + _decoded(user, "client-key-data")
    write_atomically(pem, text.decode())
    try:
        tls.load_cert_chain(pem)
    finally:
        pem.unlink(missing_ok=True)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _decoded(section: dict[str, Any], key: str) -> bytes:
    return base64.b64decode(section[key])
