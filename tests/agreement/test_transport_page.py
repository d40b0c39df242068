"""The page about TLS, the operator and the runtime call the files, the flag, the field and the DNS name the same."""

import re
from pathlib import Path
from typing import Any

import yaml
from tests.seams.role_certificates import BOTH

from tandem_operator.domain.spec import SecretRef, parse
from tandem_operator.domain.templates import TLS_KEYS
from tandem_runtime.wire import tls

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "transport.md").read_text()
CERTIFICATE, RESOURCE = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


def test_what_the_operator_mounts_is_what_the_runtime_reads() -> None:
    assert sorted(TLS_KEYS) == sorted((tls.CERTIFICATE, tls.KEY, tls.AUTHORITY))


def test_the_pages_certificate_is_one_that_roles_take() -> None:
    assert CERTIFICATE["spec"]["dnsNames"] == [tls.ROLE_NAME]
    assert CERTIFICATE["spec"]["usages"] == ["server auth", "client auth"]
    assert len(BOTH) == 2  # as the tests' own authority writes them


def test_the_pages_field_names_the_pages_secret() -> None:
    raw: dict[str, Any] = {"target": {"model": {"uri": "file:///m"}}, "draft": {"method": "None"}}
    spec = parse({**raw, **RESOURCE["spec"]})
    assert spec.transport.tls_secret_ref == SecretRef(name=CERTIFICATE["spec"]["secretName"])


def test_the_crd_says_the_same_name_and_usages() -> None:
    crd = (ROOT / "crds" / "speculativedeployments.yaml").read_text()
    assert (
        f"for the DNS name\n                      `{tls.ROLE_NAME}` and the usages `server auth` and `client auth`"
        in crd
    )
