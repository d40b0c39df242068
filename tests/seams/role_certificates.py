"""An authority and the certificates of roles, as cert-manager would write them: made anew for each test."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
RoleKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey | rsa.RSAPrivateKey
DAY = dt.timedelta(days=1)


class RoleAuthority:
    """Signs what roles show each other."""

    def __init__(self, name: str = "roles", *, root: bool = True, days: int = 30) -> None:
        """Not a `root`: signed by another one, which nobody is shown."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        above = (self._name, self._key) if root else (_named("above"), ec.generate_private_key(ec.SECP256R1()))
        builder = _builder(self._name, above[0], self._key, days=days)
        constraint = x509.BasicConstraints(ca=True, path_length=0)
        self.pem = _pem(builder.add_extension(constraint, critical=True).sign(above[1], hashes.SHA256()))

    def issue(
        self,
        *,
        names: Sequence[str] = ("tandem-role",),
        usages: Sequence[x509.ObjectIdentifier] = BOTH,
        days: int = 30,
        key: RoleKey | None = None,
    ) -> dict[str, str]:
        """The files of one identity; `days` below 0: it has expired."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named("a role"), self._name, key, days=days)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return {"tls.crt": _pem(certificate), "tls.key": private.decode(), "ca.crt": self.pem}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: RoleKey, *, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 60 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
