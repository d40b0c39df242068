"""From an accelerator's name to what a pod must say."""

from collections.abc import Mapping

import pytest

from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.pools import Alternative, Terms, choose, read_table

GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}
TABLE = {
    "L4": (
        Alternative(label="nvidia.com/gpu.product", values=("NVIDIA-L4", "NVIDIA-L4-SHARED"), tolerations=(GPU_TAINT,)),
        Alternative(
            label="cloud.google.com/gke-accelerator", values=("nvidia-l4",), tolerations=(GPU_TAINT, {"key": "x"})
        ),
        Alternative(label="other.example/gpu", values=("l4",), resource="other.example/gpu"),
    )
}


def terms(expressions: list[Mapping[str, object]], *tolerations: Mapping[str, object]) -> Terms:
    required = {"nodeSelectorTerms": [{"matchExpressions": [each]} for each in expressions]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return Terms(affinity=affinity, tolerations=tolerations, resource="nvidia.com/gpu", count=2)


PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4", "NVIDIA-L4-SHARED"]}
GKE = {"key": "cloud.google.com/gke-accelerator", "operator": "In", "values": ["nvidia-l4"]}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (None, terms([PRODUCT, GKE], GPU_TAINT, {"key": "x"})),
        ([], terms([PRODUCT, GKE], GPU_TAINT, {"key": "x"})),
        ([{"nvidia.com/gpu.product": "NVIDIA-L4"}], terms([PRODUCT], GPU_TAINT)),
        ([{"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}], terms([PRODUCT], GPU_TAINT)),
        ([{"cloud.google.com/gke-accelerator": "nvidia-l4"}], terms([GKE], GPU_TAINT, {"key": "x"})),
        ([{"nvidia.com/gpu.product": "NVIDIA-L40S"}], terms([PRODUCT, GKE], GPU_TAINT, {"key": "x"})),
        ([{"nvidia.com/gpu.product": "NVIDIA-L4-MIG-1g"}], terms([PRODUCT, GKE], GPU_TAINT, {"key": "x"})),
    ],
    ids=["unreadable", "none", "product", "shared", "gke", "an L40S is not an L4", "partitioned"],
)
def test_the_first_alternative_that_exists_is_chosen_else_all(
    nodes: list[Mapping[str, str]] | None, expected: Terms
) -> None:
    assert choose("L4", count=2, table=TABLE, nodes=nodes, path="p") == expected


def test_an_alternative_with_another_resource_is_chosen_only_where_it_exists() -> None:
    found = choose("L4", count=1, table=TABLE, nodes=[{"other.example/gpu": "l4"}], path="p")
    assert (found.resource, found.tolerations) == ("other.example/gpu", ())


def test_a_name_outside_the_table_is_refused_with_its_path_and_what_there_is() -> None:
    with pytest.raises(SpecError) as caught:
        choose("L40", count=1, table=TABLE, nodes=None, path="spec.draft.placement.accelerator")
    message = "spec.draft.placement.accelerator is 'L40': is not in the accelerator table, which holds L4"
    assert str(caught.value) == message


def test_a_table_is_read_from_json() -> None:
    raw = {
        "L4": [
            {"label": "a", "values": ["b"], "tolerations": [GPU_TAINT]},
            {"label": "c", "values": ["d"], "resource": "e/f"},
        ]
    }
    assert read_table(raw) == {
        "L4": (
            Alternative(label="a", values=("b",), tolerations=(GPU_TAINT,)),
            Alternative(label="c", values=("d",), resource="e/f"),
        )
    }


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ([], "accelerators"),
        ({"L4": []}, "accelerators.L4"),
        ({"L4": ["x"]}, "accelerators.L4[0]"),
        ({"L4": [{"values": ["b"]}]}, "accelerators.L4[0].label"),
        ({"L4": [{"label": "a", "values": []}]}, "accelerators.L4[0].values"),
        ({"L4": [{"label": "a", "values": [4]}]}, "accelerators.L4[0].values"),
        ({"L4": [{"label": "a", "values": ["b"], "resource": "gpu"}]}, "accelerators.L4[0].resource"),
        ({"L4": [{"label": "a", "values": ["b"], "tolerations": ["x"]}]}, "accelerators.L4[0].tolerations"),
    ],
)
def test_a_wrong_table_is_refused_with_its_path(raw: object, path: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_table(raw)
    assert caught.value.path == path
