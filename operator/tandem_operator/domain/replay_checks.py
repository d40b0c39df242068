"""Knows what answers that were made again without speculation say of a canary.

Refuses to know how they were compared (gateways do) and when this is asked (`health`).

On a target that computes the same bits for the same prefix one answer that differs is proof. On any other two tokens
that are all but equal may change places by rounding, so that even plain answers split from their own replays now and
then. There the canary's answers, in which something was proposed, are held against such plain ones: if they split more
often than chance allows, speculation does more than rounding does.
"""

import math
from collections.abc import Iterable

from tandem_operator.domain.decision import CheckResult, CheckVerdict
from tandem_operator.domain.evidence import Evidence, total_of
from tandem_operator.domain.intervals import error_evidence, log_e_value
from tandem_operator.domain.samples import Replayed, Stratum
from tandem_operator.domain.verdicts import grand, stated


def replayed(evidence: Evidence | None) -> Replayed | None:
    """The canary's answers that were replayed; None where there are none, so that nothing is claimed of them."""
    known = None if evidence is None else _total(evidence.strata(evidence.canary).values())
    return known if known and known.equal + known.different else None


def differences(evidence: Evidence) -> CheckResult:
    """Answers that differ from plain decoding with the same seed: one is proof."""
    known = replayed(evidence) or Replayed()
    draft = CheckResult(
        name="exactness",
        verdict=CheckVerdict.PASS,
        value=str(known.different),
        threshold="0 different",
        samples=f"{known.equal + known.different} replayed",
        message="every replayed answer is that of plain decoding",
    )
    if not known.different:
        return draft
    return stated(draft, CheckVerdict.FAIL, "speculation changed an answer; the gateway's log has its position")


def splits(evidence: Evidence | None) -> bool:
    """Whether a target of either revision is one whose answers split by rounding."""
    if evidence is None:
        return False
    boots = (stratum for boot in evidence.boots.values() for stratum in boot.strata)
    known = (stratum.exactness for stratum in (*evidence.ended, *boots))
    return any(each is not None and each.uncertain + each.plain_equal + each.plain_uncertain > 0 for each in known)


def near_ties(evidence: Evidence, alpha: float, *, shares_target: bool) -> CheckResult:
    """On against off, held against off against off: 40 splits in 80,000 tokens beside 2 in as many are no rounding, 3
    may be.

    By token, since an answer splits the likelier the longer it is, and those in which nothing was proposed are the
    short ones. Plain answers of both revisions count where they share the target, under the same policy: of what is
    asked at another time others may split. Their rate is known as well as that many splits tell: one more than there
    were keeps few plain answers from calling the first split proof.
    """
    spans = _spans(evidence, shares_target=shares_target)
    split, tokens, plain_split, plain_tokens = (sum(span[place] for span in spans) for place in range(4))
    draft = CheckResult(
        name="nearTies",
        verdict=CheckVerdict.PASS,
        value="" if not tokens else f"{1000 * split / tokens:.3f}",
        threshold="splits in 1000 tokens: no more than plain answers",
        samples=f"{split} splits in {tokens} tokens, plain {plain_split} in {plain_tokens}",
    )
    if not tokens or not plain_tokens:
        words = "no answers of both kinds have been replayed under one policy yet, and their splits say nothing alone"
        return stated(draft, CheckVerdict.NOT_COMPARED, words)
    one_more = error_evidence(0, 1, tokens / (tokens + plain_tokens))
    ratios = (error_evidence(ours, plain, on / (on + off)) for ours, on, plain, off in spans)
    e_value = log_e_value([sum(column) for column in zip(one_more, *ratios, strict=True)])
    if split / tokens > plain_split / plain_tokens and e_value >= math.log(1 / alpha):
        words = f"answers split from plain decoding more often than plain ones from themselves: E = {grand(e_value)}"
        return stated(draft, CheckVerdict.FAIL, words)
    return stated(draft, CheckVerdict.PASS, f"rounding may do it: E = {grand(e_value)}")


def _spans(evidence: Evidence, *, shares_target: bool) -> list[tuple[int, int, int, int]]:
    """By policy: splits and compared tokens of the canary's answers, and of plain ones; where there are both."""
    spans = []
    stables = evidence.strata(evidence.stable) if shares_target else {}
    for policy, held in evidence.strata(evidence.canary).items():
        own = held.exactness or Replayed()
        beside = stables[policy].exactness if policy in stables else None
        plain = [own] if beside is None else [own, beside]
        off = sum(each.plain_tokens for each in plain)
        if own.tokens and off:
            spans.append((own.uncertain, own.tokens, sum(each.plain_uncertain for each in plain), off))
    return spans


def _total(strata: Iterable[Stratum]) -> Replayed | None:
    total = total_of(strata)
    return None if total is None else total.exactness
