"""The programs of the control plane and their flags.

It knows which file each one reads and writes, and starts nothing. Everything listens inside the cluster's network
namespace, so the ports are the usual ones and can collide with nothing outside.
"""

from dataclasses import dataclass
from pathlib import Path

from tandem_devcluster.certificates import Authority, Identity, KeyPair, write_token_keys
from tandem_devcluster.kubeconfig import write_kubeconfig
from tandem_devcluster.namespace import GATEWAY_ADDRESS, POD_NETWORK
from tandem_devcluster.state import StateFolder

API_PORT = 6443
INNER_SERVER = f"https://{GATEWAY_ADDRESS}:{API_PORT}"
_ETCD = "http://127.0.0.1:2379"
_SERVICE_NETWORK = "10.96.0.0/16"
_FIRST_SERVICE_ADDRESS = "10.96.0.1"
_NODE_GRACE_SECONDS = 20  # without a heartbeat; a real cluster waits 50, a test should not have to
_AUTOSCALER_SECONDS = 3  # between two looks; a real cluster takes 15, likewise

_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class Component:
    """One program of the control plane and its arguments."""

    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the components need to know each other."""

    authority: Authority
    server: KeyPair
    kubelet_client: KeyPair
    tokens: KeyPair


def issue_credentials(state: StateFolder, *, api_port: int) -> Credentials:
    """Make the authority, every component's certificate, and the administrator's kubeconfig files.

    `api_port` is where the API server is offered on 127.0.0.1 outside the namespaces.
    """
    authority = Authority(state.pki)
    admin = authority.issue("admin", Identity("tandem-devcluster-admin", ("system:masters",)))
    outside = f"https://127.0.0.1:{api_port}"
    for path, server in ((state.kubeconfig, outside), (state.inner_kubeconfig, INNER_SERVER)):
        write_kubeconfig(path, server=server, authority=authority.certificate, pair=admin)
    for name in ("kube-controller-manager", "kube-scheduler"):
        pair = authority.issue(name, Identity(f"system:{name}"))
        write_kubeconfig(_kubeconfig(state, name), server=INNER_SERVER, authority=authority.certificate, pair=pair)
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    addresses = ("127.0.0.1", GATEWAY_ADDRESS, _FIRST_SERVICE_ADDRESS)
    return Credentials(
        authority=authority,
        server=authority.issue("kube-apiserver", Identity("kube-apiserver", names=names, addresses=addresses)),
        kubelet_client=authority.issue("kubelet-client", Identity("kube-apiserver", ("system:masters",))),
        tokens=write_token_keys(state.pki),
    )


def build_etcd(state: StateFolder) -> Component:
    """etcd without fsync: a dev cluster's data need not survive the machine."""
    flags = (
        f"--data-dir={state.root / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--log-level=warn",
    )
    return Component("etcd", flags)


def build_api_server(state: StateFolder, credentials: Credentials) -> Component:
    """The API server with RBAC, the node authoriser, service-account tokens, and an audit log that tests can count."""
    policy = state.pki / "audit-policy.yaml"
    policy.write_text(_AUDIT_POLICY)
    authority = credentials.authority.certificate
    flags = (
        f"--etcd-servers={_ETCD}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={GATEWAY_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={credentials.server.certificate}",
        f"--tls-private-key-file={credentials.server.key}",
        f"--client-ca-file={authority}",
        f"--kubelet-certificate-authority={authority}",
        f"--kubelet-client-certificate={credentials.kubelet_client.certificate}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={credentials.tokens.certificate}",
        f"--service-account-signing-key-file={credentials.tokens.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-cluster-ip-range={_SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={state.audit_log}",
        "--shutdown-delay-duration=0s",
    )
    return Component("kube-apiserver", flags)


def build_controller_manager(state: StateFolder, credentials: Credentials) -> Component:
    kubeconfig = _kubeconfig(state, "kube-controller-manager")
    flags = (
        f"--kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials",  # the roles of controllers are bound to their own accounts
        f"--service-account-private-key-file={credentials.tokens.key}",
        f"--root-ca-file={credentials.authority.certificate}",
        f"--cluster-cidr={POD_NETWORK}",
        "--allocate-node-cidrs=false",
        f"--node-monitor-grace-period={_NODE_GRACE_SECONDS}s",
        f"--horizontal-pod-autoscaler-sync-period={_AUTOSCALER_SECONDS}s",
    )
    return Component("kube-controller-manager", flags)


def build_scheduler(state: StateFolder) -> Component:
    kubeconfig = _kubeconfig(state, "kube-scheduler")
    return Component(
        "kube-scheduler", (f"--kubeconfig={kubeconfig}", "--bind-address=127.0.0.1", "--leader-elect=false")
    )


def _kubeconfig(state: StateFolder, name: str) -> Path:
    return state.pki / f"{name}.kubeconfig"
