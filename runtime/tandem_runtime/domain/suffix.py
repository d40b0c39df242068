"""Knows how to guess what comes next in a text from what stood there before: by its last few tokens, or by the longest.

Refuses to know models, sessions and costs. Only committed tokens enter, so nothing is ever taken back.

**N-grams** (prompt lookup, Saxena 2023): the last three tokens, else two, are looked up, and what followed their most
recent earlier occurrence is offered. The text is kept as packed bytes, and the search is that of bytes.

**Suffix automaton** (Blumer et al. 1985). A state stands for all substrings with one set of end positions; its link
leads to the longest suffix with more of them, so the chain of links from the whole text holds every suffix of it, and
the first link from there is the longest one that also stands earlier. A token is appended in O(1), amortised, with two
states and three edges at most. Beside it each state counts how often it stood and how often something followed, and
knows its likeliest follower, the latest of equals: all states of the chain change with each token, and the longest
`COUNTED` of them are told.

A guess goes on while enough of it will survive. How often the likeliest follower of a match is right is learnt from the
output itself, token by token, whether it was proposed or not, by the length of the match and the follower's share. Each
text that is looked in is judged by itself, and the one whose next token is likeliest to be right is followed.

**Predictions.** A request may say what its output will be like. Its beginning is a match of the output's beginning, of
length 1 before anything was said; where the output leaves the prediction, it is found again by the longest match.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

from tandem_runtime.domain.tokens import TokenId

ROOT, NOWHERE = 0, -1
COUNTED = 16
"""Of the suffixes of a text so many, the longest, learn what followed: few texts have more that differ in use."""
LEAST_SURVIVAL = 0.15
"""A token that is less likely to stand, all before it included, is not worth its row in a verification."""
PRIOR_STRENGTH = 2.0
KEPT = 0.95
"""A kind of match is judged by about its last 20 tokens."""
NGRAMS = (3, 2)
_STATE_BYTES, _BRANCH_BYTES, _EDGE_BYTES = 28, 200, 80
_MOST_TOKEN_BYTES = 2 * _STATE_BYTES + _BRANCH_BYTES + 3 * _EDGE_BYTES
_ID_BYTES = 4


class Guess(NamedTuple):
    """What may follow, and by position the believed chance that it and all before it do."""

    ids: tuple[TokenId, ...]
    survivals: tuple[float, ...]


NO_GUESS = Guess((), ())


class Text(Protocol):
    """One session's tokens, prompt and output, and guesses at what follows."""

    def read(self, ids: Sequence[TokenId]) -> None:
        """What was given: the text goes on with `ids`."""
        ...

    def hear(self, ids: Sequence[TokenId]) -> None:
        """What the target said: as `read`, and a lesson in what guesses are worth."""
        ...

    def guess(self, k: int) -> Guess:
        """At most `k` tokens; none where nothing like the end of the text stood before."""
        ...


class NGramText:
    """By n-grams. Four bytes a token; a guess searches the text, at about a gigabyte per second."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._calibration = Calibration()
        self._run = 0
        """So many tokens in a row were as expected: who copies goes on copying."""

    def read(self, ids: Sequence[TokenId]) -> None:
        self._packed += array("i", ids).tobytes()

    def hear(self, ids: Sequence[TokenId]) -> None:
        for token in ids:
            found = self._found()
            if found is not None:
                n, start = found
                expected = array("i", bytes(self._packed[start : start + _ID_BYTES]))[0]
                hit = expected == token
                self._calibration.learn(Step(expected, 1.0, n + self._run), hit=hit)
                self._run = self._run + 1 if hit else 0
            self.read((token,))

    def guess(self, k: int) -> Guess:
        """A continuation that runs into the end of the text goes on periodically."""
        found = self._found()
        if found is None or k == 0:
            return NO_GUESS
        n, start = found
        period = array("i", bytes(self._packed[start : start + k * _ID_BYTES]))
        ids = tuple(period[at % len(period)] for at in range(k))
        chances = (self._calibration.chance(Step(token, 1.0, n + self._run + at)) for at, token in enumerate(ids))
        return Guess(ids, tuple(accumulate(chances, mul)))

    def _found(self) -> tuple[int, int] | None:
        """The longest of the n-grams that stood before, and where what followed it begins."""
        for n in NGRAMS:
            start = self._follower(n)
            if start is not None:
                return n, start
        return None

    def _follower(self, n: int) -> int | None:
        """Where what follows the latest earlier occurrence of the last `n` tokens begins, in bytes."""
        size = n * _ID_BYTES
        if len(self._packed) <= size:
            return None
        needle, end = self._packed[-size:], len(self._packed) - _ID_BYTES
        found = self._packed.rfind(needle, 0, end)
        while found % _ID_BYTES and found >= 0:  # two halves of ids can look like one
            found = self._packed.rfind(needle, 0, found + size - 1)
        return found + size if found >= 0 else None


class Place(NamedTuple):
    """A match: the last `length` tokens read are a string of `state`."""

    state: int
    length: int


class Step(NamedTuple):
    """One token of a continuation: its share of what followed a match of `length` tokens."""

    token: TokenId
    share: float
    length: int


class SuffixAutomaton:
    """Of one text, or of several with separators between. Ids are not negative; what is negative separates."""

    def __init__(self) -> None:
        self._lengths, self._links = array("i"), array("i")
        self._counts, self._followed = array("i"), array("i")
        self._likeliest = array("i")
        self._tokens, self._children = array("i"), array("i")
        """Each state's first edge; most have no other."""
        self._branches: dict[int, dict[TokenId, int]] = {}
        """The other edges."""
        self._edges = 0
        self._separators = 0
        self._last = self._add(0, NOWHERE)

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        states = len(self._lengths) * _STATE_BYTES
        return states + len(self._branches) * _BRANCH_BYTES + self._edges * _EDGE_BYTES

    @property
    def place(self) -> Place:
        """The longest suffix of the text that also stands earlier in it."""
        state = max(self._links[self._last], ROOT)
        return Place(state, self._lengths[state])

    @property
    def whole(self) -> Place:
        """The text itself as a match, behind which stands what will be appended."""
        return Place(self._last, self._lengths[self._last])

    def separate(self) -> None:
        """What follows is another text: no match reaches across."""
        self._separators += 1
        self.append(NOWHERE - self._separators)

    def append(self, token: TokenId) -> None:
        before = state = self._last
        whole = self._add(self._lengths[before] + 1, ROOT)
        while state != NOWHERE and self._child(state, token) == NOWHERE:
            self._join(state, token, whole)
            state = self._links[state]
        if state != NOWHERE:
            self._links[whole] = self._child_of_longest(state, token)
        self._last = whole
        if token >= 0:
            self._count(before, token)

    def follow(self, place: Place, token: TokenId) -> Place:
        """The longest match that ends with `token`, from one that ended before it."""
        state, length = place
        while length <= self._lengths[max(self._links[state], ROOT)] and state != ROOT:
            state = self._links[state]  # it was split since
        while (child := self._child(state, token)) == NOWHERE:
            if state == ROOT:
                return Place(ROOT, 0)
            state = self._links[state]
            length = self._lengths[state]
        return Place(child, length + 1)

    def ahead(self, place: Place, *, beyond: bool = True) -> Iterator[Step]:
        """What most often followed, token by token, for as long as one asks; ends where nothing ever followed. At the
        end of a text it goes on from a shorter match, if `beyond`."""
        state, length = place
        while state != ROOT:
            token = self._likeliest[state]
            if token < 0 and not beyond:
                return
            if token < 0:
                state = self._links[state]
                length = self._lengths[state]
                continue
            child = self._child(state, token)
            yield Step(token, min(self._counts[child] / self._followed[state], 1.0), length)
            state, length = child, length + 1

    def _count(self, before: int, token: TokenId) -> None:
        """`token` followed every suffix of the text that ended in `before`."""
        counts, followed, likeliest, links = self._counts, self._followed, self._likeliest, self._links
        told = NOWHERE
        for _ in range(COUNTED):
            child = self._child(before, token)
            if child != told:
                counts[child] += 1
                told = child
            if before == ROOT:
                return
            followed[before] += 1
            known = likeliest[before]
            if known != token and (known < 0 or counts[child] >= counts[self._child(before, known)]):
                likeliest[before] = token
            before = links[before]

    def _child_of_longest(self, state: int, token: TokenId) -> int:
        """The state of the longest string of `state` with `token` behind it, split off where it has longer ones."""
        child, length = self._child(state, token), self._lengths[state] + 1
        if self._lengths[child] == length:
            return child
        part = self._add(length, self._links[child])
        for each in (self._counts, self._followed, self._likeliest, self._tokens, self._children):
            each[part] = each[child]
        if child in self._branches:
            self._branches[part] = dict(self._branches[child])
            self._edges += len(self._branches[part])
        self._links[child] = part
        while state != NOWHERE and self._child(state, token) == child:
            self._join(state, token, part)
            state = self._links[state]
        return part

    def _add(self, length: int, link: int) -> int:
        self._lengths.append(length)
        self._links.append(link)
        self._counts.append(0)
        self._followed.append(0)
        self._likeliest.append(NOWHERE)
        self._tokens.append(NOWHERE)
        self._children.append(NOWHERE)
        return len(self._lengths) - 1

    def _child(self, state: int, token: TokenId) -> int:
        if self._tokens[state] == token:
            return self._children[state]
        others = self._branches.get(state)
        return NOWHERE if others is None else others.get(token, NOWHERE)

    def _join(self, state: int, token: TokenId, child: int) -> None:
        if self._children[state] == NOWHERE or self._tokens[state] == token:
            self._tokens[state], self._children[state] = token, child
            return
        others = self._branches.setdefault(state, {})
        self._edges += token not in others
        others[token] = child


class Calibration:
    """How often the likeliest follower was right, by the match's length and the follower's share, of late."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int], tuple[float, float]] = {}

    def chance(self, step: Step) -> float:
        """Before anything is known a match of m tokens is believed in m of m + 1 cases."""
        hits, trials = self._tallies.get(_kind(step), (0.0, 0.0))
        prior = step.share * step.length / (step.length + 1)
        return (hits + PRIOR_STRENGTH * prior) / (trials + PRIOR_STRENGTH)

    def learn(self, step: Step, *, hit: bool) -> None:
        hits, trials = self._tallies.get(_kind(step), (0.0, 0.0))
        self._tallies[_kind(step)] = (hits * KEPT + hit, trials * KEPT + 1)


def _kind(step: Step) -> tuple[int, int]:
    return min(step.length.bit_length(), 6), int(step.share * 4)


@dataclass(slots=True)
class _Source:
    """A text to look in, where in it we are, and what it was worth."""

    text: SuffixAutomaton
    place: Place = field(default=Place(ROOT, 0))
    calibration: Calibration = field(default_factory=Calibration)
    beyond: bool = True
    """Whether the end of the text may be followed by something."""

    def step(self) -> Step | None:
        return next(self.text.ahead(self.place, beyond=self.beyond), None)

    def worth(self) -> tuple[float, int]:
        """How likely its next token is right, and by how long a match."""
        step = self.step()
        return (0.0, 0) if step is None else (self.calibration.chance(step), step.length)

    def learn(self, token: TokenId) -> None:
        """The output goes on with `token`: was it expected?"""
        expected = self.step()
        if expected is not None:
            self.calibration.learn(expected, hit=expected.token == token)

    def guess(self, k: int) -> Guess:
        ids: list[TokenId] = []
        survivals: list[float] = []
        survival = 1.0
        for step in self.text.ahead(self.place, beyond=self.beyond):
            survival *= self.calibration.chance(step)
            if survival < LEAST_SURVIVAL or len(ids) == k:
                break
            ids.append(step.token)
            survivals.append(survival)
        return Guess(tuple(ids), tuple(survivals))


class SuffixText:
    """By the longest match in the session's own text or in one of `earlier`."""

    def __init__(self, earlier: Iterable[SuffixAutomaton] = ()) -> None:
        self._own = _Source(SuffixAutomaton())
        self._earlier = [_Source(text) for text in earlier]

    def read(self, ids: Sequence[TokenId]) -> None:
        for token in ids:
            self._own.text.append(token)
            for source in self._earlier:
                source.place = source.text.follow(source.place, token)
        self._own.place = self._own.text.place

    def hear(self, ids: Sequence[TokenId]) -> None:
        for token in ids:
            for source in (self._own, *self._earlier):
                source.learn(token)
            self.read((token,))

    def guess(self, k: int) -> Guess:
        return max((self._own, *self._earlier), key=_Source.worth).guess(k)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a request says its output will be like, for all of its sessions: nothing changes it. `start` is the match of
    an output that has not begun."""

    text: SuffixAutomaton
    start: Place


def prediction_of(ids: Iterable[TokenId]) -> Prediction:
    """Some microseconds per token."""
    text = SuffixAutomaton()
    text.separate()
    start = text.whole
    for token in ids:
        text.append(token)
    return Prediction(text, start)


class PredictedText:
    """By the longest match of the output in a prediction of it; behind the prediction's end nothing is guessed."""

    def __init__(self, prediction: Prediction) -> None:
        self._source = _Source(prediction.text, prediction.start, beyond=False)

    def read(self, ids: Sequence[TokenId]) -> None:
        """The prompt is no part of what was predicted."""

    def hear(self, ids: Sequence[TokenId]) -> None:
        source = self._source
        for token in ids:
            source.learn(token)
            source.place = source.text.follow(source.place, token)

    def guess(self, k: int) -> Guess:
        return self._source.guess(k)


class Owner(NamedTuple):
    """Whose outputs they are: a tenant's, under one adapter (None: the model alone)."""

    tenant: str
    adapter: str | None = None


class EarlierOutputs:
    """Outputs of finished sessions by owner, within `budget_bytes`; the owner who came least lately is forgotten first.

    An automaton forgets nothing. So an owner has two, each of a quarter of the budget: one takes outputs until it is
    full, then takes the other's place, which is forgotten."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._owners: OrderedDict[Owner, tuple[SuffixAutomaton, ...]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(text.size_bytes for texts in self._owners.values() for text in texts)

    def of(self, owner: Owner) -> tuple[SuffixAutomaton, ...]:
        """What the owner has, the later last."""
        if owner in self._owners:
            self._owners.move_to_end(owner)
        return self._owners.get(owner, ())

    def add(self, owner: Owner, output: Iterable[TokenId]) -> None:
        """One more output, or one more piece of a long one."""
        text = self._text_with_room(owner)
        text.separate()
        for token in output:
            if text.size_bytes > self._most_bytes:
                text = self._text_with_room(owner)
            text.append(token)
        while self.size_bytes > self._budget_bytes:
            self._owners.popitem(last=False)

    def forget(self, tenant: str) -> None:
        """All that the tenant has, under whatever adapter."""
        for owner in [owner for owner in self._owners if owner.tenant == tenant]:
            del self._owners[owner]

    @property
    def _most_bytes(self) -> int:
        return self._budget_bytes // 4 - _MOST_TOKEN_BYTES

    def _text_with_room(self, owner: Owner) -> SuffixAutomaton:
        known = self.of(owner)
        if not known or known[-1].size_bytes > self._most_bytes:
            known = (*known[-1:], SuffixAutomaton())
            self._owners[owner] = known
        return known[-1]
