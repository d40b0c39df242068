"""Quantities: the spelling that the API server stores, and the exact amount."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.domain.quantity import amount, quantity


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1024Mi", "1Gi"),
        ("1Gi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1023Ki", "1023Ki"),
        ("0.5Ki", "512"),
        ("1000m", "1"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1500m", "1500m"),
        ("0.1m", "100u"),
        ("100000", "100k"),
        ("1e3", "1k"),
        ("5E-3", "5m"),
        ("2E", "2E"),
        ("0", "0"),
        ("0Mi", "0"),
        ("-1", "-1"),
        ("0.0000000001", "1n"),
    ],
)
def test_a_quantity_is_kept_as_the_server_stores_it(written: str, stored: str) -> None:
    assert quantity(written) == stored


@pytest.mark.parametrize("text", ["", "Gi", "1Gb", "1 Gi", "1,5", "0x10", "1e", "one", "1e999", "1KI"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        quantity(text)


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_storing_changes_the_spelling_and_never_the_amount(number: int, suffix: str) -> None:
    written = f"{number}{suffix}"
    assert amount(quantity(written)) == amount(written)
    assert quantity(quantity(written)) == quantity(written)


def test_amounts_are_exact() -> None:
    assert [amount(text) for text in ("500m", "1Ki", "1.5Gi")] == [Fraction(1, 2), 1024, 3 * 2**29]
