"""Knows how to run one model with and without proposals, and to compute both rows of a first split anew.

Refuses to know what explains a split: that is `domain.certificate`.

Proposals are given, so that they can be right and wrong on purpose; sessions, wires and drafts are not needed to find a
kernel that rounds by company or a cache that is off by one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tandem_runtime.domain.certificate import Split
from tandem_runtime.domain.tokens import Proposal, SamplingParameters, TokenId, Verification
from tandem_runtime.engines.rejection import verify
from tandem_runtime.engines.sampler import coupled_choice
from tandem_runtime.ports import Logits, Row, StepModel

__all__ = ["VerifiedText", "plain_text", "rows_both_ways", "split_at", "verified_text"]


@dataclass(frozen=True, slots=True)
class VerifiedText:
    """The tokens, and for each the row that gave it: where the row began, and its tokens."""

    tokens: tuple[TokenId, ...]
    rounds: tuple[tuple[int, tuple[TokenId, ...]], ...]


def plain_text(
    model: StepModel, prompt: Sequence[TokenId], parameters: SamplingParameters, count: int
) -> tuple[TokenId, ...]:
    """`count` tokens after `prompt`, one by one."""
    known = list(prompt)
    with _prefilled(model, known[:-1]) as slot:
        for position in range(count):
            [logits] = model.forward([Row(slot, len(known) - 1, (known[-1],), 1)])
            known.append(coupled_choice(logits[0], parameters, position))
    return tuple(known[len(prompt) :])


def verified_text(
    model: StepModel,
    prompt: Sequence[TokenId],
    parameters: SamplingParameters,
    *,
    guesses: Sequence[TokenId],
    k: int,
) -> VerifiedText:
    """As many tokens after `prompt` as there are guesses, in rounds of `k`: guesses[i] is proposed for position i."""
    known, rounds = list(prompt), list[tuple[int, tuple[TokenId, ...]]]()
    with _prefilled(model, known[:-1]) as slot:
        while len(rounds) < len(guesses):
            proposal = Proposal(tuple(guesses[len(rounds) : len(rounds) + k]))
            start, tokens = len(known) - 1, (known[-1], *proposal.ids)
            [logits] = model.forward([Row(slot, start, tokens, len(tokens))])
            verdict = verify(logits, proposal, parameters, verification=Verification.COUPLED, offset=len(rounds))
            known += [*proposal.ids[: verdict.accepted], verdict.token]
            rounds += [(start, tokens)] * (verdict.accepted + 1)
    return VerifiedText(tuple(known[len(prompt) :][: len(guesses)]), tuple(rounds[: len(guesses)]))


def rows_both_ways(
    model: StepModel, known: Sequence[TokenId], start: int, tokens: tuple[TokenId, ...]
) -> tuple[Logits, Logits]:
    """The row [vocab] after `known`, as plain decoding computes it, and as a verify of `tokens` from `start` does."""
    last = len(known) - 1
    with _prefilled(model, known[:last]) as slot:
        [plain] = model.forward([Row(slot, last, (known[last],), 1)])
    with _prefilled(model, known[:start]) as slot:
        [verified] = model.forward([Row(slot, start, tokens, len(tokens))])
    return plain[0], verified[last - start]


def split_at(
    model: StepModel, prompt: Sequence[TokenId], plain: Sequence[TokenId], verified: VerifiedText, position: int
) -> Split:
    """The split at `position`, the first where the texts differ."""
    start, tokens = verified.rounds[position]
    rows = rows_both_ways(model, [*prompt, *plain[:position]], start, tokens)
    return Split(
        position=position,
        plain_token=plain[position],
        verified_token=verified.tokens[position],
        plain_row=rows[0].tolist(),
        verified_row=rows[1].tolist(),
    )


@contextmanager
def _prefilled(model: StepModel, known: Sequence[TokenId]) -> Iterator[int]:
    """A slot of its own that holds `known`."""
    slot = model.allocate()
    try:
        if known:
            model.forward([Row(slot, 0, tuple(known), 0)])
        yield slot
    finally:
        model.release(slot)
