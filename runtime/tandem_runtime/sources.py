"""Knows the two places from which a gateway hears of its policy and its engines: a cluster's API, or files.

Refuses to know what is served. Both lead to the same pods in the same discovery, and to the same policy in force.
"""

import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tandem_runtime.cluster import connect, follow
from tandem_runtime.discovery import Discovery, EnginePod, pod_selection
from tandem_runtime.domain.errors import PolicyRefused, SettingRefused
from tandem_runtime.domain.policy import parse_policy
from tandem_runtime.followed_file import FollowedFile
from tandem_runtime.peers import OnePair, PeersFile
from tandem_runtime.policy import PolicyInForce, follow_policy, policy_selection
from tandem_runtime.ports import Clock

Followings: TypeAlias = Sequence[Coroutine[Any, Any, None]]
"""What runs for as long as a gateway serves."""

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where policy and engines come from."""

    def opened(
        self, in_force: PolicyInForce, discovery: Discovery, *, clock: Clock
    ) -> AbstractAsyncContextManager[Followings]:
        """What keeps both up to date, not yet begun. Raises SettingRefused where there is nothing to follow."""
        ...


@dataclass(frozen=True, slots=True)
class FromCluster:
    """The ConfigMap and the pods of a SpeculativeDeployment."""

    deployment: str
    namespace: str
    kubeconfig: Path | None

    @asynccontextmanager
    async def opened(
        self,
        in_force: PolicyInForce,
        discovery: Discovery,
        *,
        clock: Clock,  # noqa: ARG002  # the API tells times
    ) -> AsyncIterator[Followings]:
        where = {"deployment": self.deployment, "namespace": self.namespace}
        async with connect(self.kubeconfig) as api:
            following = partial(follow, api)
            yield (
                follow_policy(in_force, following, policy_selection(**where)),
                discovery.run(following, pod_selection(**where)),
            )


@dataclass(frozen=True, slots=True)
class FromFiles:
    """Files, without a cluster. No `policy`: the peers are one pair, which is served by the name `pair` has."""

    peers: Path
    policy: Path | None
    pair: OnePair

    @asynccontextmanager
    async def opened(self, in_force: PolicyInForce, discovery: Discovery, *, clock: Clock) -> AsyncIterator[Followings]:
        peers = PeersFile(self.peers, now=clock.wall, pair=self.pair if self.policy is None else None)
        policy = None if self.policy is None else FollowedFile(self.policy, option="--policy")
        if policy is not None:
            _begin(policy, in_force)
        pods = discovery.run_on(_peers_and_their_policy(peers, in_force), drains=True)
        yield (pods,) if policy is None else (_follow_policy_file(policy, in_force), pods)


async def _peers_and_their_policy(peers: PeersFile, in_force: PolicyInForce) -> AsyncIterator[Collection[EnginePod]]:
    async for pods in peers.follow():
        if peers.policy is not None:
            in_force.policy = peers.policy
        yield pods


def _begin(file: FollowedFile, in_force: PolicyInForce) -> None:
    """Raises SettingRefused: at the start there is no last good policy."""
    try:
        in_force.policy = parse_policy(file.first())
    except PolicyRefused as refused:
        raise SettingRefused(f"{file.named}: {refused}") from refused


async def _follow_policy_file(file: FollowedFile, in_force: PolicyInForce) -> None:
    while True:
        try:
            in_force.take(await file.next())
        except SettingRefused as refused:
            in_force.refused = str(refused)
            log.error("the last good policy stays in force: %s", refused)
