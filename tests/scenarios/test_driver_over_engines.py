"""Driver, session, batched engines and scripted models together: many sessions at once, the same text for every K."""

import pytest
from tests.scenarios.answering import answers, request_of

from tandem_runtime.domain.lookahead import OFF, Bounds, Mode
from tandem_runtime.domain.tokens import SamplingParameters, Verification
from tandem_runtime.engines.scripted import agreeing, chain_logits, lame_chain_logits

# Greedy text of the chain model, case C01: a fault once seen in assisted generation (transformers #30042) changed it.
GREEDY = {
    (1,): "5312302432531230",
    (1, 2, 3): "2054035015205403",
    (2,) * 15: "5403501520540350",
    (2,) * 16: "1520540350152054",
    (2,) * 17: "0350152054035015",
}
KS = [OFF, *(Bounds(k, k, Mode.ALWAYS) for k in (1, 2, 3, 5, 8)), Bounds(1, 8)]


@pytest.mark.parametrize("bounds", KS, ids=str)
@pytest.mark.parametrize("verification", list(Verification))
async def test_greedy_ids_are_the_same_for_every_k(bounds: Bounds, verification: Verification) -> None:
    greedy = SamplingParameters(seed=3, temperature=0.0)
    requests = [request_of(prompt, verification, greedy) for prompt in GREEDY]
    texts, rounds = await answers(requests, target=chain_logits, draft=lame_chain_logits, bounds=bounds)
    assert texts == list(GREEDY.values())
    if bounds is not OFF:
        accepted, examined = sum(r.accepted for r in rounds), sum(r.examined for r in rounds)
        assert 0 < accepted < examined


@pytest.mark.parametrize("bounds", KS[1:], ids=str)
async def test_coupled_samples_are_the_same_for_every_k(bounds: Bounds) -> None:
    requests = [
        request_of((1, 2), Verification.COUPLED, SamplingParameters(seed=seed, temperature=2.0)) for seed in range(10)
    ]
    plain, _ = await answers(requests, target=chain_logits, draft=chain_logits, bounds=OFF)
    texts, rounds = await answers(
        requests, target=chain_logits, draft=agreeing(chain_logits, acceptance=0.5), bounds=bounds
    )
    assert texts == plain
    assert len(set(texts)) > 5
    assert sum(r.accepted for r in rounds) > 0
