"""Knows how to ask Prometheus, or what speaks its query API, for the answer to one query.

Refuses to know what the answer says (`domain.readings`). A POST, since a query may be longer than a URL; redirects are
not followed, since the token is for one address.
"""

import asyncio
from pathlib import Path

import aiohttp

from tandem_operator.domain.errors import ProviderError

ANSWER_SECONDS = 3.0
"""A look waits for all that it asks at once, and an abort waits for the look; Prometheus gives up after as long."""

LARGEST_ANSWER_BYTES = 1 << 20
"""One number takes a hundred bytes; a query that gives thousands of series is a mistake and need not be read whole."""

REFUSALS = (401, 403)
"""Said by a proxy in front of Prometheus, in whatever form; it knows no users itself."""


class Prometheus:
    """`Metrics` over HTTP; one instance belongs to one event loop."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token_file: Path | None = None) -> None:
        self._session = session
        self._url = f"{url}/api/v1/query"
        self._token_file = token_file

    async def ask(self, query: str) -> bytes:
        """An error that Prometheus words itself is an answer too; raises ProviderError for everything else."""
        form = {"query": query, "timeout": f"{ANSWER_SECONDS:g}s"}
        asking = self._session.post(self._url, data=form, headers=self._headers(), allow_redirects=False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), asking as answer:
                if answer.status in REFUSALS:
                    words = "see the token in the chart's prometheus.existingSecret"
                    raise ProviderError(f"Prometheus answered {answer.status}; {words}")
                if answer.content_type != "application/json":
                    raise ProviderError(f"Prometheus answered {answer.status} with {answer.content_type}, not JSON")
                return await _body(answer)
        except TimeoutError:
            raise ProviderError(f"Prometheus did not answer within {ANSWER_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderError(f"Prometheus cannot be reached: {type(error).__name__}") from error

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ProviderError(f"the token for Prometheus cannot be read: {type(error).__name__}") from error
        if not token or not token.isprintable():
            raise ProviderError("the token for Prometheus is not one line of printable characters")
        return {"Authorization": f"Bearer {token}"}


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ProviderError("Prometheus' answer is too long; aggregate the query to one number")
    return bytes(body)
