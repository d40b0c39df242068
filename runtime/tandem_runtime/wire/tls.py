"""Knows how the links between the roles are encrypted, and who may be at their ends: TLS, with a certificate at both.

Refuses to know what goes over a link, and who wrote the files.

A folder holds `tls.crt` (the certificate, those between it and the authority behind it), `tls.key` and `ca.crt`, as
cert-manager writes them. The other end must show a certificate that an authority of `ca.crt` signed for the name
`ROLE_NAME`. One name stands for all: pods are addressed by IPs that change.

The files are read for each new connection, so that what is renewed needs no restart; links that stand go on. What the
other ends would refuse is refused here, at the start with a word on what to do; later, what was good last stays in use.
"""

import logging
import ssl
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import grpc.aio

from tandem_runtime.domain.errors import SettingRefused
from tandem_runtime.wire import transport

ROLE_NAME: Final = "tandem-role"
"""The DNS name in every role's certificate."""
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
WANTED: Final = (
    f"give a folder with {CERTIFICATE}, {KEY} and {AUTHORITY}, as cert-manager writes them for the DNS name {ROLE_NAME}"
)
UNSPOKEN: Final = {
    bytes.fromhex("06032b6570032100"): "Ed25519",
    bytes.fromhex("06032b6571033a00"): "Ed448",
    bytes.fromhex("06052b810400230381"): "ECDSA on P-521",
}
"""How a certificate says, in DER, that its key is of a kind that gRPC's TLS does not take."""

log = logging.getLogger(__name__)


class Identity(NamedTuple):
    """What the three files hold, and where they lie."""

    version: Path
    certificate: bytes
    key: bytes
    authority: bytes


class Term(NamedTuple):
    """From when to when something holds, in seconds since 1970."""

    begins: float
    ends: float


class RoleTls:
    """This process as one end of links to other roles. Raises SettingRefused where `folder` is of no use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trouble: str | None = None
        self._looking = threading.Lock()
        """Servers ask on threads of gRPC's."""
        self._identity = _read(folder)
        self._term = _refuse_unfit(self._identity, folder)

    @property
    def term(self) -> Term:
        """Of what the next link shows, and is trusted by."""
        self._renewed()
        return self._term

    def channel(self, address: str) -> grpc.aio.Channel:
        """To a server of another role."""
        held = self._renewed()
        credentials = grpc.ssl_channel_credentials(held.authority, held.key, held.certificate)
        options = [*transport.CLIENT_OPTIONS, ("grpc.ssl_target_name_override", ROLE_NAME)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port that clients without a certificate cannot speak to."""
        first = _configuration(self._identity)
        return grpc.dynamic_ssl_server_credentials(
            first, lambda: _configuration(self._renewed()), require_client_authentication=True
        )

    def _renewed(self) -> Identity:
        """What the folder holds now, or what it held last where that is of no use."""
        with self._looking:
            try:
                self._take(_read(self._folder))
            except SettingRefused as refused:
                if self._trouble != str(refused):
                    log.error("the last good certificate stays in use: %s", refused)
                self._trouble = str(refused)
            return self._identity

    def _take(self, found: Identity) -> None:
        if found != self._identity:
            self._term = _refuse_unfit(found, self._folder)
            log.info("certificate read anew folder=%s", self._folder)
        self._identity, self._trouble = found, None


def hint(details: str, *, secured: bool) -> str:
    """What to look at where the other end hung up before a word was said: gRPC does not always name TLS."""
    heard = ("socket closed", "reset by peer", "handshake failed", "verification check failed")
    if not any(words in details.lower() for words in heard):
        return ""
    if secured:
        return f"; TLS: both ends need --role-tls, certificates of one authority, and the DNS name {ROLE_NAME} in them"
    return "; if the other end speaks TLS, this one needs --role-tls too"


def is_a_role(peer: Mapping[str, Iterable[bytes]]) -> bool:
    """Whether a peer whose certificate an authority of ours signed is a role, by what gRPC knows of it."""
    return ROLE_NAME.encode() in peer.get("x509_subject_alternative_name", ())


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)], identity.authority)


def _read(folder: Path) -> Identity:
    """All of one version: the kubelet turns the link `..data` when all of the next are there. Raises SettingRefused."""
    data = folder / "..data"
    version = data.resolve() if data.exists() else folder
    return Identity(version, *(_content(version / name, folder) for name in (CERTIFICATE, KEY, AUTHORITY)))


def _content(path: Path, folder: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingRefused(f"--role-tls {folder}: {path.name} cannot be read: {error.strerror}; {WANTED}") from error


def _refuse_unfit(found: Identity, folder: Path) -> Term:
    """For how long it is fit. Raises SettingRefused for what other roles would refuse: shakes hands with itself, as
    server and as client."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    client.hostname_checks_common_name = False
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: an authority may itself be signed by another
        _load(context, found.version, folder)
    try:
        caller = _shake_hands(server, client)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason
        what = f"sign it by an authority of {AUTHORITY}, for the DNS name {ROLE_NAME}, for servers and clients"
        raise SettingRefused(f"--role-tls {folder}: other roles would refuse {CERTIFICATE} ({why}); {what}") from None
    shown = caller.getpeercert(binary_form=True) or b""
    for begins, kind in UNSPOKEN.items():
        if begins in shown:
            what = f"(a key of {kind}); sign one for a key of RSA, or of ECDSA on P-256 or P-384"
            raise SettingRefused(f"--role-tls {folder}: other roles would refuse {CERTIFICATE} {what}")
    return _term_of(caller.getpeercert() or {}, client.get_ca_certs())


def _term_of(shown: Mapping[str, object], authorities: Iterable[Mapping[str, object]]) -> Term:
    """Until the certificate ends, or before that the authority that signed it, beside which another may stand. Where
    several have its name, or none, as where what stands between is in the certificate's file: the last of them."""
    begins, ends = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    known = list(authorities)
    signers = [each for each in known if each["subject"] == shown.get("issuer")] or known
    trusted = (ssl.cert_time_to_seconds(str(authority["notAfter"])) for authority in signers)
    return Term(begins, min(ends, max(trusted, default=ends)))


def _load(context: ssl.SSLContext, version: Path, folder: Path) -> None:
    _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), version / CERTIFICATE, folder)
    _load_certificates(context, version / AUTHORITY, folder)
    try:
        context.load_cert_chain(version / CERTIFICATE, version / KEY, password="")
    except (OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            why = f"{KEY} does not belong to {CERTIFICATE}; take both from one Secret"
        else:
            why = f"{KEY} is no private key in PEM without a passphrase; {WANTED}"
        raise SettingRefused(f"--role-tls {folder}: {why}") from None


def _load_certificates(context: ssl.SSLContext, path: Path, folder: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError:
        raise SettingRefused(f"--role-tls {folder}: {path.name} is no certificate in PEM; {WANTED}") from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end. Raises SSLError where one of the two refuses the other."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(back, there, server_hostname=ROLE_NAME)
    ends = [caller, server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    return caller
