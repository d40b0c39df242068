"""Knows which pods are being told to load an adapter or to let it go, and what those said that did not.

Refuses to know which pod needs what (`domain.loading`). A load may take minutes, so no look waits for one: it goes on
beside the looks, each of which sees what pods hold by then. What is remembered here is in memory only: after a restart
everything that is missing is asked for again, which changes nothing where it was there.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandem_operator.domain.decision import Load
from tandem_operator.ports import Clock, Key, Telemetry

AGAIN_SECONDS = 10.0
"""After a fault: what is wrong with a folder or a hub is seldom mended sooner, and a pod has better things to do."""

Job = tuple[str, str]
"""The pod's uid, and the content."""


@dataclass(frozen=True, slots=True)
class Fault:
    message: str
    at: float


@dataclass(slots=True)
class Loads:
    """Of all objects of one process."""

    _running: dict[Job, "asyncio.Task[None]"] = field(default_factory=dict)
    _faults: dict[Key, dict[Job, Fault]] = field(default_factory=dict)

    def faults(self, key: Key, uid: str) -> Mapping[str, str]:
        """What a pod said of the contents that it did not load, by content."""
        return {job[1]: fault.message for job, fault in self._faults.get(key, {}).items() if job[0] == uid}

    def follow(
        self, key: Key, loads: Iterable[Load], addresses: Mapping[str, str], pods: Telemetry, clock: Clock
    ) -> None:
        """Begin what is not under way; a fault that is no longer to be mended is forgotten. `addresses` are by uid."""
        wanted = {(load.uid, load.content): load for load in loads if addresses.get(load.uid)}
        faults = {job: fault for job, fault in self._faults.pop(key, {}).items() if job in wanted}
        if faults:
            self._faults[key] = faults
        for job, load in wanted.items():
            fault = faults.get(job)
            if job not in self._running and (fault is None or clock.monotonic() - fault.at >= AGAIN_SECONDS):
                task = asyncio.create_task(self._carry_out(key, load, addresses[load.uid], pods, clock))
                self._running[job] = task
                task.add_done_callback(lambda _, job=job: self._running.pop(job))  # type: ignore[misc]  # a bound default

    async def _carry_out(self, key: Key, load: Load, address: str, pods: Telemetry, clock: Clock) -> None:
        if load.source is None:
            said = await pods.unload_adapter(address, load.content)
        else:
            said = await pods.load_adapter(address, load.content, load.source)
        job = (load.uid, load.content)
        self._faults.get(key, {}).pop(job, None)
        if said is not None:
            self._faults.setdefault(key, {})[job] = Fault(said, clock.monotonic())

    def forget(self, key: Key) -> None:
        self._faults.pop(key, None)
