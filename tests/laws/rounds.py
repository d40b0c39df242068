"""Knows one round of a rule from draw to verdict, and models and processors small enough to enumerate.

Refuses to know which rule is right.
"""

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import cache
from typing import TypeAlias

from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, of_weights

from tandem_runtime.domain.sampling import Distribution, draw, filtered, rank
from tandem_runtime.domain.tokens import SamplingParameters, TokenId
from tandem_runtime.domain.verification import Chance, Verified, judged_to_the_last_law

Rule: TypeAlias = Callable[[Sequence[TokenId], Sequence[Distribution], Sequence[Distribution], Chance], Verified]

Proposed: TypeAlias = Callable[[Prefix, int], bool]
"""Whether a draft that has guessed so much, of K, goes on."""


def up_to_k(guessed: Prefix, k: int) -> bool:
    return len(guessed) < k


def up_to_an_end(guessed: Prefix, k: int) -> bool:
    """A draft stops behind token 0, as behind an end token: K depends on what was drawn, and on nothing later."""
    return len(guessed) < k and 0 not in guessed


Kept: TypeAlias = Callable[[Prefix, Prefix], int]
"""How many tokens of a proposal are judged, by what was emitted before it and by the proposal itself."""


def all_of_it(before: Prefix, ids: Prefix) -> int:
    return len(ids)


def drafted(numbers: Numbers, draft: Model, *, k: int, before: Prefix = (), goes_on: Proposed = up_to_k) -> Prefix:
    """A round's proposal, before anything of it is left out."""
    ids: Prefix = ()
    while goes_on(ids, k):
        ids = (*ids, draw(draft(before + ids), numbers("draft", len(before), len(ids))))
    return ids


def emitted(
    numbers: Numbers,
    rule: Rule,
    target: Model,
    draft: Model,
    *,
    k: int,
    before: Prefix = (),
    goes_on: Proposed = up_to_k,
    kept: Kept = all_of_it,
) -> Prefix:
    """What one round emits after `before`."""
    ids, verified = judged(numbers, rule, target, draft, k=k, before=before, goes_on=goes_on, kept=kept)
    return (*ids[: verified.accepted], verified.token)


def judged(
    numbers: Numbers,
    rule: Rule,
    target: Model,
    draft: Model,
    *,
    k: int,
    before: Prefix = (),
    goes_on: Proposed = up_to_k,
    kept: Kept = all_of_it,
) -> tuple[Prefix, Verified]:
    """A round's proposal and verdict. Its numbers are its own: they are named by the offset that it begins at."""
    offset: Hashable = len(before)
    ids = drafted(numbers, draft, k=k, before=before, goes_on=goes_on)
    ids = ids[: kept(before, ids)]
    q = [draft(before + ids[:count]) for count in range(len(ids))]
    p = [target(before + ids[:count]) for count in range(len(ids) + 1)]
    chance = Chance(numbers.all_of("accept", offset), numbers.all_of("follow", offset))
    verified = judged_to_the_last_law(
        ids, lambda count: rule(ids[:count], q[:count], p[: count + 1], chance), lambda count: bool(p[count])
    )
    return ids, verified


def emitted_law(
    rule: Rule, target: Model, draft: Model, *, k: int, goes_on: Proposed = up_to_k
) -> dict[Prefix, Fraction]:
    """The law of the first K + 1 tokens when one round is followed by plain decoding."""
    round_law = law_of_process(lambda numbers: emitted(numbers, rule, target, draft, k=k, goes_on=goes_on))
    return continued(round_law, target, length=k + 1)


def accepted_on_average(rule: Rule, target: Model, draft: Model, *, k: int) -> Fraction:
    law = law_of_process(lambda numbers: len(emitted(numbers, rule, target, draft, k=k)) - 1)
    return sum((count * mass for count, mass in law.items()), Fraction(0))


def model(*rows: Sequence[int]) -> Model:
    """`of_weights`, each law made once."""
    return cache(of_weights(*rows))


def ending_after(raw: Model, *prefixes: Prefix) -> Model:
    """`raw`, but after these prefixes, as rules of a request can do it, nothing may come."""
    return cache(lambda prefix: {} if prefix in prefixes else raw(prefix))


def processed(raw: Model, parameters: SamplingParameters) -> Model:
    """The law after top-k, top-p and min-p of the domain itself."""
    return cache(lambda prefix: filtered(rank(raw(prefix)), parameters))


def reweighted(raw: Model, weigh: Callable[[Prefix, TokenId, Fraction], Fraction]) -> Model:
    """The law after a processor that changes weights by what came before; tokens of no weight are forbidden."""

    def law(prefix: Prefix) -> Distribution:
        weights = {token: weigh(prefix, token, Fraction(mass)) for token, mass in raw(prefix).items()}
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items() if weight}

    return cache(law)


def cooled(prefix: Prefix, token: TokenId, mass: Fraction) -> Fraction:
    """Temperature 1/2."""
    return mass**2


def penalised(prefix: Prefix, token: TokenId, mass: Fraction) -> Fraction:
    """A frequency penalty of ln 2 per earlier appearance, the speculative prefix included."""
    return mass * Fraction(1, 2) ** prefix.count(token)


def without_repeats(prefix: Prefix, token: TokenId, mass: Fraction) -> Fraction:
    """A grammar: no token follows itself."""
    return Fraction(0) if prefix[-1:] == (token,) else mass


PROCESSORS: dict[str, Callable[[Model], Model]] = {
    "temperature": lambda raw: reweighted(raw, cooled),
    "penalty": lambda raw: reweighted(raw, penalised),
    "grammar": lambda raw: reweighted(raw, without_repeats),
    "top-k": lambda raw: processed(raw, SamplingParameters(seed=0, top_k=2)),
    "top-p": lambda raw: processed(raw, SamplingParameters(seed=0, top_p=0.75)),
    "min-p": lambda raw: processed(raw, SamplingParameters(seed=0, min_p=0.5)),
    "all": lambda raw: processed(
        reweighted(reweighted(reweighted(raw, without_repeats), penalised), cooled),
        SamplingParameters(seed=0, top_k=3, top_p=0.75, min_p=0.125),
    ),
}
"""Named processor sets, each from a raw model to what it leaves."""
