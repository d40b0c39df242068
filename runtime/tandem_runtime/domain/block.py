"""Knows how a proposal is judged as one block, so that a later success rescues an earlier failure.

Refuses to know logits, tensors and generators: laws and chance are arguments.

Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2). The draft drew x_1 .. x_K, x_i from q_i; p_i is the
target's law at the same position. With w_0 = 1,

    w_i = min(1, w_(i-1) p_i(x_i) / q_i(x_i))                       what the first i tokens are worth, jointly
    Z_i = sum over x of max(w_i p_(i+1)(x) - q_(i+1)(x), 0)         what is left to draw from after them
    h_i = Z_i / (Z_i + 1 - w_i)   for i < K,     h_K = w_K

and independent uniform numbers u_1 .. u_K, the accepted count is tau = max {i : u_i <= h_i}, the LAST success. The
token that follows comes from max(w_tau p_(tau+1) - q_(tau+1), 0), renormalised, or from p_(K+1) if tau = K.

Why it is exact. Claim: P(tau >= i | x_1 .. x_i) = w_i. At i = K that is h_K. Below, if it holds for i + 1, then
P(tau >= i + 1 | x_1 .. x_i) = sum over x of q(x) min(1, w_i p(x) / q(x)) = sum of min(q, w_i p) = w_i - Z_i, and so
P(tau >= i | x_1 .. x_i) = w_i - Z_i + (1 - w_i + Z_i) h_i = w_i. Now the token x comes after x_1 .. x_i either as an
accepted one, with min(q(x), w_i p(x)), or as the one that follows, with (1 - w_i + Z_i) h_i = Z_i times its share
max(w_i p(x) - q(x), 0) / Z_i. Together that is w_i p(x): the target's law, given that x_1 .. x_i stand. Nothing in this
asks that K is the same for all draws, only that whether the block goes on depends on what was drawn so far.

It accepts at least as many tokens in expectation as judging them one by one, for there the first i stand with
probability prod min(1, p_j / q_j), which is at most w_i.

Credits (see `domain.verification`). That position i is examined means tau >= i - 1. As the coin of i - 1 is independent
of what comes later, P(tau >= i - 1 | x_1 .. x_i) = w_i + (1 - w_i) h_(i-1), so the chance that it stands is

    c_i = w_i / (w_i + (1 - w_i) h_(i-1)),   h_0 = 1

The ratio min(1, p_i / q_i) of token-by-token verification would be too low: in a block a later success rescues it.

Zero mass. A token that the target excludes makes w and all that follow it 0: nothing behind it is looked at. Both
w_i = 1 and Z_i = 0 only if p = q at the next position; then w_(i+1) = 1 too, so that a later position stands for sure,
and h_i = 0 / 0 may be anything: here it is 0. In floats the residual of tau may have no mass left; p takes its place.
"""

from collections.abc import Sequence

from tandem_runtime.domain.sampling import Distribution, Probability, draw
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.verification import Chance, Verified, offered, refuse_mismatch, residual, target_law

_WHOLE: Probability = 1


def verify_block(
    proposed: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    """`q` [K]: what each token was drawn from; `p` [K + 1]: the target's law after each prefix of the proposal.

    With p = (1/3, 2/3) and q = (2/3, 1/3) everywhere and K = 2, 11/9 tokens stand on average; one by one, 10/9.
    Raises BadRequest where lengths disagree, and where a proposed token has no probability in its own q; NotANumber
    where a law of the target that is looked at is none.
    """
    refuse_mismatch(proposed, q, p)
    accepted, share = 0, _WHOLE
    worth = stood = share
    credits: list[Probability] = []
    for position, token in enumerate(proposed):
        there = target_law(p, position)
        worth = min(_WHOLE, worth * there.get(token, 0) / offered(q[position], token, position))
        credits.append(credit(worth, stood))
        if worth == 0:
            break
        left = None if position + 1 == len(proposed) else _left(worth, target_law(p, position + 1), q[position + 1])
        if _stands(chance.accept[position], worth, left):
            accepted, share = position + 1, worth
        stood = worth if left is None else success(left, worth)
    law = target_law(p, accepted)
    if accepted < len(proposed):
        law = residual(law, q[accepted], share=share)
    return Verified(accepted, draw(law, chance.follow[accepted]), tuple(credits[: accepted + 1]))


def credit(worth: Probability, stood: Probability) -> Probability:
    """c of a position from its own w and the h of the one before it."""
    return worth / (worth + (1 - worth) * stood) if worth else 0


def success(left: Probability, worth: Probability) -> Probability:
    """h of a position that is not the last, from its Z and w."""
    return left / (left + (1 - worth)) if left else 0


def _left(worth: Probability, p: Distribution, q: Distribution) -> Probability:
    """Z."""
    return sum(max(worth * p[token] - q.get(token, 0), 0) for token in p)


def _stands(u: Probability, worth: Probability, left: Probability | None) -> bool:
    """Whether u is below h: left / (left + (1 - worth)), or worth for the last token, behind which nothing is left."""
    return u < worth if left is None else u * (left + (1 - worth)) < left
