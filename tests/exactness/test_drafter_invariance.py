"""In coupled mode a caller sees what plain decoding says: a few hundred sequences; `make exactness` runs 100,000.

A failing sequence prints the command that reproduces it.
"""

import pytest
from tests.exactness.cases import group_of
from tests.exactness.invariance import prove

GROUPS = range(4)


@pytest.mark.parametrize("number", GROUPS)
async def test_no_sequence_depends_on_speculation(number: int) -> None:
    tally = await prove(group_of(number), reference_every=4)
    assert not tally.mismatches, "\n".join(map(str, tally.mismatches[:3]))
    assert 0 < tally.accepted < tally.proposed
    assert tally.prepared > 0
    assert sum(tally.faults.values()) > 10
    assert tally.cut_off > 0
