"""Knows which tokens come out of a proposal: the reference for every verifier, in plain and slow words.

Refuses to know logits, tensors and generators: laws and chance are arguments.

Two rules, both exact: whatever the draft proposes, the emitted tokens have the target's law. (A third, which judges a
proposal as one block, is in `domain.block`.)

**Coupled** (Daliri, Musco, Suresh 2024, arXiv 2408.07978: drafter-invariant speculation). Draft and target share Gumbel
noise g per position and token. The target's own choice y_i = argmax(log p_i + g_i) is emitted always; a proposed token
counts as accepted iff it equals y_i. So the text is a function of target, request and seed alone; a draft that perturbs
with the same noise matches with probability at least (1 - TV) / (1 + TV).

**Rejection** (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318). The draft drew x_i from
q_i. Accept with probability min(1, p_i(x_i) / q_i(x_i)); at the first rejection draw from the residual law
max(p_i - q_i, 0), renormalised; if all K stand, draw the bonus token from p_K. The chance that position i is accepted,
given that all before it are, is the sum over x of min(p_i(x), q_i(x)). q_i must be what x_i was really drawn from:
dense, cut to the likeliest few, rounded to what the wire carries, or one-hot (then acceptance is p(x) and the residual
is p without x), all by the same formula. If p = q up to rounding and a rejection still happens, the residual has no
mass, and p takes its place.

An empty proposal gives one token by either rule: that is ordinary decoding.

**Credits.** Whether an examined position stands is a coin whose chance the verifier knows: c = min(1, p(x) / q(x)), and
p(x) for a certain guess. Who learns what a draft is worth learns more from the chance than from the coin
(Rao-Blackwell): given that all before it stand, both have the mean sum over x of min(p(x), q(x)), and the chance varies
less, as the coin is it plus noise. A verdict tells it for each examined position. In coupled mode there is no coin, and
the match bit is all that there is to tell.

**Where the law ends.** The target may have no law after some prefix of the proposal: a request's rules leave no token
there, or the model's logits are no numbers. Plain decoding shows the tokens before such a place and fails at it, and so
must a round, whichever of its places that is. So the proposal is judged up to there only (in a block, as a shorter
block); if all of it stands, its last token is told as the one that follows, and the next round begins at the place and
fails. Where the law ends depends on the tokens before alone, which is what a shorter proposal may depend on.

Two things would break the law of
rejection and block without any test of one round seeing it, so they are rules. Whether position j is proposed may
depend on what came before it and on q_j, never on the drawn x_j or later (`admissible` cuts by q for this reason). And
no number of chance may be used in two rounds (`keyed_chance`): block looks at numbers and tokens beyond those that it
accepts, so the next round, which comes to the same positions, must not find them again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite

from tandem_runtime.domain.errors import NO_LAW, BadRequest, NotANumber
from tandem_runtime.domain.noise import Salt, uniform_at
from tandem_runtime.domain.sampling import Distribution, Probability, draw
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, SparseRow, TokenId, Verification

SUM_TOLERANCE = 1e-3
"""How far from 1 a row of q may add up. Rounding every entry to float32 moves the sum by 6e-8, to float16 by 5e-4; a
row further off was cut and not renormalised, or is no row of q."""


@dataclass(frozen=True, slots=True)
class Verified:
    """`accepted` of the proposed tokens stand, then `token` follows: recovered after a rejection, else bonus; where the
    law ends, the last of the proposed tokens that stand."""

    accepted: int
    token: TokenId
    credits: tuple[Probability, ...] = field(default=(), compare=False, repr=False)
    """For each examined position the chance that it stood; empty in coupled mode, and where the law ends. No part of
    what was decided, so it makes no two verdicts differ."""


@dataclass(frozen=True, slots=True)
class Chance:
    """Uniform numbers in (0, 1) for one round, K and K + 1 of them.

    `accept[i]` judges position i; `follow[n]` draws the token after n accepted ones.
    """

    accept: Sequence[Probability]
    follow: Sequence[Probability]


def verify_coupled(proposed: Sequence[TokenId], choices: Sequence[TokenId]) -> Verified:
    """`choices` [K + 1]: the target's own choice after each prefix of the proposal.

    verify_coupled([5, 3, 9], [5, 3, 1, 2]) accepts 2 and goes on with 1. Raises BadRequest where lengths disagree.
    """
    _refuse_lengths(len(proposed), laws=len(choices))
    accepted = 0
    while accepted < len(proposed) and proposed[accepted] == choices[accepted]:
        accepted += 1
    return Verified(accepted, choices[accepted])


def verify_rejection(
    proposed: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution], chance: Chance
) -> Verified:
    """`q` [K]: what each token was drawn from; `p` [K + 1]: the target's law after each prefix of the proposal.

    Raises BadRequest where lengths disagree, and where a proposed token has no probability in its own q: such a draw
    cannot have happened. Raises NotANumber where a law of the target that is looked at is none.
    """
    refuse_mismatch(proposed, q, p)
    credits: list[Probability] = []
    for position, token in enumerate(proposed):
        law = target_law(p, position)
        credits.append(min(1, law.get(token, 0) / offered(q[position], token, position)))
        if chance.accept[position] * offered(q[position], token, position) >= law.get(token, 0):
            return Verified(position, draw(residual(law, q[position]), chance.follow[position]), tuple(credits))
    accepted = len(proposed)
    return Verified(accepted, draw(target_law(p, accepted), chance.follow[accepted]), tuple(credits))


def judged_to_the_last_law(
    proposed: Sequence[TokenId], judge: Callable[[int], Verified], has_law: Callable[[int], bool]
) -> Verified:
    """The verdict on a proposal behind which, or within which, the target's law may end.

    `judge(k)` judges the first k of the proposed tokens by any rule and raises one of `NO_LAW` if it comes to a place
    without a law; `has_law(i)`: is there a law after the first i? With none after (4, 7), the proposal (4, 7, 9) whose
    first two tokens stand gives Verified(1, 7). Raises what `judge` raises where there is no law at the first place.
    """
    try:
        return judge(len(proposed))
    except NO_LAW:
        lawful = sum(1 for _ in takewhile(has_law, range(len(proposed) + 1)))
        if lawful == 0:
            raise
    try:
        return judge(lawful)
    except NO_LAW:
        return Verified(lawful - 1, proposed[lawful - 1])


def residual(p: Distribution, q: Distribution, *, share: Probability = 1) -> Distribution:
    """max(share p - q, 0), renormalised, or p itself where nothing is left.

    residual({0: .75, 1: .25}, {0: .5, 1: .5}) = {0: 1}. Token by token the share is 1; in a block it is what is left of
    the accepted tokens' own probability.
    """
    left = {token: share * p[token] - q.get(token, 0) for token in p if share * p[token] > q.get(token, 0)}
    total = sum(left.values())
    return {token: mass / total for token, mass in left.items()} if left else p


def offered(q: Distribution, token: TokenId, position: int) -> Probability:
    """The probability with which a proposed token was drawn. Raises BadRequest unless it is above 0."""
    probability = q.get(token, 0)
    if not probability > 0:
        raise BadRequest(
            f"token {token} was proposed at position {position} with probability {probability}; "
            "send the law that it was drawn from",
            parameter=f"proposal.q[{position}]",
        )
    return probability


def target_law(p: Sequence[Distribution], position: int) -> Distribution:
    """p at one position. Raises NotANumber if it holds NaN, an infinity or a negative number, or no token at all."""
    law = p[position]
    if not law or not all(isfinite(probability) and probability >= 0 for probability in law.values()):
        raise NotANumber(
            f"the target's law at position {position} of the proposal is none; nothing can be judged by it"
        )
    return law


def law_of(row: SparseRow) -> Distribution:
    """A row of the wire as a law, in ascending order of id.

    What was rounded for the wire no longer adds up to 1. A draft draws from the rounded weights in proportion, so the
    law of its draw is the weights by their sum: law_of(((7, 2), (.5, .25))) = {2: 1/3, 7: 2/3}.
    """
    total = sum(row.probabilities)
    return {token: weight / total for token, weight in sorted(zip(row.ids, row.probabilities, strict=True))}


def keyed_chance(parameters: SamplingParameters, offset: int, k: int) -> Chance:
    """The chance of the round at `offset`, from the noise. Rounds of one session differ in their offsets."""

    def numbers(salt: Salt, count: int) -> tuple[float, ...]:
        return tuple(round_uniform(parameters, salt, offset, i) for i in range(count))

    return Chance(accept=numbers(Salt.ACCEPT, k), follow=numbers(Salt.RESIDUAL, k + 1))


def round_uniform(parameters: SamplingParameters, salt: Salt, offset: int, index: int) -> float:
    """The uniform number `index` of the round at `offset`: of no other round, and of no other place in it."""
    return uniform_at(parameters.seed, parameters.choice, salt, offset, index)


def admissible(proposal: Proposal, *, vocab_size: int) -> Proposal:
    """The proposal up to the first position at which the draft could have offered an id that the target does not know.

    That is read off q where there is one. Read off the drawn id it would depend on the draw, and the law would suffer.
    """
    if proposal.q is None and _are_known(proposal.ids, vocab_size):
        return proposal
    for position, token in enumerate(proposal.ids):
        row = None if proposal.q is None or position >= len(proposal.q) else proposal.q[position]
        ids = (token,) if row is None else row.ids
        if any(not 0 <= candidate < vocab_size for candidate in ids):
            return replace(proposal.first(position), survivals=proposal.survivals)
    return proposal


def refuse_bad_proposal(proposal: Proposal, verification: Verification, *, vocab_size: int) -> None:
    """Raises BadRequest, naming the field, for what no draft can have drawn: ids outside the vocabulary, rows of q that
    are missing, too many, or no law, and a token that its own row excludes. In coupled mode q is not looked at."""
    if not _are_known(proposal.ids, vocab_size):
        position, token = next((at, id) for at, id in enumerate(proposal.ids) if not 0 <= id < vocab_size)
        path = f"proposal.ids[{position}]"
        raise BadRequest(f"{path} is {token}; this model knows 0 to {vocab_size - 1}", parameter=path)
    if verification is Verification.COUPLED:
        return
    rows = proposal.q or ()
    if len(rows) != len(proposal.ids):
        raise BadRequest(
            f"proposal.q has {len(rows)} rows for {len(proposal.ids)} proposed ids; send one row per id",
            parameter="proposal.q",
        )
    for position, (token, row) in enumerate(zip(proposal.ids, rows, strict=True)):
        refuse_bad_row(row, f"proposal.q[{position}]")
        offered(dict(zip(row.ids, row.probabilities, strict=True)), token, position)


def _are_known(ids: tuple[TokenId, ...], vocab_size: int) -> bool:
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)


def refuse_bad_row(row: SparseRow, path: str) -> None:
    """Raises BadRequest where a row of q is no law: lengths that disagree, an id twice, a probability that is negative,
    above 1 or no number, or a sum that is not 1."""
    if len(row.ids) != len(row.probabilities):
        raise BadRequest(f"{path}: {len(row.ids)} ids but {len(row.probabilities)} probabilities", parameter=path)
    if len(set(row.ids)) != len(row.ids):
        raise BadRequest(f"{path} holds an id twice; add its probabilities up", parameter=path)
    for token, probability in zip(row.ids, row.probabilities, strict=True):
        if not (isfinite(probability) and 0 <= probability <= 1 + SUM_TOLERANCE):
            raise BadRequest(f"{path} gives token {token} the probability {probability}", parameter=path)
    total = sum(row.probabilities)
    if abs(total - 1) > SUM_TOLERANCE:
        raise BadRequest(f"{path} adds up to {total}; renormalise what the token was drawn from", parameter=path)


def refuse_mismatch(proposed: Sequence[TokenId], q: Sequence[Distribution], p: Sequence[Distribution]) -> None:
    """Raises BadRequest unless there are K laws of the draft and K + 1 of the target."""
    if len(q) != len(proposed):
        raise BadRequest(
            f"proposal.q has {len(q)} rows for {len(proposed)} proposed ids; send one row per id",
            parameter="proposal.q",
        )
    _refuse_lengths(len(proposed), laws=len(p))


def _refuse_lengths(k: int, *, laws: int) -> None:
    if laws != k + 1:
        raise BadRequest(
            f"a proposal of {k} ids is judged by {k + 1} rows of the target, and {laws} are here",
            parameter="proposal.ids",
        )
