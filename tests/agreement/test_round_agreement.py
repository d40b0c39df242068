"""A round is counted once and by one definition: reply, evidence, metrics and belief agree on whatever rounds come."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tandem_runtime.domain.acceptance import ALIKE, UNKNOWN
from tandem_runtime.domain.evidence import Arm, Ledger
from tandem_runtime.domain.policy import ControlPolicy, ExactnessPolicy, OwnWish, SpeculationPolicy
from tandem_runtime.domain.tokens import Ahead, Drafter, Round, Verification
from tandem_runtime.gateway.accounts import Account, Assignment, RoundPlace
from tandem_runtime.local import local_policy
from tandem_runtime.policy import PolicyInForce
from tandem_runtime.telemetry import Metrics

POLICY = local_policy(
    "chat",
    drafters=[Drafter.MODEL],
    speculation=SpeculationPolicy(),
    control=ControlPolicy(off_percent=0),
    exactness=ExactnessPolicy(0),
)
PLACE = RoundPlace(pod="target-0", has_draft=True, warm=True)
SECONDS = st.floats(0, 1)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """As a session makes them: of what was proposed some is not judged, of the rest some is accepted, and an answer
    that ends within the proposal cuts off what lies behind."""
    proposed = draw(st.integers(0, 8))
    unjudged = draw(st.integers(0, proposed))
    accepted = draw(st.integers(0, proposed - unjudged))
    ends_within = accepted > 0 and draw(st.booleans())
    draft, draft_way, queue, forward, target_way, rest = (draw(SECONDS) for _ in range(6))
    return Round(
        proposed=proposed,
        accepted=accepted,
        emitted=accepted if ends_within else accepted + 1,
        cut=proposed - unjudged - accepted if ends_within else 0,
        unjudged=unjudged,
        drafting_seconds=draft,
        draft_seconds=draft + draft_way,
        queue_seconds=queue,
        forward_seconds=forward,
        verify_seconds=queue + forward + target_way,
        seconds=draft + draft_way + queue + forward + target_way + rest,
        prefill=draw(st.booleans()),
        drafter=draw(st.sampled_from(list(Drafter))),
        ahead=draw(st.none() | st.builds(Ahead, st.booleans(), st.integers(0, 9))) if proposed else None,
    )


def summed(metrics: Metrics) -> dict[str, float]:
    """Each sample over all its labels, but a histogram's buckets."""
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                sums[sample.name.removesuffix("_total").removeprefix("tandem_")] += sample.value
    return sums


@settings(max_examples=60, deadline=None)
@given(st.lists(rounds(), min_size=1, max_size=20))
def test_reply_evidence_metrics_and_belief_agree_on_any_rounds(told: list[Round]) -> None:
    ledger, metrics = Ledger(boot="boot"), Metrics()
    assignment = Assignment(POLICY, POLICY.revisions[0], "unit", OwnWish())
    account = Account(assignment, PolicyInForce(POLICY), ledger=ledger, metrics=metrics)
    for round in told:
        account.add_round(round, PLACE)
    (stratum,) = ledger.document(wall=0.0, policy=1, admitted={}, serving=True)["strata"]
    reply, shown = account.report(verification=Verification.COUPLED, seed=0), summed(metrics)
    accepted, examined = sum(stratum["acceptance"]["accepted"]), sum(stratum["acceptance"]["examined"])
    assert reply["rounds"] == stratum["rounds"] == shown["rounds"] == shown["round_proposed_tokens_count"]
    assert reply["proposed"] == stratum["proposed"] == shown["spec_decode_num_draft_tokens"]
    assert reply["proposed"] == shown["round_proposed_tokens_sum"]
    assert reply["accepted"] == accepted == shown["spec_decode_num_accepted_tokens"]
    assert reply["accepted"] == shown["spec_decode_num_accepted_tokens_per_pos"]
    assert reply["rejections"] == examined - accepted
    assert stratum["speculating"] == shown["spec_decode_num_drafts"]
    assert stratum["emitted"] == shown["output_tokens"]
    believed = [round.evidence for round in told]
    assert sum(map(len, believed)) == examined
    assert sum(map(sum, believed)) == accepted


@given(rounds())
def test_what_is_examined_moves_the_belief_and_nothing_else_does(told: Round) -> None:
    believed, own = UNKNOWN.observed(told.evidence, ALIKE)
    assert own.expected <= told.examined
    assert (believed is UNKNOWN) == (told.examined == 0)
    assert len(believed.tilts) == told.examined


@settings(max_examples=60, deadline=None)
@given(st.lists(rounds(), min_size=1, max_size=20))
def test_the_stages_are_the_parts_of_decode_time(told: list[Round]) -> None:
    metrics = Metrics()
    for round in told:
        metrics.add_round(round, revision="r", arm=Arm.ON)
    shown = summed(metrics)
    decoding = [round for round in told if not round.prefill]
    assert shown["decode_seconds"] == pytest.approx(sum(round.seconds for round in decoding))
    assert shown["stage_seconds"] == pytest.approx(shown["decode_seconds"], abs=1e-9)
    assert shown["inter_token_latency_seconds_count"] == len(decoding)
    whole = sum(round.proposed > 0 and round.accepted == round.proposed for round in told)
    assert shown["spec_decode_num_full_proposals"] == whole
    ahead = [round.ahead for round in told if round.ahead is not None]
    assert shown["ahead_proposals"] == len(ahead)
    assert shown["ahead_wasted_tokens"] == sum(each.wasted for each in ahead)
