"""Knows how a proposal is judged from rows of logits, fast: the rules of `domain.verification` in numpy.

Refuses to know models, sessions and batches. The specifications are `domain.verification` and `domain.block`; this
module must equal them, and tests hold it to that. Rows that cannot matter are not looked at: those beyond the first
rejection, and in a block those beyond a token that the target excludes.

Logits may be of any float type; all arithmetic is float64.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tandem_runtime.domain.block import credit, success
from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.noise import Salt
from tandem_runtime.domain.sampling import Probability
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, SparseRow, Verification
from tandem_runtime.domain.verification import (
    Verified,
    judged_to_the_last_law,
    refuse_bad_proposal,
    round_uniform,
)
from tandem_runtime.engines.noise_words import Floats
from tandem_runtime.engines.sampler import Law, coupled_choices, distribution, draw, has_law
from tandem_runtime.ports import Logits

__all__ = ["verify"]


def verify(
    logits: Logits, proposal: Proposal, parameters: SamplingParameters, *, verification: Verification, offset: int
) -> Verified:
    """Judge a proposal. `logits` [K + 1, vocab] stand after each prefix of it; `offset` is that of its first token.

    Raises NotANumber where the first row is no law, and BadRequest where the proposal is not one that a draft can have
    drawn. A later row that is no law ends the round before it.
    """
    rows, vocab_size = logits.shape
    if rows != len(proposal.ids) + 1:
        raise BadRequest(f"{rows} rows of logits judge a proposal of {rows - 1} ids; it has {len(proposal.ids)}")
    refuse_bad_proposal(proposal, verification, vocab_size=vocab_size)
    rule = _RULES[verification]
    return judged_to_the_last_law(
        proposal.ids,
        lambda k: rule(logits[: k + 1], proposal.first(k), parameters, offset),
        lambda at: has_law(logits[at], parameters),
    )


def _verify_coupled(logits: Logits, proposal: Proposal, parameters: SamplingParameters, offset: int) -> Verified:
    choices = coupled_choices(logits, parameters, offset)
    for accepted, (token, choice) in enumerate(zip(proposal.ids, choices, strict=False)):
        if choice != token:
            return Verified(accepted, choice)
    return Verified(len(proposal.ids), next(choices))


def _verify_rejection(logits: Logits, proposal: Proposal, parameters: SamplingParameters, offset: int) -> Verified:
    credits: list[Probability] = []
    for at, (token, row) in enumerate(zip(proposal.ids, proposal.q or (), strict=True)):
        p, q = distribution(logits[at], parameters), _law_of(row)
        wanted, offered = p.of(token), q.of(token)
        credits.append(min(1.0, wanted / offered))
        if round_uniform(parameters, Salt.ACCEPT, offset, at) * offered >= wanted:
            return _followed(_residual(p, q), at, parameters, offset, credits)
    return _followed(distribution(logits[-1], parameters), len(proposal.ids), parameters, offset, credits)


def _verify_block(logits: Logits, proposal: Proposal, parameters: SamplingParameters, offset: int) -> Verified:
    q = [_law_of(row) for row in proposal.q or ()]
    p = [distribution(logits[0], parameters)]
    credits: list[Probability] = []
    accepted, share, worth = 0, 1.0, 1.0
    stood: Probability = 1.0
    for at, token in enumerate(proposal.ids):
        worth = min(1.0, worth * p[at].of(token) / q[at].of(token))
        credits.append(credit(worth, stood))
        if worth == 0:
            break
        u = round_uniform(parameters, Salt.ACCEPT, offset, at)
        if at + 1 == len(q):
            stands = u < worth
        else:
            p.append(distribution(logits[at + 1], parameters))
            left = float(_left(p[-1], q[at + 1], worth).sum())
            stands = u * (left + (1 - worth)) < left
            stood = success(left, worth)
        accepted, share = (at + 1, worth) if stands else (accepted, share)
    if accepted == len(q):
        return _followed(distribution(logits[accepted], parameters), accepted, parameters, offset, credits)
    return _followed(_residual(p[accepted], q[accepted], share), accepted, parameters, offset, credits)


_RULES: dict[Verification, Callable[[Logits, Proposal, SamplingParameters, int], Verified]] = {
    Verification.COUPLED: _verify_coupled,
    Verification.BLOCK: _verify_block,
    Verification.REJECTION: _verify_rejection,
}


def _followed(
    law: Law, accepted: int, parameters: SamplingParameters, offset: int, credits: Sequence[Probability]
) -> Verified:
    token = draw(law, round_uniform(parameters, Salt.RESIDUAL, offset, accepted))
    return Verified(accepted, token, tuple(credits[: accepted + 1]))


def _law_of(row: SparseRow) -> Law:
    """`domain.verification.law_of`."""
    ids, weights = np.asarray(row.ids, np.int64), np.asarray(row.probabilities, np.float64)
    order = np.argsort(ids)
    return Law(ids[order], weights[order] / weights.sum())


def _residual(p: Law, q: Law, share: float = 1.0) -> Law:
    """max(share p - q, 0), not renormalised, since a draw takes weights; p itself where nothing is left."""
    left = _left(p, q, share)
    kept = left > 0
    return Law(p.ids[kept], left[kept]) if kept.any() else p


def _left(p: Law, q: Law, share: float) -> Floats:
    """max(share p - q, 0) of the tokens of p."""
    left = share * p.probabilities
    at = np.minimum(np.searchsorted(p.ids, q.ids), len(p.ids) - 1)
    shared = p.ids[at] == q.ids
    left[at[shared]] -= q.probabilities[shared]
    return np.maximum(left, 0)
