"""A target behind the wire is the target: real gRPC over a real socket, an engine of a few lines behind it."""

import asyncio
from dataclasses import replace

import pytest
from tests.seams.gateway_peers import until
from tests.seams.wire_peers import CAPABILITIES, CountingTarget, next_token, opening, run, target_link, verify

from tandem_runtime.domain.adapters import AdapterDigest, AdapterFacts
from tandem_runtime.domain.tokens import Capabilities, Incarnation, Opened, SessionId, Verdict
from tandem_runtime.wire import client


async def test_a_session_is_opened_and_a_proposal_is_judged() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        first = next_token((1, 2, 3))
        opened = await remote.open(opening())
        verdict = await remote.verify(verify(opened, "s", ids=(first, 999)))
        assert await remote.capabilities() == CAPABILITIES
        assert opened == Opened(Incarnation("first"), cached_tokens=3)
        assert verdict == Verdict(round=0, offset=0, accepted=1, token=next_token((1, 2, 3, first)))


async def test_adapters_that_come_and_go_are_known_at_this_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_AGAIN_SECONDS", 0.01)
    engine, legal = CountingTarget(), AdapterFacts("legal", AdapterDigest("sha256:c"), rank=8, bytes=1000)
    async with target_link(engine) as (remote, _):
        assert remote.adapters == ()
        engine.capable = replace(CAPABILITIES, adapters=(legal,))
        await until(lambda: remote.adapters == (legal,))
        assert await remote.capabilities() == engine.capable
        engine.capable = CAPABILITIES
        await until(lambda: remote.adapters == ())


class TakenAback(CountingTarget):
    """Does not say what it has for some times."""

    failures = 0

    async def capabilities(self) -> Capabilities:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")
        return await super().capabilities()


async def test_an_engine_that_once_did_not_say_what_it_has_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_AGAIN_SECONDS", 0.01)
    engine = TakenAback()
    async with target_link(engine) as (remote, _):
        engine.failures = 2
        await until(lambda: engine.failures == 0)
        engine.capable = replace(CAPABILITIES, adapters=(AdapterFacts("legal", AdapterDigest("sha256:c"), 8, 1000),))
        await until(lambda: remote.adapters == engine.capable.adapters)


async def test_many_sessions_share_one_stream_and_each_gets_its_own_answers() -> None:
    async with target_link(CountingTarget()) as (remote, server):

        async def converse(number: int) -> list[int]:
            name = f"s{number}"
            opened = await remote.open(opening(name, prompt=(number,)))
            return [(await remote.verify(verify(opened, name, round=step, offset=step))).token for step in range(8)]

        texts = await asyncio.gather(*(converse(number) for number in range(100)))
        assert server.sessions == 100
        for number, text in enumerate(texts):
            prefix: tuple[int, ...] = (number,)
            for token in text:
                assert token == next_token(prefix)
                prefix += (token,)


async def test_a_run_equals_that_many_empty_verifies() -> None:
    async with target_link(CountingTarget()) as (remote, _):
        alone = await remote.open(opening("run"))
        verdicts = [each async for each in remote.run(run(alone, "run", max_tokens=5))]
        asked = await remote.open(opening("verify"))
        assert verdicts == [await remote.verify(verify(asked, "verify", round=n, offset=n)) for n in range(5)]


async def test_closing_frees_the_session_at_the_engine() -> None:
    engine = CountingTarget()
    async with target_link(engine) as (remote, server):
        await remote.open(opening())
        other = await remote.open(opening("other"))
        await remote.close(SessionId("s"))
        await remote.close(SessionId("never opened"))
        await remote.verify(verify(other, "other"))
        assert (server.sessions, len(engine.prefixes)) == (1, 1)
