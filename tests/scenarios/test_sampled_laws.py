"""The law of sampled answers through driver, session and engines, in every mode: what a request asks for holds at every
position, and a draft with ids of its own does no harm. Frequencies within four standard errors; the seeds are fixed.

The sizes marked `exactness` are those of the cases as they were handed; they print what they counted.
"""

from collections import Counter
from dataclasses import replace
from math import log, sqrt

import pytest
from tests.scenarios.answering import answers, request_of

from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.tokens import SamplingParameters, TokenId, Verification
from tandem_runtime.engines.scripted import Script, chain_logits, lame_chain_logits


def always(*weights: float) -> Script:
    logits = [log(weight) for weight in weights]
    return lambda prefix: logits


def assert_share(count: int, total: int, expected: float) -> None:
    errors = (count / total - expected) / sqrt(expected * (1 - expected) / total)
    told = f"{count} of {total}, {count / total:.4f} where {expected:.4f} was due: {errors:+.2f} standard errors"
    print(told)
    assert abs(errors) < 4, told


AS_HANDED = (pytest.mark.exactness, pytest.mark.timeout(0))
TOP_K, TOP_P = SamplingParameters(seed=0, top_k=2), SamplingParameters(seed=0, top_p=0.65)


@pytest.mark.parametrize("requests", [500, pytest.param(20_000, marks=AS_HANDED)])
@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("max_tokens", [1, 2])
@pytest.mark.parametrize("cut", [TOP_K, TOP_P], ids=["top-k", "top-p"])
async def test_tokens_are_drawn_and_judged_from_the_same_laws(
    mode: Verification, cut: SamplingParameters, max_tokens: int, requests: int
) -> None:
    """Case C02 (transformers #47932): judged by the draft's uncut law the shares would be swapped, 6 errors away."""
    wanted = [replace(cut, seed=seed) for seed in range(requests)]
    texts, rounds = await answers(
        [request_of((1,), mode, one, max_tokens=max_tokens) for one in wanted],
        target=always(0.3, 0.4, 0.2, 0.1),
        draft=always(0.4, 0.3, 0.2, 0.1),
        bounds=Bounds(4, 4, Mode.ALWAYS),
    )
    first = Counter(text[0] for text in texts)
    assert set(first) == {"0", "1"}
    assert_share(first["0"], requests, 3 / 7)
    proposed, accepted = sum(r.proposed for r in rounds), sum(r.accepted for r in rounds)
    assert proposed == (requests if max_tokens == 2 else 0)
    assert max_tokens == 1 or 0 < accepted < proposed


MIN_P = SamplingParameters(seed=0, min_p=0.5)
BIAS = SamplingParameters(seed=0, logit_bias=((2, -100.0),))
LENGTH = 64


@pytest.mark.parametrize("requests", [16, pytest.param(500, marks=AS_HANDED)])
@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("asked", [MIN_P, BIAS], ids=["min-p", "logit bias"])
@pytest.mark.parametrize("k", [0, 1, 4, 8])
async def test_a_request_parameter_holds_at_every_position(
    mode: Verification, asked: SamplingParameters, k: int, requests: int
) -> None:
    """Case C03 (vLLM #42744): token 2 never comes, the other two as if it did not exist, one by one and in pairs."""
    texts, rounds = await answers(
        [request_of((1,), mode, replace(asked, seed=seed), max_tokens=LENGTH) for seed in range(requests)],
        target=always(0.5, 0.3, 0.2),
        draft=always(0.2, 0.2, 0.6),
        bounds=OFF if k == 0 else Bounds(k, k, Mode.ALWAYS),
    )
    tokens = Counter("".join(texts))
    pairs = Counter(pair for text in texts for pair in zip(text[::2], text[1::2], strict=True))
    assert set(tokens) == {"0", "1"}
    assert_share(tokens["0"], requests * LENGTH, 0.625)
    assert_share(pairs["1", "1"], requests * LENGTH // 2, 0.375**2)
    assert (sum(r.proposed for r in rounds) > 0) == (k > 0)


def beyond(prefix: tuple[TokenId, ...]) -> list[float]:
    """A draft of 9 ids for a target of 7: the lame one, that at times prefers an id which the target does not know."""
    return [*lame_chain_logits(prefix), 9.0 if len(prefix) % 4 == 2 else -9.0, -9.0]


@pytest.mark.parametrize("mode", list(Verification))
async def test_a_draft_that_proposes_ids_beyond_the_target_costs_speed_and_never_the_request(
    mode: Verification,
) -> None:
    """Of the kind of case C18 (llama.cpp #28158): the proposal is cut, and the answer is that of K = 0."""
    greedy = SamplingParameters(seed=3, temperature=0.0)
    requests = [replace(request_of((1,) * size, mode, greedy), vocab_size=7) for size in (1, 2, 3, 4)]
    plain, _ = await answers(requests, target=chain_logits, draft=beyond, bounds=OFF)
    texts, rounds = await answers(requests, target=chain_logits, draft=beyond, bounds=Bounds(4, 4, Mode.ALWAYS))
    assert texts == plain
    assert sum(r.accepted for r in rounds) > 0
