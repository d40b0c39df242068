"""Asks a container how it is: one check, and the counting of answers that makes a verdict.

It knows no pod status: `watch` reports to a listener and ends when the container must be killed.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import aiohttp

from tandem_devcluster.grpc_health import check_grpc
from tandem_devcluster.process import ContainerProcess
from tandem_devcluster.workload import Check, Execute, GrpcHealth, Hook, HttpGet, Pause, Probe, TcpSocket

_OUTPUT_CHARACTERS = 200
_HOOK_SECONDS = 300.0  # hooks are cut off by the grace period around them


@dataclass(frozen=True, slots=True)
class Answer:
    """What one check found; `detail` says why it failed."""

    healthy: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Streak:
    """Answers of the same kind in a row, and the verdict so far: None until a threshold is reached.

    Example: with failure threshold 3, three failures in a row turn the verdict to False; one success then needs
    `success_threshold` in a row to turn it back.
    """

    healthy: bool = True
    length: int = 0
    verdict: bool | None = None

    def add(self, answer: Answer, probe: Probe) -> "Streak":
        length = self.length + 1 if answer.healthy == self.healthy else 1
        threshold = probe.success_threshold if answer.healthy else probe.failure_threshold
        verdict = answer.healthy if length >= threshold else self.verdict
        return Streak(answer.healthy, length, verdict)


class Prober:
    """Runs the checks of one container at the pod's address."""

    def __init__(self, process: ContainerProcess, address: str) -> None:
        self._process = process
        self._address = address

    async def answers(self, probe: Probe) -> AsyncIterator[tuple[Answer, Streak]]:
        """Check for ever, at the probe's period; each answer with the streak it makes."""
        streak = Streak()
        await asyncio.sleep(probe.initial_delay_seconds)
        while True:
            answer = await self.check(probe.check, timeout_seconds=probe.timeout_seconds)
            streak = streak.add(answer, probe)
            yield answer, streak
            await asyncio.sleep(probe.period_seconds)

    async def check(self, check: Check, *, timeout_seconds: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._check(check, timeout_seconds)
        except TimeoutError:
            return Answer(False, f"no answer in {timeout_seconds:g} s")
        except (OSError, aiohttp.ClientError) as error:
            return Answer(False, str(error))

    async def run_hook(self, hook: Hook) -> Answer:
        """Run a preStop hook to its end."""
        if isinstance(hook, Pause):
            await asyncio.sleep(hook.seconds)
            return Answer(True)
        return await self.check(hook, timeout_seconds=_HOOK_SECONDS)

    async def _check(self, check: Check, timeout_seconds: float) -> Answer:
        match check:
            case HttpGet():
                return await self._http(check)
            case TcpSocket():
                _, writer = await asyncio.open_connection(check.host or self._address, check.port)
                writer.close()
                return Answer(True)
            case Execute():
                code, output = await self._process.execute(check.command, timeout_seconds=timeout_seconds)
                return Answer(code == 0, f"exit code {code}: {output[:_OUTPUT_CHARACTERS].strip()}")
            case GrpcHealth():
                return Answer(*await check_grpc(f"{self._address}:{check.port}", check.service))
            case _:
                assert_never(check)

    async def _http(self, check: HttpGet) -> Answer:
        """Any status from 200 to 399 is healthy; certificates are not verified, as a kubelet does not either."""
        host = check.host or self._address
        url = f"{check.scheme.lower()}://{host}:{check.port}/{check.path.lstrip('/')}"
        async with (
            aiohttp.ClientSession(headers=_probe_headers(check)) as session,
            session.get(url, allow_redirects=False, ssl=_UNVERIFIED if check.scheme == "HTTPS" else True) as answer,
        ):
            return Answer(200 <= answer.status < 400, f"GET {check.path} answered {answer.status}")


def _probe_headers(check: HttpGet) -> Mapping[str, str]:
    return {"User-Agent": "kube-probe/tandem-devcluster", "Accept": "*/*", **dict(check.headers)}


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_UNVERIFIED = _unverified()
