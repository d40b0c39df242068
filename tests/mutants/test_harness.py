"""The harness works: every entry fits the source, two real faults are killed, and a harmless edit survives."""

import pytest
from tests.mutants.fault import EXACT, SAME_LAW, Fault, StaleFault, planted
from tests.mutants.generated import COUNT, generated
from tests.mutants.harness import PACKAGE, HarnessBroken, tried
from tests.mutants.named import NAMED

BY_NAME = {fault.name: fault for fault in NAMED}
ONE_LAW = f"{EXACT}[thirds swapped-rejection]"


@pytest.mark.parametrize("fault", [*NAMED, *generated(PACKAGE)], ids=lambda fault: fault.name)
def test_every_entry_fits_the_source_and_still_is_python(fault: Fault) -> None:
    source = (PACKAGE / fault.file).read_text()
    mutated = planted(fault, source)
    assert mutated != source
    compile(mutated, fault.file, "exec")


def test_names_are_unique_and_there_are_enough() -> None:
    assert len(BY_NAME) == len(NAMED) >= 20
    assert len(generated(PACKAGE)) == COUNT


def test_an_entry_whose_text_is_gone_is_refused() -> None:
    with pytest.raises(StaleFault, match="occurs 0 times"):
        planted(Fault("gone", "domain/noise.py", "no such text", "", "", ()), "source")


def on(fault: str, test: str) -> Fault:
    entry = BY_NAME[fault]
    return Fault(entry.name, entry.file, entry.old, entry.new, entry.why, (test,))


def test_a_wrong_rule_is_killed_by_the_exact_law() -> None:
    outcome = tried(on("recovered token from p in the reference", ONE_LAW))
    assert outcome.killed_by == ONE_LAW


def test_an_edit_that_changes_nothing_survives() -> None:
    harmless = Fault("comment", "domain/noise.py", "VERSION = 1\n", "VERSION = 1  # still\n", "", (ONE_LAW,))
    assert tried(harmless).killed_by is None


def test_tests_that_cannot_run_are_no_kill() -> None:
    broken = Fault("syntax", "engines/sampler.py", "def draw(", "def draw((", "", (SAME_LAW,))
    with pytest.raises(HarnessBroken):
        tried(broken)
