"""Knows how several candidates for one position are judged, so that one may stand and the target's law is kept.

Refuses to know logits, tensors, generators, and what comes after the position.

Recursive rejection. Candidates are tried in turn against what is left of the target's law. With p_1 = p, candidate x_i
drawn from q_i, which may depend on the candidates before it:

    accept x_i with probability min(1, p_i(x_i) / q_i(x_i)), else p_(i+1) = max(p_i - q_i, 0), renormalised;
    if none stands, draw the token from the last p

Each step is the rejection of `domain.verification`, so it gives p_i exactly if what comes after a rejection gives
p_(i+1) exactly; by induction from the last step, the token has the law p. What q_i is, is how the draft drew:

    with replacement      q_i = q                        SpecInfer (Miao et al. 2023, arXiv 2305.09781), multi-round
    without replacement   q_i = q without x_1 .. x_(i-1) Sequoia (Chen et al. 2024, arXiv 2402.12374): never tries a
                                                         token twice, so it accepts at least as often
    chosen, not drawn     q_i one-hot                    the likeliest few, or an n-gram's continuations

How many candidates there are may depend on q, never on what was drawn. A token that was rejected has no mass left
under p if it is tried again. Where p_i = q_i up to rounding and a rejection still happens, p_i takes the residual's
place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.sampling import Distribution, draw
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.verification import Chance, offered, residual, target_law


@dataclass(frozen=True, slots=True)
class Picked:
    """The token of the position, and which candidate it was; None: all were rejected and the token is recovered."""

    index: int | None
    token: TokenId


def verify_candidates(
    candidates: Sequence[TokenId], q: Sequence[Distribution], p: Distribution, chance: Chance
) -> Picked:
    """`q` [n]: what each candidate was drawn from, given those before it; `p`: the target's law at the position.

    `chance.accept` [n] judges the candidates; `chance.follow` [1] draws the token if none stands. Raises BadRequest
    where lengths disagree or a candidate has no probability in its own q, NotANumber where p is no law.
    """
    if len(q) != len(candidates):
        raise BadRequest(
            f"{len(candidates)} candidates came with {len(q)} laws; send one law per candidate", parameter="proposal.q"
        )
    left = target_law((p,), 0)
    for index, token in enumerate(candidates):
        if chance.accept[index] * offered(q[index], token, index) < left.get(token, 0):
            return Picked(index, token)
        left = residual(left, q[index])
    return Picked(None, draw(left, chance.follow[0]))


def with_replacement(q: Distribution, candidates: Sequence[TokenId]) -> tuple[Distribution, ...]:
    """The laws of candidates that were all drawn from `q`."""
    return (q,) * len(candidates)


def without_replacement(q: Distribution, candidates: Sequence[TokenId]) -> tuple[Distribution, ...]:
    """The laws of candidates each drawn from what the ones before it left of `q`.

    without_replacement({0: .5, 1: .25, 2: .25}, [0, 2]) = ({0: .5, 1: .25, 2: .25}, {1: .5, 2: .5}).
    """
    return tuple(without(q, candidates[:count]) for count in range(len(candidates)))


def one_hot(candidates: Sequence[TokenId]) -> tuple[Distribution, ...]:
    """The laws of candidates that were chosen, not drawn."""
    return tuple({token: 1} for token in candidates)


def without(q: Distribution, tried: Sequence[TokenId]) -> Distribution:
    """`q` without the tokens tried so far, renormalised; empty if nothing is left."""
    rest = {token: mass for token, mass in q.items() if token not in tried}
    total = sum(rest.values())
    return {token: mass / total for token, mass in rest.items()} if total else {}
