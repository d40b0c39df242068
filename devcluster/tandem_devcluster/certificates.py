"""Who is who in the cluster: one certificate authority and the certificates it signs.

It knows names and addresses, and nothing of how they are used. The subject is the identity that Kubernetes sees: the
common name is the user, each organisation a group (`system:masters` may do everything).
"""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem_devcluster.state import write_atomically

_LIFETIME = dt.timedelta(days=30)
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Identity:
    """A subject, and for a server the names and addresses it answers at."""

    user: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Two PEM files of one identity."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose files lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tandem-devcluster")])
        self.certificate = folder / "ca.crt"
        signed = self._builder(self._name, self._key.public_key())
        signed = signed.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        write_atomically(self.certificate, _pem(signed.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, identity: Identity) -> KeyPair:
        """Write `<name>.crt` and `<name>.key`, good for both ends of a connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, identity.user),
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups),
            ]
        )
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(subject, key.public_key()).add_extension(usages, critical=False)
        alternatives = _alternative_names(identity)
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        write_atomically(pair.certificate, _pem(builder.sign(self._key, hashes.SHA256())))
        write_atomically(pair.key, _key_pem(key))
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFETIME)
        )


def write_token_keys(folder: Path) -> KeyPair:
    """The key that signs service-account tokens, and its public half."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair = KeyPair(folder / "tokens.pub", folder / "tokens.key")
    write_atomically(pair.certificate, public.decode())
    write_atomically(pair.key, _key_pem(key))
    return pair


def _alternative_names(identity: Identity) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in identity.names]
    return names + [x509.IPAddress(ipaddress.ip_address(address)) for address in identity.addresses]


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
