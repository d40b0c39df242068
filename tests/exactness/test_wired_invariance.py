"""On the torch engine behind gRPC a caller sees plain decoding's text; `make exactness` runs 1,000 sequences."""

from tests.exactness.cases import group_of
from tests.exactness.invariance import prove
from tests.exactness.wired import wired


async def test_no_sequence_depends_on_speculation_on_the_torch_engine_through_grpc() -> None:
    tally = await prove(group_of(1), staging=wired, reference_every=None)
    assert not tally.mismatches, "\n".join(map(str, tally.mismatches[:3]))
    assert 0 < tally.accepted < tally.proposed
    assert tally.prepared > 0
    assert sum(tally.faults.values()) > 10
    assert tally.cut_off > 0
