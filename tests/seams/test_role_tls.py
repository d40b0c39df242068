"""Links between roles over TLS: who gets through, what a listener sees, what is renewed, and what a start refuses."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.seams.gateway_peers import until
from tests.seams.mounted_secret import MountedSecret
from tests.seams.role_certificates import RoleAuthority, RoleKey, written
from tests.seams.wire_peers import (
    QUICK,
    CountingDraft,
    CountingTarget,
    connected,
    opening,
    propose,
    served,
    verify,
)

from tandem_runtime import main
from tandem_runtime.domain.errors import SettingRefused, TargetLost
from tandem_runtime.domain.tokens import Proposal, Verdict
from tandem_runtime.main import SystemClock
from tandem_runtime.wire.client import RemoteDraft, RemoteTarget
from tandem_runtime.wire.expiry import expiry_told, is_near_its_end
from tandem_runtime.wire.roles import DraftRole, TargetRole
from tandem_runtime.wire.tls import RoleTls, Term

AUTHORITY, OTHER = RoleAuthority(), RoleAuthority("others")
SCRIPT = "scripted:tandem_runtime.engines.scripted:chain_logits"
PASSPHRASE = serialization.BestAvailableEncryption(b"secret")


def role_tls(folder: Path, authority: RoleAuthority = AUTHORITY, **changes: str) -> RoleTls:
    return RoleTls(written(folder, {**authority.issue(), **changes}))


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """A port that leads to `port`, and all that passes there, both ways."""
    heard = bytearray()
    passing: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    heard.extend(data)
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        passing.update(asyncio.create_task(copy(*pair)) for pair in ((reader, back), (there, writer)))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def said(target: int, draft: int, tls: RoleTls | None) -> tuple[Verdict, Proposal]:
    """What the two engines at these ports answer."""
    async with connected(RemoteTarget, target, tls=tls) as remote, connected(RemoteDraft, draft, tls=tls) as guesser:
        opened = await remote.open(replace(opening("s"), tenant="the-tenants-name"))
        verdict = await remote.verify(verify(opened, "s", ids=(5, 6)))
        begun = await guesser.open(replace(opening("s"), tenant="the-tenants-name"))
        return verdict, await guesser.propose(propose(begun, "s", k=3))


async def test_the_same_is_said_over_tls_and_nothing_of_it_in_clear(tmp_path: Path) -> None:
    tls, answers, seen = role_tls(tmp_path / "tls"), [], []
    for way in (None, tls):
        async with (
            served(TargetRole(CountingTarget()), tls=way) as target,
            served(DraftRole(CountingDraft()), tls=way) as draft,
            tapped(target.port) as (target_port, from_target),
            tapped(draft.port) as (draft_port, from_draft),
        ):
            answers.append(await said(target_port, draft_port, way))
        seen.append([b"the-tenants-name" in heard for heard in (from_target, from_draft)])
        assert min(len(from_target), len(from_draft)) > 500
    assert answers[0] == answers[1]
    assert seen == [[True, True], [False, False]]


async def trouble_of(port: int, tls: RoleTls | None) -> str:
    """Why there is no link from this end."""
    async with RemoteTarget(f"127.0.0.1:{port}", backoff=QUICK, tls=tls) as remote:
        await until(lambda: remote.trouble != "not connected yet")
        assert not remote.connected
        with pytest.raises(TargetLost) as lost:
            await remote.open(opening())
        assert remote.trouble is not None
        assert remote.trouble in str(lost.value)
        return remote.trouble


STRANGERS: dict[str, Callable[[Path], RoleTls | None]] = {
    "who speaks no TLS": lambda folder: None,
    "who has a certificate of another authority": lambda folder: RoleTls(
        forged(written(folder, OTHER.issue()), AUTHORITY)
    ),
    "who trusts another authority": lambda folder: role_tls(folder, OTHER),
    "who is no role": lambda folder: RoleTls(forged(written(folder, AUTHORITY.issue(names=("db",))), AUTHORITY)),
}


def forged(folder: Path, trusted: RoleAuthority) -> Path:
    """A folder that its own process would refuse."""
    (folder / "ca.crt").write_text(trusted.pem)
    return folder


@pytest.mark.parametrize("who", STRANGERS)
async def test_a_stranger_is_refused_and_its_trouble_names_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    engine = CountingTarget()
    async with served(TargetRole(engine), tls=role_tls(tmp_path / "tls")) as server:
        monkeypatch.setattr("tandem_runtime.wire.tls._refuse_unfit", lambda found, folder: None)
        trouble = await trouble_of(server.port, STRANGERS[who](tmp_path / "stranger"))
        assert server.sessions == 0
    assert "TLS" in trouble
    assert [record.getMessage() for record in caplog.records if "no link peer=" in record.getMessage()]


async def test_a_server_that_is_no_role_or_speaks_no_tls_is_refused_by_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_runtime.wire.tls._refuse_unfit", lambda found, folder: None)
    ours = role_tls(tmp_path / "ours")
    elsewhere = RoleTls(written(tmp_path / "elsewhere", AUTHORITY.issue(names=("db",))))
    troubles = []
    for way in (None, role_tls(tmp_path / "others", OTHER), elsewhere):
        async with served(TargetRole(CountingTarget()), tls=way) as server:
            troubles.append(await trouble_of(server.port, ours))
    assert all("TLS: both ends need --role-tls" in trouble for trouble in troubles)


async def test_a_port_where_nobody_listens_is_no_matter_of_tls(tmp_path: Path) -> None:
    async with served(TargetRole(CountingTarget())) as server:
        port = server.port
    troubles = [await trouble_of(port, tls) for tls in (None, role_tls(tmp_path / "tls"))]
    assert [("Connection refused" in trouble, "TLS" in trouble) for trouble in troubles] == [(True, False)] * 2


async def test_the_standard_health_service_answers_roles_over_tls(tmp_path: Path) -> None:
    tls = role_tls(tmp_path / "tls")
    async with (
        served(TargetRole(CountingTarget()), tls=tls) as server,
        tls.channel(f"127.0.0.1:{server.port}") as channel,
    ):
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def shown(port: int, files: dict[str, str], folder: Path) -> str:
    """The certificate that a server shows, as PEM."""
    folder = written(folder, files)
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="tandem-role")
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return ssl.DER_cert_to_PEM_cert(found)


def same(one: str, other: str) -> bool:
    return x509.load_pem_x509_certificate(one.encode()) == x509.load_pem_x509_certificate(other.encode())


async def test_a_renewed_certificate_is_used_for_new_connections_and_a_broken_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = AUTHORITY.issue(), AUTHORITY.issue()
    secret = MountedSecret(tmp_path / "tls", first)
    tls, engine = RoleTls(secret.folder), CountingTarget()
    async with served(TargetRole(engine), tls=tls) as server, connected(RemoteTarget, server.port, tls=tls) as stays:
        opened = await stays.open(opening())
        seen = [await shown(server.port, first, tmp_path / "one")]
        secret.put(second)
        seen.append(await shown(server.port, first, tmp_path / "one"))
        secret.put({**second, "tls.key": first["tls.key"]})
        for _ in range(3):
            seen.append(await shown(server.port, first, tmp_path / "one"))
        async with connected(RemoteTarget, server.port, tls=tls) as comes:
            await comes.capabilities()
        assert (await stays.verify(verify(opened, "s"))).round == 0
    assert [same(each, first["tls.crt"]) for each in seen] == [True, *[False] * 4]
    assert all(same(each, second["tls.crt"]) for each in seen[1:])
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "tls.key does not belong to tls.crt" in told[0]


async def test_who_scrapes_is_told_when_the_certificate_in_use_ends(tmp_path: Path) -> None:
    registry, clock = CollectorRegistry(), SystemClock()
    secret = MountedSecret(tmp_path / "tls", AUTHORITY.issue(days=3))
    seen = []
    async with expiry_told(RoleTls(secret.folder), registry, clock=clock):
        for files in ({}, AUTHORITY.issue(days=20), AUTHORITY.issue(days=90), {"tls.crt": "nothing"}):
            if files:
                secret.put(files)
            ends = registry.get_sample_value("tandem_role_certificate_not_after_seconds")
            assert ends is not None
            seen.append(round((ends - clock.wall()) / 86_400))
    assert seen == [3, 20, 30, 30]  # the authority ends after thirty days, and what is of no use is not in use


def test_a_certificate_ends_with_the_authority_that_signed_it_whoever_is_trusted_beside(tmp_path: Path) -> None:
    """As while an authority is changed: one that ends in five days beside one that does in thirty."""
    old = RoleAuthority("old", days=5)
    tls = RoleTls(written(tmp_path / "tls", {**old.issue(days=20), "ca.crt": old.pem + OTHER.pem}))
    assert round((tls.term.ends - SystemClock().wall()) / 86_400) == 5


async def test_a_role_in_clear_tells_of_no_certificate() -> None:
    registry = CollectorRegistry()
    async with expiry_told(None, registry, clock=SystemClock()):
        assert registry.get_sample_value("tandem_role_certificate_not_after_seconds") is None


@pytest.mark.parametrize(("days", "warned"), [(8, []), (6, ["days=6.0"])])
async def test_the_log_warns_of_the_last_seven_days_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: int, warned: list[str]
) -> None:
    monkeypatch.setattr("tandem_runtime.wire.expiry.LOOK_SECONDS", 0.01)
    tls = RoleTls(written(tmp_path / "tls", AUTHORITY.issue(days=days)))
    async with expiry_told(tls, CollectorRegistry(), clock=SystemClock()):
        await asyncio.sleep(0.1)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [words for words in told if "certificate ends" not in words] == []
    assert [word for words in told for word in words.split() if word.startswith("days=")] == warned


@pytest.mark.parametrize(
    ("days", "left", "near"), [(90, 7.1, False), (90, 6.9, True), (90, -1.0, True), (1, 0.2, False), (1, 0.09, True)]
)
def test_a_certificate_that_is_made_for_hours_is_near_its_end_in_the_last_tenth(
    days: float, left: float, near: bool
) -> None:
    assert is_near_its_end(Term(0.0, days * 86_400), (days - left) * 86_400) is near


async def test_an_authority_is_changed_by_trusting_both_for_a_while(tmp_path: Path) -> None:
    both = AUTHORITY.pem + OTHER.pem
    old = MountedSecret(tmp_path / "old", {**AUTHORITY.issue(), "ca.crt": both})
    new = MountedSecret(tmp_path / "new", {**OTHER.issue(), "ca.crt": both})
    served_by, asked_by = RoleTls(old.folder), RoleTls(new.folder)
    async with (
        served(TargetRole(CountingTarget()), tls=served_by) as server,
        connected(RemoteTarget, server.port, tls=asked_by) as remote,
    ):
        assert (await remote.capabilities()).max_length == 4096


async def test_an_authority_that_another_one_signed_is_one_too(tmp_path: Path) -> None:
    """As gRPC has it, so nothing is refused at the start that would link."""
    tls = role_tls(tmp_path / "tls", RoleAuthority("intermediate", root=False))
    async with (
        served(TargetRole(CountingTarget()), tls=tls) as server,
        connected(RemoteTarget, server.port, tls=tls) as remote,
    ):
        assert (await remote.capabilities()).max_length == 4096


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 3072)], ids=["P-384", "RSA"]
)
async def test_other_keys_than_the_usual_link_too(tmp_path: Path, key: RoleKey) -> None:
    tls = RoleTls(written(tmp_path / "tls", AUTHORITY.issue(key=key)))
    async with (
        served(TargetRole(CountingTarget()), tls=tls) as server,
        connected(RemoteTarget, server.port, tls=tls) as remote,
    ):
        assert (await remote.capabilities()).max_length == 4096


def without(name: str) -> dict[str, str]:
    return {kept: text for kept, text in AUTHORITY.issue().items() if kept != name}


def locked() -> dict[str, str]:
    """With a key behind a passphrase."""
    files = AUTHORITY.issue()
    key = serialization.load_pem_private_key(files["tls.key"].encode(), None)
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, PASSPHRASE)
    return {**files, "tls.key": text.decode()}


REFUSED: list[tuple[dict[str, str], str]] = [
    (without("tls.crt"), "tls.crt cannot be read: No such file or directory; give a folder with tls.crt, tls.key and"),
    (without("tls.key"), "tls.key cannot be read: No such file or directory; give a folder with tls.crt, tls.key and"),
    (without("ca.crt"), "ca.crt cannot be read: No such file or directory; give a folder with tls.crt, tls.key and"),
    ({**AUTHORITY.issue(), "tls.crt": "nothing"}, "tls.crt is no certificate in PEM; give a folder"),
    ({**AUTHORITY.issue(), "tls.key": "nothing"}, "tls.key is no private key in PEM without a passphrase; give"),
    ({**AUTHORITY.issue(), "ca.crt": ""}, "ca.crt is no certificate in PEM; give a folder"),
    (locked(), "tls.key is no private key in PEM without a passphrase"),
    ({**AUTHORITY.issue(), "tls.key": AUTHORITY.issue()["tls.key"]}, "tls.key does not belong to tls.crt; take both"),
    (
        {**AUTHORITY.issue(), "ca.crt": OTHER.pem},
        "refuse tls.crt (unable to get local issuer certificate); sign it by an",
    ),
    (AUTHORITY.issue(names=()), "for the DNS name tandem-role"),
    (AUTHORITY.issue(names=("db",)), "Hostname mismatch, certificate is not valid for 'tandem-role'"),
    (AUTHORITY.issue(days=-1), "refuse tls.crt (certificate has expired)"),
    (AUTHORITY.issue(usages=(ExtendedKeyUsageOID.SERVER_AUTH,)), "for servers and clients"),
    (AUTHORITY.issue(usages=(ExtendedKeyUsageOID.CLIENT_AUTH,)), "for servers and clients"),
    (AUTHORITY.issue(key=ed25519.Ed25519PrivateKey.generate()), "(a key of Ed25519); sign one for a key of RSA, or of"),
    (AUTHORITY.issue(key=ed448.Ed448PrivateKey.generate()), "(a key of Ed448); sign one"),
    (AUTHORITY.issue(key=ec.generate_private_key(ec.SECP521R1())), "(a key of ECDSA on P-521); sign one"),
]


@pytest.mark.parametrize(("files", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_files_that_other_roles_would_refuse_are_refused_at_the_start(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    folder = written(tmp_path / "tls", files)
    with pytest.raises(SettingRefused) as refused:
        RoleTls(folder)
    assert str(refused.value).startswith(f"--role-tls {folder}: ")
    assert says in str(refused.value)
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ("target", "--model", SCRIPT),
        ("draft", "--model", "/nowhere"),  # said before the model is looked at
        ("gateway", "--deployment", "chat", "--namespace", "llm", "--tokenizer", "examples/pairs/target"),
    ],
)
def test_every_role_refuses_a_folder_without_files_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    ended = main.run([*command, "--port", "0", "--admin-port", "0", "--role-tls", str(tmp_path)])
    lines = capsys.readouterr().err.splitlines()
    assert (ended, len(lines)) == (1, 1)
    assert lines[0].startswith(f"tandem-runtime {command[0]}: --role-tls {tmp_path}: tls.crt cannot be read")
