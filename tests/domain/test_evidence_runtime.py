"""What the evidence counts, and when slots are told."""

import json

import pytest

from tandem_runtime.domain.evidence import (
    FIRST_TOKEN_EDGES_MILLISECONDS,
    STRETCH_EDGES_MILLISECONDS,
    Arm,
    Ledger,
    SlotKey,
    StratumKey,
    bin_of,
)
from tandem_runtime.domain.policy import RevisionName, RoleHash
from tandem_runtime.domain.replay import Result
from tandem_runtime.domain.tokens import Round

KEY = StratumKey(12, RevisionName("b07d51ee"))


def round_of(proposed: int, accepted: int, *, cut: int = 0) -> Round:
    return Round(proposed, accepted, accepted + 1, 0.0, 0.01, cut=cut)


def slot(number: int, *, arm: Arm = Arm.ON, pod: str = "uid") -> SlotKey:
    return SlotKey(pod, RoleHash("91ab02c4"), number, arm, 12, RevisionName("b07d51ee"))


def test_acceptance_counts_examined_tokens_and_plain_rounds_count_as_rounds_only() -> None:
    stratum = Ledger(boot="b").stratum(KEY)
    for one in (round_of(4, 4), round_of(4, 1), round_of(0, 0), round_of(4, 1, cut=3)):
        stratum.add(one, bucket=5)
    assert (stratum.accepted[5], stratum.examined[5]) == (6, 7)
    assert (sum(stratum.accepted), sum(stratum.examined)) == (6, 7)
    assert (stratum.rounds, stratum.speculating, stratum.proposed, stratum.emitted) == (4, 3, 12, 10)


def test_the_document_is_the_contracts() -> None:
    ledger = Ledger(boot="4be1")
    stratum = ledger.stratum(KEY)
    stratum.know(("greedy", "hot"))
    stratum.add(round_of(4, 3), bucket=0)
    stratum.add_stretch(0.66, tokens=33, bucket=3)
    stratum.requests, stratum.errors = 2, 1
    stratum.exactness.add(Result.EQUAL)
    for seconds, bucket in ((0.06, 3), (0.07, 3), (0.055, 0), (90.0, 3)):
        stratum.add_first_token(seconds, bucket=bucket)
    ledger.add_decode(slot(3), ends_at=80.0, tokens=8, seconds=0.0914)
    document = ledger.document(wall=100.0, policy=12, admitted={"targets": {"91ab02c4": 2}, "drafts": {}}, serving=True)
    zeros = [0] * 127
    results = ("equal", "different", "uncertain", "skipped", "dropped", "failed", "plainEqual", "plainUncertain")
    replays = dict.fromkeys((*results, "tokens", "plainTokens"), 0)
    assert document == {
        "version": 1,
        "boot": "4be1",
        "policy": 12,
        "forgotten": 0,
        "admitted": {"targets": {"91ab02c4": 2}, "drafts": {}},
        "serving": True,
        "strata": [
            {
                "policy": 12,
                "revision": "b07d51ee",
                "requests": 2,
                "errors": 1,
                "acceptance": {"accepted": [3, *zeros], "examined": [4, *zeros], "requests": [0, *zeros]},
                "rounds": 1,
                "proposed": 4,
                "emitted": 4,
                "speculating": 1,
                "shadow": {"matched": [0, *zeros], "examined": [0, *zeros]},
                "exactness": {**replays, "equal": 1},
                "firstToken": {
                    "edgesMilliseconds": list(FIRST_TOKEN_EDGES_MILLISECONDS),
                    "bins": {"4": [1, 0, 0, 2, *zeros[3:]], "22": [0, 0, 0, 1, *zeros[3:]]},
                },
                "stretch": {
                    "edgesMilliseconds": list(STRETCH_EDGES_MILLISECONDS),
                    "bins": {"25": [0, 0, 0, 1, *zeros[3:]]},
                },
                "segments": {name: {"accepted": [0] * 64, "examined": [0] * 64} for name in ("greedy", "hot")},
            }
        ],
        "slots": [
            {
                "pod": "uid",
                "target": "91ab02c4",
                "slot": 3,
                "arm": "on",
                "policy": 12,
                "revision": "b07d51ee",
                "tokens": 8,
                "milliseconds": 91,
            }
        ],
    }


def test_a_round_counts_in_each_segment_that_its_request_is_of_and_in_the_whole() -> None:
    stratum = Ledger(boot="b").stratum(KEY)
    stratum.know(("greedy", "hot", "batch"))
    stratum.add(round_of(4, 3), bucket=70, segments=("greedy", "batch"))
    stratum.add(round_of(4, 1), bucket=6, segments=("greedy",))
    stratum.add(round_of(0, 0), bucket=6, segments=("hot",))
    assert {name: (held.accepted[6], held.examined[6]) for name, held in stratum.segments.items()} == {
        "greedy": (4, 6),
        "hot": (0, 0),
        "batch": (3, 4),
    }
    assert (stratum.accepted[70], stratum.accepted[6]) == (3, 1)


def test_the_time_of_a_stretch_hangs_on_its_pace_and_not_on_its_length() -> None:
    stratum = Ledger(boot="b").stratum(KEY)
    for tokens in (32, 36, 40):  # the last round of a stretch may bring more than are missing
        stratum.add_stretch(0.020 * tokens, tokens=tokens, bucket=3)
    ((index, row),) = stratum.stretches.items()
    assert (STRETCH_EDGES_MILLISECONDS[index - 1] < 640 <= STRETCH_EDGES_MILLISECONDS[index], row[3]) == (True, 3)


def test_slots_are_told_once_closed_oldest_first_and_for_an_hour() -> None:
    ledger = Ledger(boot="b")
    for number in (7, 5, 6):
        ledger.add_decode(slot(number), ends_at=20.0 * (number + 1), tokens=1, seconds=1.0)
    assert [key.slot for key, _ in ledger.closed_slots(wall=139.0)] == [5]
    assert [key.slot for key, _ in ledger.closed_slots(wall=160.0)] == [5, 6, 7]
    assert [key.slot for key, _ in ledger.closed_slots(wall=120.0 + 3600)] == [5, 6, 7]
    assert [key.slot for key, _ in ledger.closed_slots(wall=121.0 + 3900)] == [6, 7]


def test_rounds_of_one_slot_add_up_and_arms_stay_apart() -> None:
    ledger = Ledger(boot="b")
    for seconds in (0.0004, 0.0004, 0.0004):
        ledger.add_decode(slot(1), ends_at=40.0, tokens=2, seconds=seconds)
    ledger.add_decode(slot(1, pod="other", arm=Arm.OFF), ends_at=40.0, tokens=1, seconds=0.02)
    told = ledger.document(wall=40.0, policy=12, admitted={}, serving=True)["slots"]
    assert [(one["pod"], one["arm"], one["tokens"], one["milliseconds"]) for one in told] == [
        ("other", "off", 1, 20),
        ("uid", "on", 6, 1),
    ]


@pytest.mark.parametrize(("seconds", "index"), [(0.0, 0), (0.010, 0), (0.0101, 1), (60.0, 21), (61.0, 22)])
def test_a_first_token_falls_below_the_first_edge_that_holds_it(seconds: float, index: int) -> None:
    assert bin_of(seconds, FIRST_TOKEN_EDGES_MILLISECONDS) == index


# What is forgotten

DAY, KEPT = 86_400.0, 90_000.0
V1, V2 = RevisionName("v1"), RevisionName("v2")


def listed(ledger: Ledger, *, wall: float, policy: int) -> tuple[int, list[tuple[int, str]]]:
    """What is forgotten, and the strata that are told."""
    told = ledger.document(wall=wall, policy=policy, admitted={}, serving=True)
    return told["forgotten"], [(held["policy"], held["revision"]) for held in told["strata"]]


def test_a_policy_that_is_over_is_forgotten_25_hours_after_its_sums_moved_last() -> None:
    ledger = Ledger(boot="b")
    late = ledger.stratum(StratumKey(3, V2))
    ledger.stratum(StratumKey(3, V1)).requests += 1
    ledger.stratum(StratumKey(4, V1)).requests += 1
    assert listed(ledger, wall=0.0, policy=4) == (0, [(3, V1), (3, V2), (4, V1)])
    late.shadow_examined[9] += 1  # an answer that began under it has ended
    assert listed(ledger, wall=60.0, policy=4) == (0, [(3, V1), (3, V2), (4, V1)])
    assert listed(ledger, wall=60.0 + KEPT, policy=4) == (0, [(3, V1), (3, V2), (4, V1)])
    assert listed(ledger, wall=61.0 + KEPT, policy=4) == (3, [(4, V1)])
    assert listed(ledger, wall=9 * DAY, policy=4) == (3, [(4, V1)])


@pytest.mark.parametrize("moved", ["requests", "rounds", "replays"])
def test_whatever_is_counted_is_a_move(moved: str) -> None:
    ledger = Ledger(boot="b")
    stratum = ledger.stratum(KEY)
    listed(ledger, wall=0.0, policy=13)
    match moved:
        case "requests":
            stratum.requests += 1
        case "rounds":
            stratum.add(round_of(4, 3), bucket=0)
        case "replays":
            stratum.exactness.add_plain(Result.EQUAL, 3)
    assert [listed(ledger, wall=wall, policy=13)[0] for wall in (KEPT, KEPT + 1, 2 * KEPT + 1)] == [0, 0, 12]


def test_what_is_forgotten_does_not_come_back() -> None:
    """A reader that knew the sums would take new ones, once they have grown past those, for all there ever was."""
    ledger = Ledger(boot="b")
    held = ledger.stratum(StratumKey(3, V1))
    listed(ledger, wall=0.0, policy=4)
    assert listed(ledger, wall=2 * DAY, policy=4) == (3, [])
    held.requests += 1
    ledger.stratum(StratumKey(2, V1)).shadow_examined[0] += 1
    assert listed(ledger, wall=2 * DAY, policy=4) == (3, [])


def test_a_policy_is_not_forgotten_before_an_older_one_and_what_is_above_was_never_counted() -> None:
    ledger = Ledger(boot="b")
    oldest, _ = (ledger.stratum(StratumKey(number, V1)) for number in (3, 5))
    for day in range(3):
        oldest.requests += 1  # a stream of days
        assert listed(ledger, wall=day * DAY, policy=6) == (0, [(3, V1), (5, V1)])
    assert listed(ledger, wall=5 * DAY, policy=6) == (5, [])


def test_many_policies_within_a_day_leave_an_answer_that_can_be_read() -> None:
    ledger = Ledger(boot="b")
    for number in range(1, 201):
        stratum = ledger.stratum(StratumKey(number, V1))
        stratum.know(f"segment-{index}" for index in range(16))
        for bucket in range(128):
            stratum.add(Round(9, 9, 10, 0.0, 0.01), bucket=bucket, segments=stratum.segments)
            stratum.add_first_token(0.05 * bucket, bucket=bucket)
            stratum.add_stretch(0.02 * bucket, tokens=32, bucket=bucket)
        told = ledger.document(wall=float(number), policy=number, admitted={}, serving=True)
        assert told["forgotten"] < number
        assert told["strata"][-1]["policy"] == number
        assert [held["policy"] for held in told["strata"]] == list(range(told["forgotten"] + 1, number + 1))
    assert told["forgotten"] > 100
    assert len(json.dumps(told, separators=(",", ":"))) < 4_000_000


def test_numbers_that_begin_anew_are_counted() -> None:
    """The policy was deleted by hand while no gateway could be asked for its number."""
    ledger = Ledger(boot="b")
    ledger.stratum(StratumKey(7, V1))
    listed(ledger, wall=0.0, policy=8)
    assert listed(ledger, wall=2 * DAY, policy=8)[0] == 7
    assert listed(ledger, wall=2 * DAY, policy=1)[0] == 0
    ledger.stratum(StratumKey(1, V1)).requests += 1
    assert listed(ledger, wall=2 * DAY, policy=1) == (0, [(1, V1)])
