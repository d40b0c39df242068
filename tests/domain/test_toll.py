"""What a step needs at the least, counted by hand."""

from tandem_runtime.domain.blocks import BlockId
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.toll import Needs, attended
from tandem_runtime.ports import Row, Toll

TOLL = Toll(weight_bytes=1000, position_bytes=8, layer_weights=50, head_weights=30, position_products=2)


def row(start: int, tokens: int, outputs: int) -> Row:
    return Row((BlockId(0),), start, tuple(TokenId(token) for token in range(tokens)), outputs)


def test_three_tokens_at_ten_attend_to_eleven_twelve_and_thirteen_positions() -> None:
    assert attended(row(10, 3, 1)) == 11 + 12 + 13
    assert attended(row(0, 1, 1)) == 1


def test_a_step_reads_its_weights_once_and_each_rows_context() -> None:
    needs = Needs()
    needs.add([row(10, 3, 3), row(99, 1, 1)], TOLL)
    assert needs.bytes_read == 1000 + 8 * (13 + 100)
    assert needs.products == 4 * 50 + 4 * 30 + 2 * (36 + 100)
    needs.add([row(100, 1, 1)], TOLL)
    assert needs.bytes_read == 1000 + 8 * 113 + 1000 + 8 * 101
