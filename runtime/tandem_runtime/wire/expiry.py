"""Knows when the certificate of a role ends, and who is told in time: whoever scrapes metrics, and the log.

Refuses to know files and handshakes (`tls`), and who renews.

Tools renew long before the end (cert-manager when a third of the term is left), so a certificate that is near its end
was forgotten. At the end links that stand go on, and no new one comes: each role that restarts is lost to the others.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Gauge

from tandem_runtime.ports import Clock
from tandem_runtime.wire.tls import RoleTls, Term

DAY_SECONDS = 86_400.0
WARN_SECONDS = 7 * DAY_SECONDS
WARN_SHARE = 0.1
"""Of its term: one that is made for hours is not near its end for all of its life."""
LOOK_SECONDS = 3600.0

log = logging.getLogger(__name__)


@asynccontextmanager
async def expiry_told(tls: RoleTls | None, registry: CollectorRegistry, *, clock: Clock) -> AsyncIterator[None]:
    """While the block lasts; of links in clear there is nothing to tell."""
    if tls is None:
        yield
        return
    about = "When the certificate that new links show ceases to be valid, or its authority, in seconds since 1970."
    Gauge("tandem_role_certificate_not_after_seconds", about, registry=registry).set_function(lambda: tls.term.ends)
    warning = asyncio.create_task(_warn(tls, clock))
    try:
        yield
    finally:
        warning.cancel()
        await asyncio.wait((warning,))


def is_near_its_end(term: Term, wall: float) -> bool:
    return term.ends - wall < min(WARN_SECONDS, WARN_SHARE * (term.ends - term.begins))


async def _warn(tls: RoleTls, clock: Clock) -> None:
    """Once a day, for as long as nobody renews it."""
    told = -math.inf
    while True:
        term, now = tls.term, clock.wall()
        if is_near_its_end(term, now) and now - told >= DAY_SECONDS:
            left, told = (term.ends - now) / DAY_SECONDS, now
            log.warning("certificate ends in days=%.1f and was not renewed: then no role links to another", left)
        await asyncio.sleep(LOOK_SECONDS)
