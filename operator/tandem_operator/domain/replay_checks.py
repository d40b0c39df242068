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
    """On against off, held against off against off: 40 of 400 beside 2 of 400 is no rounding, 3 of 400 may be.

    Plain answers of both revisions count where they share the target. Their rate is known as well as that many splits
    tell: one more than there were keeps few plain answers from calling the first split proof.
    """
    own, stables = _both(evidence)
    canary = own or Replayed()
    plain = [each for each in (own, stables if shares_target else None) if each is not None]
    split, answers = canary.uncertain, canary.uncertain + canary.equal
    plain_split = sum(each.plain_uncertain for each in plain)
    plain_answers = plain_split + sum(each.plain_equal for each in plain)
    draft = CheckResult(
        name="nearTies",
        verdict=CheckVerdict.PASS,
        value="" if not answers else f"{split / answers:.4f}",
        threshold="no more than plain answers",
        samples=f"{split}/{answers} replayed against {plain_split}/{plain_answers} plain ones",
    )
    if not answers or not plain_answers:
        words = "no answers of both kinds have been replayed yet, and their splits say nothing alone"
        return stated(draft, CheckVerdict.NOT_COMPARED, words)
    e_value = log_e_value(error_evidence(split, plain_split + 1, answers / (answers + plain_answers)))
    if split / answers > plain_split / plain_answers and e_value >= math.log(1 / alpha):
        words = f"answers split from plain decoding more often than plain ones from themselves: E = {grand(e_value)}"
        return stated(draft, CheckVerdict.FAIL, words)
    return stated(draft, CheckVerdict.PASS, f"rounding may do it: E = {grand(e_value)}")


def _both(evidence: Evidence) -> tuple[Replayed | None, Replayed | None]:
    """Of the canary, and of stable."""
    canary, stable = (_total(evidence.strata(name).values()) for name in (evidence.canary, evidence.stable))
    return canary, stable


def _total(strata: Iterable[Stratum]) -> Replayed | None:
    total = total_of(strata)
    return None if total is None else total.exactness
