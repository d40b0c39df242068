"""What a gateway answers about its evidence, as the operator reads it."""

from dataclasses import replace

import pytest

from tandem_operator.domain import record
from tandem_operator.domain.samples import BUCKETS, Arm, Document, FirstTokens


def test_a_document_is_read_as_the_contract_writes_it() -> None:
    row = list(range(BUCKETS))
    raw = {
        "version": 1,
        "boot": "4be1",
        "policy": 12,
        "admitted": {"targets": {"91ab02c4": 2}, "drafts": {"0be3fa77": 1}},
        "serving": True,
        "strata": [
            {
                "policy": 12,
                "revision": "b07d51ee",
                "requests": 118,
                "errors": 0,
                "acceptance": {"accepted": row, "examined": row, "requests": row},
                "rounds": 900,
                "proposed": 3600,
                "emitted": 2900,
                "speculating": 870,
                "shadow": {"matched": row, "examined": row},
                "firstToken": {"edgesMilliseconds": [10], "bins": {"1": row}},
            }
        ],
        "slots": [
            {
                "pod": "uid",
                "target": "91ab02c4",
                "slot": 87231112,
                "arm": "on",
                "policy": 12,
                "revision": "b07d51ee",
                "tokens": 810,
                "milliseconds": 9120,
            }
        ],
    }
    document = record.load(Document, raw)
    assert (document.boot, document.admitted.targets, document.strata[0].speculating) == ("4be1", {"91ab02c4": 2}, 870)
    assert document.slots[0].arm is Arm.ON
    assert document.strata[0].first_token == FirstTokens((10,), {"1": tuple(row)})
    young = replace(document.strata[0], acceptance=None)
    bare = record.load(Document, {**raw, "strata": [{"policy": 12, "revision": "b07d51ee"}]})
    assert bare.strata[0].acceptance is young.acceptance


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"policy": 1},
        {"boot": "x", "policy": "1"},
        {"boot": "x", "policy": 1, "strata": [{"policy": 1, "revision": "r", "acceptance": {"accepted": [1]}}]},
    ],
)
def test_what_is_no_evidence_is_refused_with_its_path(raw: object) -> None:
    with pytest.raises(record.RecordError, match=r"\$"):
        record.load(Document, raw)
