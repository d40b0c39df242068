"""The page about conditions, events and endings names each that the operator can tell, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tandem_operator.domain.conditions import CONDITIONS
from tandem_operator.domain.decision import CheckVerdict
from tandem_operator.domain.health import CHECKS
from tandem_operator.domain.moves import _ARRIVED
from tandem_operator.domain.observed import NO_ANSWER
from tandem_operator.domain.progress import AlertAction, SpeculationReason, SpeculationState, Stage
from tandem_operator.domain.settling import HUMAN_ERRORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conditions.md").read_text()
DOMAIN = ROOT / "operator" / "tandem_operator" / "domain"
TOLD_BY = {"GateResult": 1, "say": 0, "warn": 0}
"""Calls that tell something, and which argument is the reason."""


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([A-Z]\w+)`", text))


def calls() -> Iterator[ast.Call]:
    for source in sorted(DOMAIN.glob("*.py")):
        yield from (node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def literals(*names: str) -> set[str]:
    """The reasons that the domain writes out, by the calls of these names."""
    found = set[str]()
    for call in calls():
        place = TOLD_BY.get(called(call)) if called(call) in names else None
        if place is not None and len(call.args) > place:
            reason = call.args[place]
            found |= {reason.value} if isinstance(reason, ast.Constant) and isinstance(reason.value, str) else set()
    return found


def endings() -> set[str]:
    told = (word for call in calls() if called(call) == "Ending" for word in call.keywords if word.arg == "reason")
    return {
        word.value.value for word in told if isinstance(word.value, ast.Constant) and isinstance(word.value.value, str)
    }


def test_every_condition_has_a_row_in_the_order_of_status() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section("Conditions"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(CONDITIONS)


def test_every_reason_of_a_condition_is_on_the_page_and_none_that_it_cannot_have() -> None:
    kept = {NO_ANSWER, *map(str, Stage), *map(str, SpeculationReason), *map(str, CheckVerdict), *HUMAN_ERRORS}
    spelled = set(re.findall(r'yield "(\w+)"', (DOMAIN / "settling.py").read_text()))
    possible = literals("GateResult") | kept | spelled
    kubelets = {"CrashLoopBackOff", "ImagePullBackOff"}
    pods = set(re.findall(r'return "(\w+)", ', (DOMAIN / "conditions.py").read_text()))
    unsaid = {str(CheckVerdict.NOT_COMPARED), str(Stage.STABLE)}
    assert possible - unsaid - named(section("Conditions")) == set()
    assert named(section("Conditions")) - possible - pods - kubelets - set(CONDITIONS) == set()


def test_every_ending_of_a_revision_is_on_the_page() -> None:
    examples = {"AcceptanceDropFailed", "SpeedupFailed", "Failed", "ControllerRevision", "Bad"}
    rules = {check.name[0].upper() + check.name[1:] + "Failed" for check in CHECKS}
    assert {"AcceptanceDropFailed", "SpeedupFailed"} <= rules
    assert named(section("How a revision ends")) - examples == endings() | {"RolledBack"}


def test_every_event_is_on_the_page() -> None:
    acted = (AlertAction.ROLLED_BACK, AlertAction.ABORTED_CANARY, AlertAction.POLICY_UNDONE)
    alerts = {f"Alert{action}" for action in AlertAction if action not in acted}
    turns = {f"Speculation{state}" for state in SpeculationState}
    spoken = literals("say", "warn") | set(_ARRIVED.values()) | alerts | turns | {"RollbackEnded", "DigestsDiffer"}
    assert named(section("Events")) == spoken
