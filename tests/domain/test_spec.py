"""Reading a spec: defaults, tolerance, and errors that name the field."""

from collections.abc import Mapping
from typing import Any

import pytest

from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.fields import field_name
from tandem_operator.domain.spec import (
    AlertSelector,
    CanaryStep,
    Draft,
    DraftMethod,
    Gateway,
    Model,
    Placement,
    Resources,
    Rollback,
    SecretRef,
    Spec,
    Target,
    parse,
)

SMALLEST: Mapping[str, Any] = {
    "target": {"model": {"uri": "file:///m/target"}},
    "draft": {"model": {"uri": "file:///m/draft"}},
}


def with_target(**fields: object) -> dict[str, Any]:
    return {**SMALLEST, "target": {**SMALLEST["target"], **fields}}


def test_the_smallest_spec_has_defaults_for_everything_else() -> None:
    assert parse(SMALLEST) == Spec(
        target=Target(model=Model(uri="file:///m/target")), draft=Draft(model=Model(uri="file:///m/draft"))
    )


def test_a_target_alone_needs_no_draft_model() -> None:
    spec = parse({"target": SMALLEST["target"], "draft": {"method": "None"}})
    assert spec.draft == Draft(method=DraftMethod.NONE)


def test_unknown_fields_are_passed_over() -> None:
    newer = {**SMALLEST, "fromTheFuture": 1, "draft": {**SMALLEST["draft"], "flavour": "strange"}}
    assert parse(newer) == parse(SMALLEST)


def test_null_and_empty_text_in_an_optional_field_mean_absent() -> None:
    raw = with_target(image="", replicas=None, placement={"accelerator": "", "priorityClassName": ""})
    assert parse({**raw, "servedModelName": "", "gateway": {"authSecretRef": {"name": ""}}}) == parse(SMALLEST)


def test_values_are_read_where_they_stand() -> None:
    raw = {
        **with_target(
            model={"uri": "hf://a/b", "revision": "0" * 40, "secretRef": {"name": "token"}},
            engineArgs={"dtype": "fp32"},
            resources={"requests": {"cpu": 2}, "limits": {"memory": "1024Mi", "cpu": "1500m"}},
            placement={"accelerator": "H100", "count": 8, "tolerations": [{"key": "a", "operator": "Exists"}]},
        ),
        "gateway": {"replicas": 3},
        "canary": {"steps": [{"percent": 0, "shadow": True}, {"percent": 50, "holdSeconds": 1, "pause": True}]},
        "rollback": {"onAlerts": {"names": [], "matchLabels": {"severity": "critical"}}, "dryRun": True},
    }
    spec = parse(raw)
    assert spec.target == Target(
        model=Model(uri="hf://a/b", revision="0" * 40, secret_ref=SecretRef(name="token")),
        engine_args={"dtype": "fp32"},
        resources=Resources(requests={"cpu": "2"}, limits={"memory": "1Gi", "cpu": "1500m"}),  # type: ignore[dict-item] # quantities are text
        placement=Placement(accelerator="H100", count=8, tolerations=({"key": "a", "operator": "Exists"},)),
    )
    assert spec.gateway == Gateway(replicas=3)
    assert spec.canary.steps == (
        CanaryStep(percent=0, shadow=True),
        CanaryStep(percent=50, hold_seconds=1, pause=True),
    )
    assert spec.rollback == Rollback(
        on_alerts=AlertSelector(names=(), match_labels={"severity": "critical"}), dry_run=True
    )


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({}, "spec.target", "give it a value"),
        ({"target": {}, "draft": {}}, "spec.target.model", "give it a value"),
        ({**SMALLEST, "draft": {}}, "spec.draft.model", "method Model needs a model"),
        (with_target(model={"uri": 7}), "spec.target.model.uri", "must be text"),
        (with_target(model="m"), "spec.target.model", "must be a map of fields"),
        (with_target(replicas="2"), "spec.target.replicas", "must be a whole number"),
        (with_target(replicas=True), "spec.target.replicas", "must be a whole number"),
        (with_target(engine="VLLM"), "spec.target.engine", "must be one of Torch"),
        (with_target(engineArgs={"threads": 1}), "spec.target.engineArgs.threads", "must be text"),
        (with_target(resources={"limits": {"memory": "1Gb"}}), "spec.target.resources.limits.memory", "quantity"),
        (with_target(placement={"tolerations": ["x"]}), "spec.target.placement.tolerations[0]", "must be a map"),
        (with_target(podTemplate={"a": "x" * 16_384}), "spec.target.podTemplate", "must be at most 16384 bytes"),
        ({**SMALLEST, "paused": "yes"}, "spec.paused", "must be true or false"),
        ({**SMALLEST, "canary": {"steps": [{"percent": 1}, {}]}}, "spec.canary.steps[1].percent", "give it a value"),
        ({**SMALLEST, "canary": {"steps": "0,50"}}, "spec.canary.steps", "must be a list"),
        ({**SMALLEST, "speculation": {"mode": False}}, "spec.speculation.mode", "must be one of Auto, Always, Off"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(raw: Mapping[str, object], path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(raw)
    assert caught.value.path == path
    assert message in str(caught.value)


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(SpecError) as caught:
        parse(with_target(engine="x" * 500))
    assert str(caught.value) == f"spec.target.engine is '{'x' * 76}...: must be one of Torch"


def test_field_names_are_camel_case() -> None:
    assert field_name("min_gain_basis_points") == "minGainBasisPoints"
