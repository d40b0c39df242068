"""Knows, as a pytest plugin, two things of a mutant's process: it imports the copy and not the checkout, or nothing is
proven; and a failing example is failure enough, however long it is.
"""

import os
from pathlib import Path

from hypothesis import Phase, settings

import tandem_runtime


def pytest_configure() -> None:
    imported, planted = Path(tandem_runtime.__file__).parent.parent, Path(os.environ["TANDEM_MUTANT_FOLDER"])
    assert imported == planted, f"the tests would run on {imported}, not on the copy in {planted}"
    settings.register_profile("mutants", deadline=None, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
