"""Knows the token that the shared noise chooses from a row, fast: `domain.sampling.coupled_choice`, always that one.

Refuses to know bias, penalties and proposals: the row is what the filters see.

A choice is the argmax over the kept tokens of the score fl(fl(l_x / T) + g_x), lowest id on ties. Two logarithms per
token are most of its cost, and nearly all are wasted. Let b be the score of any token that is kept. Then x can win only
if l_x / T + g_x >= b, that is, since -ln u >= 1 - u, only if 1 - u_x <= exp(l_x / T - b). Summed over x the right side
is Z exp(-b), and for the best b that is an Exp(1) number: about one token passes. The bound is used in two halves that
need no exponential either:

    a word below LUCKY has g < REACH, so such a token can win only if l_x / T > b - REACH;
    the other words are one in 64, and of those the same holds again with LUCKIER and FURTHER_REACH.

At first b is the score of the likeliest token; then the best of those with lucky words, so that a row of equal logits
is no bad case: of 768 lucky words the best has g > 4.16 but for a chance of e^-12. If only a third of the
tokens could win by the largest number that noise has, 53 ln 2, only those get words at all.

**Rounding.** Let |peak / T| <= LARGEST = 2^20. Every score that matters then is below 2^21 in size, so each of the two
roundings in it is at most 2^-33; numpy's logarithms differ from the platform's by less than 2^-40 in g. SLACK = 2^-30
is more than all of them together. So a token that is left out above scores less than b whatever is rounded, and tokens
within SLACK of the best are scored again by the domain's own functions, which decides bit for bit. A comparison with a
cut c may be made in the row's own type: rounding is monotone and leaves l_x as it is, so l_x >= c implies that l_x >=
fl(c). This is why float32 (and bf16 held in float32) is safe for screening; it is used for nothing else. Rows that are
larger for their temperature, and temperatures beyond 2^-20 and 2^20, go to the domain itself, cut to the tokens that
have any weight.

**Filters.** The kept tokens are those ranked before some place, so if the choice among all of them is kept, it is the
choice; if not, it is among those ranked before the one refused. Top-k is cut first. Whether min-p keeps a token is
computed as the domain does it. Top-p keeps it if less than `top_p` of the mass ranks before it, so the first is kept;
of others that share is summed in float32, which decides unless it is within DOUBT of `top_p` (`screens` has the proof);
then in float64, which decides unless it is within SLACK; then the domain decides.

Both passes over a whole row, for the winner and for that share, are first left to `screens`, which has them in C. There
b is the best score so far, so the bounds tighten as the pass goes on; a second score within SLACK of it leaves the row
to numpy, and so to the domain.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from tandem_runtime.domain import sampling
from tandem_runtime.domain.noise import Salt, bits, gumbel, key
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.engines.noise_words import (
    Floats,
    Ids,
    Words,
    gumbels,
    lucky_words,
    mixed,
    mixed_tokens,
    noise_bits,
)
from tandem_runtime.engines.ranking import first_ranked
from tandem_runtime.engines.screens import DOUBT, Bounds, Contest, screens
from tandem_runtime.ports import Logits

__all__ = ["is_unfiltered", "perturbed_choice", "perturbed_choices"]

LUCKY, REACH = np.uint64(63 << 58), 4.16
LUCKIER, FURTHER_REACH = np.uint64(1023 << 54), 6.94
"""Words below the first, which are u = 1 - 2^-6 and 1 - 2^-10, have Gumbel numbers of 4.151 and 6.931 at most."""

NOISE_MOST = 36.75
"""Above 53 ln 2, the largest Gumbel number."""

LARGEST, SLACK = 2.0**20, 2.0**-30

_BOUNDS = Bounds(int(LUCKY), int(LUCKIER), REACH, FURTHER_REACH, SLACK)

SCORED_WHOLE = 1024
"""Tokens up to which every one gets its logarithms: there calls cost more."""

SAMPLED = 211
"""One token in so many is looked at to see whether it pays to leave some out: prime, so as not to follow a pattern."""

_WEIGHTLESS = 746.0
"""exp(-746) is 0 in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A row with its law's settings. `beaten` is the score of the likeliest token, which every filter keeps."""

    logits: Logits
    likeliest: TokenId
    peak: float
    parameters: SamplingParameters
    position_key: int
    beaten: float

    def score(self, token: TokenId) -> tuple[float, int]:
        """As the domain computes it, for a maximum that falls to the lowest id."""
        noise = gumbel(bits(self.position_key, token))
        return float(self.logits[token]) / self.parameters.temperature + noise, -token

    def words(self, tokens: Ids) -> Words:
        return noise_bits(self.position_key, tokens, vocab_size=len(self.logits))

    def scores(self, tokens: Ids, words: Words) -> Floats:
        with np.errstate(over="ignore"):
            perturbed: Floats = self.logits[tokens].astype(np.float64) / self.parameters.temperature + gumbels(words)
        return perturbed

    def reaching(self, score: float) -> np.floating:
        """The logit that a token must have for `score`, without noise, in the row's own type."""
        largest = _largest(self.logits.dtype)
        return self.logits.dtype.type(min(max((score - SLACK) * self.parameters.temperature, -largest), largest))


def perturbed_choice(logits: Logits, parameters: SamplingParameters, position: int, *, likeliest: TokenId) -> TokenId:
    """The choice at `position` from `logits` [vocab], T > 0. `likeliest` is their argmax, and finite."""
    position_key = key(parameters.seed, parameters.choice, Salt.COUPLED, position)
    peak = float(logits[likeliest])
    beaten = peak / parameters.temperature + gumbel(bits(position_key, likeliest))
    row = _Row(logits, likeliest, peak, parameters, position_key, beaten)
    if not (abs(peak) <= LARGEST * parameters.temperature and 1 / LARGEST <= parameters.temperature <= LARGEST):
        return _settled(row)
    ranked = _top_k(row)
    pool = ranked
    while True:
        token = _argmax(row, pool)
        kept = _is_kept(row, ranked, token)
        if kept is None:
            return _settled(row)
        if kept:
            return token
        pool = _ranked_before(row, pool, token)


def perturbed_choices(logits: Logits, parameters: SamplingParameters, offset: int) -> list[TokenId] | None:
    """`perturbed_choice` of several unfiltered rows, `logits` [rows, vocab], in the calls of one. None: some row is no
    law, or too large for its temperature, so that each must be looked at by itself."""
    rows, scale = logits.astype(np.float64), parameters.temperature
    for token, bias in parameters.logit_bias:
        rows[:, token] += bias
    if not (np.abs(rows.max(axis=1)) <= LARGEST * scale).all():
        return None
    keys = [key(parameters.seed, parameters.choice, Salt.COUPLED, offset + at) for at in range(len(rows))]
    words = mixed(mixed_tokens(rows.shape[1]) ^ np.array(keys, np.uint64)[:, None])
    every, likeliest = np.arange(len(rows)), rows.argmax(axis=1)
    beaten = rows[every, likeliest] / scale + gumbels(words[every, likeliest])
    near = (words >= LUCKY) | (rows >= ((beaten - REACH - SLACK) * scale)[:, None])
    perturbed = np.full_like(rows, -np.inf)
    with np.errstate(over="ignore"):
        perturbed[near] = rows[near] / scale + gumbels(words[near])
    best = perturbed.argmax(axis=1)
    close = (perturbed >= perturbed[every, best][:, None] - SLACK).sum(axis=1) > 1
    for at in np.flatnonzero(close).tolist():
        best[at] = perturbed_choice(rows[at], parameters, offset + at, likeliest=int(likeliest[at]))
    return [int(token) for token in best]


def is_unfiltered(parameters: SamplingParameters) -> bool:
    return not parameters.top_k and parameters.top_p >= 1 and parameters.min_p <= 0


@cache
def _largest(kind: np.dtype[np.floating]) -> float:
    return float(np.finfo(kind).max)


def _top_k(row: _Row) -> Ids | None:
    """What top-k keeps, in ascending order; None where it keeps all."""
    count = row.parameters.top_k
    return np.sort(first_ranked(row.logits, count)) if 0 < count < len(row.logits) else None


def _argmax(row: _Row, pool: Ids | None) -> TokenId:
    """The choice among the tokens of `pool`, ascending, all where it is None."""
    if pool is None or len(pool) > SCORED_WHOLE:
        winner = screens().winner(row.logits, pool, _contest(row), _BOUNDS)
        if winner is not None:
            return winner
    tokens, scores = _scored(row, _possible(row) if pool is None else pool)
    best = int(scores.argmax())
    finalists = tokens[scores >= scores[best] - SLACK]
    return int(tokens[best]) if len(finalists) == 1 else max(finalists.tolist(), key=row.score)


def _contest(row: _Row) -> Contest:
    return Contest(
        position_key=row.position_key,
        temperature=row.parameters.temperature,
        likeliest=row.likeliest,
        beaten=row.beaten,
        floor=float(_floor(row)),
    )


def _floor(row: _Row) -> np.floating:
    """The logit that the choice has at least, by the reach of noise and by min-p, with something to spare."""
    least = row.beaten - NOISE_MOST
    if row.parameters.min_p > 0:
        least = max(least, row.peak / row.parameters.temperature + math.log(row.parameters.min_p))
    return row.reaching(least)


def _possible(row: _Row) -> Ids | None:
    """Tokens among which the choice is; None: all."""
    floor = _floor(row)
    if 3 * np.count_nonzero(row.logits[::SAMPLED] >= floor) * SAMPLED > len(row.logits):
        return None
    return np.flatnonzero(row.logits >= floor)


def _scored(row: _Row, pool: Ids | None) -> tuple[Ids, Floats]:
    """The tokens of `pool` that can win it, some twice, with their scores."""
    if pool is not None and len(pool) <= SCORED_WHOLE:
        return pool, row.scores(pool, row.words(pool))
    lucky, words = _hopeful(row, pool)
    near = _near(row, pool, row.beaten)
    if len(near) > SCORED_WHOLE:
        near = np.append(_near(row, pool, float(row.scores(lucky, words).max(initial=-np.inf))), row.likeliest)
    tokens = np.concatenate((lucky, near))
    return tokens, row.scores(tokens, np.concatenate((words, row.words(near))))


def _hopeful(row: _Row, pool: Ids | None) -> tuple[Ids, Words]:
    """The tokens with lucky words that can beat the likeliest token."""
    mixes = mixed_tokens(len(row.logits))
    places, words = lucky_words(row.position_key, mixes if pool is None else mixes[pool], LUCKY)
    tokens = places if pool is None else pool[places]
    hopeful = (words >= LUCKIER) | (row.logits[tokens] >= row.reaching(row.beaten - FURTHER_REACH))
    return tokens[hopeful], words[hopeful]


def _near(row: _Row, pool: Ids | None, beaten: float) -> Ids:
    """The tokens that can reach the score `beaten` without a lucky word."""
    near = np.flatnonzero((row.logits if pool is None else row.logits[pool]) >= row.reaching(beaten - REACH))
    return near if pool is None else pool[near]


def _ranked_before(row: _Row, pool: Ids | None, token: TokenId) -> Ids:
    limit = row.logits[token]
    tokens = np.flatnonzero(row.logits >= limit) if pool is None else pool[row.logits[pool] >= limit]
    before: Ids = tokens[(row.logits[tokens] > limit) | (tokens < token)]
    return before


def _is_kept(row: _Row, ranked: Ids | None, token: TokenId) -> bool | None:
    """Do min-p and top-p keep `token`? `ranked`: what top-k kept, all where it is None. None: too close to say."""
    parameters = row.parameters
    if parameters.min_p > 0:
        weight = math.exp((float(row.logits[token]) - row.peak) / parameters.temperature)
        if weight < parameters.min_p:
            return False
    if parameters.top_p >= 1 or token == row.likeliest:
        return True
    if ranked is None:
        share = screens().share_before(row.logits, row.peak, parameters.temperature, token)
        if abs(share - parameters.top_p) > DOUBT:
            return share < parameters.top_p
    share = _share_before(row, np.arange(len(row.logits)) if ranked is None else ranked, token)
    return share < parameters.top_p if abs(share - parameters.top_p) > SLACK else None


def _share_before(row: _Row, tokens: Ids, token: TokenId) -> float:
    """The mass of `tokens` ranked before `token`, over all of theirs."""
    logits, limit = row.logits[tokens].astype(np.float64), float(row.logits[token])
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits - row.peak) / row.parameters.temperature)
    return float(weights[(logits > limit) | ((logits == limit) & (tokens < token))].sum() / weights.sum())


def _settled(row: _Row) -> TokenId:
    """The domain's own choice, from the tokens that have any weight."""
    wanted = row.parameters
    filters = SamplingParameters(
        seed=wanted.seed,
        temperature=wanted.temperature,
        top_k=wanted.top_k,
        top_p=wanted.top_p,
        min_p=wanted.min_p,
    )
    logits = row.logits.astype(np.float64)
    tokens = np.flatnonzero(logits >= row.peak - _WEIGHTLESS * wanted.temperature)
    law = sampling.distribution(logits[tokens].tolist(), filters)
    return max((int(token) for token in tokens[list(law)]), key=row.score)
