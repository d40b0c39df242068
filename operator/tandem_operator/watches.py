"""Knows how the children of all objects are watched, one watch per kind, and tells of each that changed or went.

Refuses to know what a change leads to, and to see more of a child than its metadata: a thousand objects have ten
thousand children, and their bodies would take more memory than everything else.

Whatever ends a watch, the next one begins with a list, and what vanished meanwhile is told too. Who hears of a change
compares versions, so that being told of everything again costs nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from tandem_operator.domain.errors import ClusterError
from tandem_operator.domain.observed import LABEL_DEPLOYMENT
from tandem_operator.ports import Change, Changes, Key, Kind

CHILD_KINDS = (Kind.DEPLOYMENT, Kind.CONTROLLER_REVISION, Kind.POD, Kind.CONFIG_MAP, Kind.SERVICE)
"""Others of our children are looked after when everything is read."""
AGAIN_SECONDS = 2.0
"""Between the end of a watch and the next list."""

Tell = Callable[[Change], Awaitable[None]]

log = logging.getLogger(__name__)


async def watch_children(changes: Changes, namespaces: tuple[str, ...], tell: Tell) -> None:
    """Until cancelled; no namespaces means all of them."""
    async with asyncio.TaskGroup() as watches:
        for kind in CHILD_KINDS:
            for namespace in namespaces or (None,):
                watches.create_task(ChildWatch(changes, kind, namespace, tell).run())


class ChildWatch:
    """The children of one kind; `_known` are those that there are, by namespace and name, with their object's key."""

    def __init__(self, changes: Changes, kind: Kind, namespace: str | None, tell: Tell) -> None:
        self._changes = changes
        self._kind = kind
        self._namespace = namespace
        self._tell = tell
        self._known: dict[tuple[str, str], Key] = {}

    async def run(self) -> None:
        """Watch after watch, whatever the API server does."""
        while True:
            try:
                await self._follow()
            except ClusterError as error:
                log.warning("watch ended, and begins anew kind=%s error=%s", self._kind, error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self) -> None:
        found, version = await self._changes.list_changes(self._kind, self._namespace, label=LABEL_DEPLOYMENT)
        there = {(change.key.namespace, change.name) for change in found}
        for namespace, name in self._known.keys() - there:
            await self._hear(Change(self._known[namespace, name], self._kind, name, ""))
        for change in found:
            await self._hear(change)
        watch = self._changes.watch_changes(self._kind, self._namespace, label=LABEL_DEPLOYMENT, version=version)
        async with aclosing(watch) as changes:
            async for change in changes:
                await self._hear(change)

    async def _hear(self, change: Change) -> None:
        place = (change.key.namespace, change.name)
        if change.version:
            self._known[place] = change.key
        else:
            self._known.pop(place, None)
        await self._tell(change)
