"""Knows how a proposal is judged from rows of logits, fast: the rules of `domain.verification` in numpy.

Refuses to know models, sessions and batches. The specification is `domain.verification`; this module must equal it, and
tests hold it to that. Rows beyond the first rejection are not looked at.

Logits may be of any float type; all arithmetic is float64.
"""

from collections.abc import Sequence

import numpy as np

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, TokenId, Verification
from tandem_runtime.domain.verification import Verified
from tandem_runtime.engines.sampler import Law, coupled_choices, distribution, draw
from tandem_runtime.ports import Logits

__all__ = ["verify"]


def verify(
    logits: Logits, proposal: Proposal, parameters: SamplingParameters, *, verification: Verification, offset: int
) -> Verified:
    """Judge a proposal. `logits` [K + 1, vocab] stand after each prefix of it; `offset` is that of its first token.

    Raises NotANumber, and BadRequest where a proposed token has no probability in the q that came with it.
    """
    if verification is Verification.COUPLED:
        return _verify_coupled(logits, proposal.ids, parameters, offset)
    return _verify_rejection(logits, proposal, parameters, offset)


def _verify_coupled(
    logits: Logits, proposed: Sequence[TokenId], parameters: SamplingParameters, offset: int
) -> Verified:
    choices = coupled_choices(logits, parameters, offset)
    for accepted, (token, choice) in enumerate(zip(proposed, choices, strict=False)):
        if choice != token:
            return Verified(accepted, choice)
    return Verified(len(proposed), next(choices))


def _verify_rejection(logits: Logits, proposal: Proposal, parameters: SamplingParameters, offset: int) -> Verified:
    for accepted, token in enumerate(proposal.ids):
        p, q = distribution(logits[accepted], parameters), _offered(proposal, accepted)
        offered = q.of(token)
        if not offered > 0:
            raise BadRequest(
                f"token {token} was proposed at position {accepted} with probability {offered}; "
                "send the law that it was drawn from",
                parameter=f"proposal.q[{accepted}]",
            )
        if _uniform(parameters, Salt.ACCEPT, offset + accepted) * offered >= p.of(token):
            return Verified(accepted, draw(_residual(p, q), _uniform(parameters, Salt.RESIDUAL, offset + accepted)))
    accepted = len(proposal.ids)
    p = distribution(logits[accepted], parameters)
    return Verified(accepted, draw(p, _uniform(parameters, Salt.RESIDUAL, offset + accepted)))


def _offered(proposal: Proposal, position: int) -> Law:
    """q at one position, as it came over the wire."""
    if proposal.q is None or position >= len(proposal.q):
        raise BadRequest(
            f"a proposal of {len(proposal.ids)} tokens in rejection mode needs as many rows of q",
            parameter="proposal.q",
        )
    row = proposal.q[position]
    ids, probabilities = np.asarray(row.ids, np.int64), np.asarray(row.probabilities, np.float64)
    order = np.argsort(ids)
    return Law(ids[order], probabilities[order])


def _residual(p: Law, q: Law) -> Law:
    """max(p - q, 0), not renormalised, since a draw takes weights; p itself where nothing is left."""
    left = p.probabilities.copy()
    at = np.minimum(np.searchsorted(p.ids, q.ids), len(p.ids) - 1)
    shared = p.ids[at] == q.ids
    left[at[shared]] -= q.probabilities[shared]
    kept = left > 0
    return Law(p.ids[kept], left[kept]) if kept.any() else p


def _uniform(parameters: SamplingParameters, salt: Salt, position: int) -> float:
    return uniform_at(parameters.seed, parameters.choice, salt, position)
