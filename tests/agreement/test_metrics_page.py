"""The page of contracts names each metric of a gateway, of a target and of a draft, and no other."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.seams.gateway_peers import ShiftedClock, running_gateway
from tests.seams.role_certificates import RoleAuthority, written

from tandem_runtime.engines.options import EngineOptions
from tandem_runtime.engines.scripted import chain_logits
from tandem_runtime.role_server import RoleName, RoleState, load_engine
from tandem_runtime.wire.expiry import expiry_told
from tandem_runtime.wire.server import EngineServer
from tandem_runtime.wire.tls import RoleTls

CONTRACTS = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text()
(METRICS,) = re.findall(r"^## Metrics\n(.*?)^The operator's", CONTRACTS, re.MULTILINE | re.DOTALL)
SCRIPT = "scripted:tandem_runtime.engines.scripted:chain_logits"


def told(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Each metric as Prometheus has it, with the labels that tell its samples apart."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in registry.collect()
    }


def named(prefix: str) -> set[str]:
    return set(re.findall(rf"`(tandem_(?:{prefix})[a-z_]+)", METRICS))


async def test_the_page_names_each_metric_of_a_gateway_and_no_other() -> None:
    async with running_gateway(chain_logits, chain_logits) as running:
        await running.plain(prompt="b", max_tokens=20)
        metrics = running.gateway.books.metrics
        metrics.watch_keys(lambda: False)
        names = told(metrics.registry)
    assert set(names) == named("") - named("engine|role_")
    for name, labels in names.items():
        assert ("drafter" in labels) == name.startswith("tandem_spec_decode_"), name
        own = labels - {"revision", "arm", "drafter"}
        assert not own or f"`{name}{{{','.join(own)}}}`" in METRICS, name


@pytest.mark.parametrize("role", list(RoleName))
async def test_the_page_names_each_metric_of_a_role_and_no_other(role: RoleName, tmp_path: Path) -> None:
    clock, state = ShiftedClock(), RoleState()
    options = EngineOptions(model=SCRIPT, device="cpu", max_sessions=2)
    tls = RoleTls(written(tmp_path, RoleAuthority().issue()))
    async with expiry_told(tls, state.registry, clock=clock):
        with load_engine(role, options, clock=clock) as engine:
            state.serves(engine, EngineServer(engine.role, host="127.0.0.1", port=0))
            names = told(state.registry)
    assert set(names) == named("engine|role_")
    for name, labels in names.items():
        assert not labels or f"`{name}{{{','.join(labels)}}}`" in METRICS, name
