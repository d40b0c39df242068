"""Drafters that take turns by what was committed keep the target's law. Exact, with the product's own judge and lookup.

And one that chooses after it has seen what the model drew breaks it, so that these tests would show it.
"""

from collections.abc import Callable
from fractions import Fraction

import pytest
from tests.laws.enumeration import Model, Numbers, Prefix, continued, law_of_process, plain_law
from tests.laws.rounds import Rule, emitted, model

from tandem_runtime.domain.block import verify_block
from tandem_runtime.domain.drafting import Beliefs, Drafting, Looks
from tandem_runtime.domain.lookahead import Bounds, Mode
from tandem_runtime.domain.sampling import draw
from tandem_runtime.domain.segments import Segment, Segments
from tandem_runtime.domain.suffix import NGramText, SuffixText, Text
from tandem_runtime.domain.tokens import Drafter, Round
from tandem_runtime.domain.verification import verify_rejection

RULES = [pytest.param(verify_rejection, id="rejection"), pytest.param(verify_block, id="block")]
TEXTS = [pytest.param(NGramText, id="ngram"), pytest.param(SuffixText, id="suffix")]
TARGET = model((1, 2), (3, 1))
DRAFT = model((2, 1), (1, 1))
PROMPT = (0, 1, 1, 0, 1, 1, 0, 0, 1)
LENGTH = 4
K = 2


def certain(guess: Prefix, *, after: Prefix) -> Model:
    """A lookup as the verifier sees it: what it offers next has probability 1."""
    return lambda prefix: {guess[len(prefix) - len(after)]: Fraction(1)}


def as_round(drafter: Drafter, proposed: int, emitted_tokens: int) -> Round:
    seconds = 0.018 + (0.004 * proposed if drafter is Drafter.MODEL else 0.0)
    return Round(
        proposed=proposed,
        accepted=emitted_tokens - 1,
        emitted=emitted_tokens,
        draft_seconds=seconds - 0.018,
        verify_seconds=0.018,
        seconds=seconds,
        drafter=drafter,
    )


def by_turns(rule: Rule, text_of: Callable[[], Text]) -> tuple[dict[Prefix, Fraction], set[Drafter]]:
    """The law of the first tokens of an answer, and who made proposals for it."""
    proposers: set[Drafter] = set()

    def process(numbers: Numbers) -> Prefix:
        beliefs = Beliefs(Segments(), Segment("pair"), Looks())
        text, drafting = text_of(), Drafting((Drafter.MODEL, Drafter.NGRAM), beliefs)
        text.read(PROMPT)
        said: Prefix = ()
        while len(said) < LENGTH:
            drafting.choose(Bounds(1, K, Mode.ALWAYS), K, float(len(said)), warm=True)
            guess = text.guess(K)
            turn = drafting.turn({Drafter.NGRAM: guess.survivals}, able=True)
            assert turn is not None
            draft = DRAFT if turn.drafter is Drafter.MODEL else certain(guess.ids, after=said)
            news = emitted(numbers, rule, TARGET, draft, k=turn.k, before=said)
            drafting.learn(as_round(turn.drafter, turn.k, len(news)), float(len(said)), warm=True)
            text.hear(news)
            proposers.add(turn.drafter)
            said += news
        return said

    return continued(law_of_process(process), TARGET, length=LENGTH + K), proposers


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("text_of", TEXTS)
def test_turns_by_what_was_committed_keep_the_law(rule: Rule, text_of: Callable[[], Text]) -> None:
    law, proposers = by_turns(rule, text_of)
    assert law == plain_law(TARGET, length=LENGTH + K)
    assert proposers == {Drafter.MODEL, Drafter.NGRAM}


@pytest.mark.parametrize("rule", RULES)
def test_a_turn_by_what_was_drawn_breaks_the_law(rule: Rule) -> None:
    def process(numbers: Numbers) -> Prefix:
        drawn = draw(DRAFT(()), numbers("draft", 0, 0))
        draft = certain((1,), after=()) if drawn == 0 else DRAFT
        return emitted(numbers, rule, TARGET, draft, k=1)

    assert continued(law_of_process(process), TARGET, length=2) != plain_law(TARGET, length=2)
