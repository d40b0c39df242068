"""Knows which tokens come out of a proposal: the reference for every verifier, in plain and slow words.

Refuses to know logits, tensors and generators: laws and chance are arguments.

Two rules, both exact: whatever the draft proposes, the emitted tokens have the target's law.

**Coupled** (Daliri, Musco, Suresh 2024, arXiv 2408.07978: drafter-invariant speculation). Draft and target share Gumbel
noise g per position and token. The target's own choice y_i = argmax(log p_i + g_i) is emitted always; a proposed token
counts as accepted iff it equals y_i. So the text is a function of target, request and seed alone; a draft that perturbs
with the same noise matches with probability at least (1 - TV) / (1 + TV).

**Rejection** (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318). The draft drew x_i from
q_i. Accept with probability min(1, p_i(x_i) / q_i(x_i)); at the first rejection draw from the residual law
max(p_i - q_i, 0), renormalised; if all K stand, draw the bonus token from p_K. The chance that position i is accepted,
given that all before it are, is the sum over x of min(p_i(x), q_i(x)). q_i must be what x_i was really drawn from:
dense, cut to the likeliest few, or one-hot (then acceptance is p(x) and the residual is p without x), all by the same
formula. If p = q up to rounding and a rejection still happens, the residual has no mass, and p takes its place.

An empty proposal gives one token by either rule: that is ordinary decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.sampling import Distribution, Probability, draw
from tandem_runtime.domain.tokens import SamplingParameters, SparseRow, TokenId


@dataclass(frozen=True, slots=True)
class Verified:
    """`accepted` of the proposed tokens stand, then `token` follows: recovered after a rejection, else bonus."""

    accepted: int
    token: TokenId


@dataclass(frozen=True, slots=True)
class Chance:
    """Uniform numbers in (0, 1) for one round, K and K + 1 of them.

    `accept[i]` judges position i; `follow[n]` draws the token after n accepted ones.
    """

    accept: Sequence[Probability]
    follow: Sequence[Probability]


def verify_coupled(proposed: Sequence[TokenId], choices: Sequence[TokenId]) -> Verified:
    """`choices` [K + 1]: the target's own choice after each prefix of the proposal.

    verify_coupled([5, 3, 9], [5, 3, 1, 2]) accepts 2 and goes on with 1.
    """
    accepted = 0
    while accepted < len(proposed) and proposed[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted, choices[accepted])


def verify_rejection(
    proposed: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    """`q` [K]: what each token was drawn from; `p` [K + 1]: the target's law after each prefix of the proposal.

    Raises BadRequest where a proposed token has no probability in its own q: such a draw cannot have happened.
    """
    for position, token in enumerate(proposed):
        offered = q[position].get(token, 0)
        if not offered > 0:
            raise BadRequest(
                f"token {token} was proposed at position {position} with probability {offered}; "
                "send the law that it was drawn from",
                parameter=f"proposal.q[{position}]",
            )
        if chance.accept[position] * offered >= p[position].get(token, 0):
            return Verified(position, draw(residual(p[position], q[position]), chance.follow[position]))
    accepted = len(proposed)
    return Verified(accepted, draw(p[accepted], chance.follow[accepted]))


def residual(p: Distribution, q: Distribution) -> Distribution:
    """max(p - q, 0), renormalised, or p itself where nothing is left.

    residual({0: .75, 1: .25}, {0: .5, 1: .5}) = {0: 1}.
    """
    left = {token: p[token] - q.get(token, 0) for token in p if p[token] > q.get(token, 0)}
    total = sum(left.values())
    return {token: mass / total for token, mass in left.items()} if left else p


def law_of(row: SparseRow) -> Distribution:
    """A row of the wire as a law, in ascending order of id."""
    return dict(sorted(zip(row.ids, row.probabilities, strict=True)))


def keyed_chance(parameters: SamplingParameters, offset: int, k: int) -> Chance:
    """The chance of the round at `offset`, from the noise: position by position, so that no number is ever used twice.

    What was drawn beyond a rejection was not looked at, so it is still fresh when the next round comes to its position.
    """

    def numbers(salt: Salt, count: int) -> tuple[float, ...]:
        return tuple(uniform_at(parameters.seed, parameters.choice, salt, offset + i) for i in range(count))

    return Chance(accept=numbers(Salt.ACCEPT, k), follow=numbers(Salt.RESIDUAL, k + 1))
