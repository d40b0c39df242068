"""Knows, as a pytest plugin, that a mutant's process imports the copy and not the checkout; else nothing is proven."""

import os
from pathlib import Path

import tandem_runtime


def pytest_configure() -> None:
    imported, planted = Path(tandem_runtime.__file__).parent.parent, Path(os.environ["TANDEM_MUTANT_FOLDER"])
    assert imported == planted, f"the tests would run on {imported}, not on the copy in {planted}"
