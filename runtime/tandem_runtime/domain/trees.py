"""Knows how a tree of guesses is judged: which path through it stands, and which token follows.

Refuses to know logits, tensors and generators: laws, choices and chance are arguments.

A tree holds, after every prefix that it reaches, some candidates for the next token, and a tree after each of them. The
target reads all of it in one pass, which gives its law after every prefix in the tree.

**Recursive rejection along the tree** (SpecInfer, Miao et al. 2023, arXiv 2305.09781; Sequoia, Chen et al. 2024, arXiv
2402.12374). At each prefix the candidates are judged as `domain.candidates` says; if one stands, its tree is next; if
none does, the recovered token ends the walk; at a prefix without candidates the token comes from p. Every token has the
target's law after the prefix before it, whichever way it came, so the whole text does. How many candidates a prefix has
may depend on the prefix and on q there, never on the candidates or on what was guessed after them. A chain of single
candidates is the rejection of `domain.verification`. A walk that comes to a place without a law ends before it, as a
proposal does.

**Coupled trees** (Daliri, Musco, Suresh 2024, arXiv 2408.07978, for a chain). The target's own choice after each
prefix, under the shared noise, is emitted always; the walk follows the child that equals it. So a tree is a set of
guesses, and the text is that of plain decoding whatever the tree holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tandem_runtime.domain.candidates import verify_candidates
from tandem_runtime.domain.errors import NO_LAW, BadRequest
from tandem_runtime.domain.sampling import Distribution
from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.domain.verification import Chance

Prefix: TypeAlias = tuple[TokenId, ...]
"""Tokens since the tree's root."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """The candidates after one prefix, in the order in which they were drawn: `tokens` [n], and `after` [n] what was
    guessed after each. `q` [n] is what each was drawn from, given those before it; absent in a coupled tree."""

    tokens: tuple[TokenId, ...] = ()
    after: tuple[Guesses, ...] = ()
    q: tuple[Distribution, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.after) != len(self.tokens):
            raise BadRequest(
                f"{len(self.tokens)} candidates came with {len(self.after)} trees after them; send one for each",
                parameter="proposal.tree",
            )


@dataclass(frozen=True, slots=True)
class Walked:
    """The guesses that stand, from the root on, and the token that follows them."""

    path: Prefix
    token: TokenId


def verify_tree(tree: Guesses, p: Callable[[Prefix], Distribution], chance: Sequence[Chance]) -> Walked:
    """`p`: the target's law after each prefix in the tree; `chance` [depth + 1]: of the candidates at each depth.

    Raises BadRequest where a prefix has not one law per candidate, or a candidate no probability in its own law.
    """
    path: Prefix = ()
    while True:
        try:
            picked = verify_candidates(tree.tokens, tree.q or (), p(path), chance[len(path)])
        except NO_LAW:
            if not path:
                raise
            return Walked(path[:-1], path[-1])
        if picked.index is None:
            return Walked(path, picked.token)
        path, tree = (*path, picked.token), tree.after[picked.index]


def verify_coupled_tree(tree: Guesses, choice: Callable[[Prefix], TokenId]) -> Walked:
    """`choice`: the target's own choice after each prefix in the tree.

    With candidates 4 and 7 at the root and choices 7, then 1: the path is (7,) if nothing was guessed after it but 2,
    and the token 1. Of two children alike the first is followed.
    """
    path: Prefix = ()
    while True:
        try:
            chosen = choice(path)
        except NO_LAW:
            if not path:
                raise
            return Walked(path[:-1], path[-1])
        if chosen not in tree.tokens:
            return Walked(path, chosen)
        path, tree = (*path, chosen), tree.after[tree.tokens.index(chosen)]
