"""Knows how a draft follows a session that goes on without it: it scores what the target says, beside the run.

Refuses to stand in the way: nobody waits for a score but a proposal of the same session, which the draft would answer
after it anyway. So acceptance stays known while nothing is proposed, and a draft that gets better is asked again within
some tokens; and the first proposal then finds a draft that has read nearly all. When to listen, and to which draft not
any more for a while, is the pricing's to say (`domain.cells`).
"""

import asyncio
from contextlib import suppress
from typing import assert_never

from tandem_runtime.asking import in_time, proposed, scored
from tandem_runtime.domain.drafting import Pricing
from tandem_runtime.domain.errors import TandemError
from tandem_runtime.domain.session import Overheard, Session
from tandem_runtime.domain.tokens import OpenSession, ProposeRound, ScoreTokens
from tandem_runtime.ports import DraftEngine


class Listener:
    """One session's ear."""

    def __init__(self, session: Session, lookahead: Pricing, *, score_seconds: float, open_seconds: float) -> None:
        self._session = session
        self._lookahead = lookahead
        self._score_seconds = score_seconds
        self._open_seconds = open_seconds
        self._asking: asyncio.Task[None] | None = None

    def look(self, draft: DraftEngine | None) -> bool:
        """Ask the draft if it is time to, and say whether that begins to hold the session."""
        least = self._lookahead.listens
        if draft is None or least is None or not self._is_free():
            return False
        asked = self._session.overhear(least)
        if asked is None:
            return False
        self._asking = asyncio.create_task(self._ask(draft, asked))
        return isinstance(asked, OpenSession)

    async def settle(self) -> None:
        """Wait until the draft has answered."""
        if self._asking is not None:
            await self._asking

    async def stop(self) -> None:
        """Ask no more, whatever is under way."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking

    def _is_free(self) -> bool:
        return self._asking is None or self._asking.done()

    async def _ask(self, draft: DraftEngine, asked: Overheard) -> None:
        try:
            match asked:
                case OpenSession():
                    self._session.overheard(asked, await in_time(self._open_seconds, draft.open(asked)))
                case ProposeRound():
                    await in_time(self._score_seconds, proposed(draft, asked))
                    self._session.overheard(asked)
                case ScoreTokens():
                    self._heard(asked, await in_time(self._score_seconds, scored(draft, asked)))
                case _:
                    assert_never(asked)
        except TandemError:
            self._session.not_overheard()
            self._lookahead.unheard()

    def _heard(self, asked: ScoreTokens, bits: tuple[bool, ...] | None) -> None:
        """A draft that is left alone is no lost one: what it has not heard now it hears later."""
        if bits is None:
            self._lookahead.unheard()
        else:
            self._session.overheard(asked)
            self._lookahead.hear(matched=sum(bits), examined=len(bits))
