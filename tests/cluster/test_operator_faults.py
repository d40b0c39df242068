"""The real operator against a real API server that misbehaves, and killed in the middle of its work.

Each story is one rollout (`rollout_story`): installed, edited, judged, promoted, old pods gone. Whatever happens on the
way, the end is that of the story in which nothing happens. All stories of a run are played at the same time.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cluster.fault_proxy import Asked, Ended, Hung, Lost, Refused, Script, Slow, Stale, each, mixed
from tests.cluster.rollout_story import NAME, Outcome, Trouble, asked_for, chosen, looks, theatre

from tandem_devcluster.testing import Cluster
from tandem_operator.domain.recording import replay

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AT_ONCE = 6
"""Stories beside each other; more would only wait for the processor."""


def play_all(cluster: Cluster, folder: Path, troubles: Mapping[str, Trouble]) -> dict[str, Outcome]:
    """Every story by its name."""
    return asyncio.run(_play_all(cluster, folder, troubles))


async def _play_all(cluster: Cluster, folder: Path, troubles: Mapping[str, Trouble]) -> dict[str, Outcome]:
    room = asyncio.Semaphore(AT_ONCE)
    async with theatre(cluster, folder) as house:

        async def play(trouble: Trouble) -> Outcome:
            async with room:
                return await house.play(trouble)

        played = await asyncio.gather(*map(play, troubles.values()))
    return dict(zip(troubles, played, strict=True))


def writes(asked: Asked) -> bool:
    return asked.writes


def watches(asked: Asked) -> bool:
    return asked.watches


MIX = (
    Refused(409, "Conflict"),
    Refused(422, "Invalid"),
    Refused(429, "TooManyRequests", retry_after_seconds=1),
    Refused(500, "InternalError"),
    Refused(503, "ServiceUnavailable"),
    Lost(),
    Slow(0.5),
    Ended(410),
    Ended(500),
)


def twice(script: Script, *, seconds: float = 3.0) -> Trouble:
    """From the operator's start, and again from the edit."""
    return Trouble(script, script, seconds)


FAULTS: Mapping[str, Trouble] = {
    "conflicts": twice(each(Refused(409, "Conflict"), of=writes)),
    "everything is invalid": twice(each(Refused(422, "Invalid"), of=writes)),
    "too many requests": twice(each(Refused(429, "TooManyRequests", retry_after_seconds=2))),
    "server errors": twice(each(Refused(500, "InternalError"))),
    "unavailable": twice(each(Refused(503, "ServiceUnavailable"))),
    "answers are lost": twice(each(Lost(), of=writes)),
    "slow": twice(each(Slow(0.3)), seconds=60),
    "expired token": twice(each(Stale())),
    "watches end with 410": twice(each(Ended(410), of=watches)),
    "watches end with 500": twice(each(Ended(500), of=watches)),
    "frozen watches": Trouble(frozen=True),
    "time-outs": Trouble(moving=each(Hung())),
}


SEEDS = {f"a mix of all, seed {seed}": twice(mixed(seed, MIX, share=0.08), seconds=60) for seed in range(1, 25)}
WRITES = 57
"""Of an undisturbed story at most: 51, up to 54 on a busy machine, where a look falls between two writes of others or
marks come in looks of their own, each with its copy; and some to spare."""
KILLS = {f"killed after write {number}": Trouble(kill_after=number) for number in range(1, WRITES + 1)}
ALWAYS = (
    "too many requests",
    "answers are lost",
    "expired token",
    "watches end with 500",
    "a mix of all, seed 1",
    "killed after write 2",
    "killed after write 15",
    "killed after write 40",
)
"""Those that `make test` plays; the marker `faults` adds all the others."""


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """The undisturbed story, and those that the tests of this run ask for."""
    every = {**FAULTS, **SEEDS, **KILLS}
    troubles = {name: every[name] for name in asked_for(request, "name")}
    return play_all(cluster, tmp_path_factory.mktemp("stories"), {"undisturbed": Trouble(), **troubles})


def assert_the_same_end(outcome: Outcome, undisturbed: Outcome) -> None:
    """Nothing is missing, doubled or lost of what anybody wrote, and the log tells it line by line."""
    assert outcome.state == undisturbed.state
    assert (outcome.note, outcome.generation) == ("kept", 2)
    assert outcome.made_twice() == []
    assert Counter(outcome.told) <= Counter(undisturbed.told)
    assert outcome.strange_lines == []


@pytest.mark.parametrize("name", chosen((*FAULTS, *SEEDS), ALWAYS))
def test_a_rollout_ends_the_same_whatever_the_api_server_does(outcomes: dict[str, Outcome], name: str) -> None:
    assert_the_same_end(outcomes[name], outcomes["undisturbed"])
    assert name == "frozen watches" or any(entry.fault for entry in outcomes[name].record)


@pytest.mark.parametrize("name", chosen(KILLS, ALWAYS))
def test_a_rollout_ends_the_same_after_a_kill(outcomes: dict[str, Outcome], name: str) -> None:
    """The writes are those of the proxy's record, which is the audit log's (below). A story may need a write less."""
    outcome = outcomes[name]
    assert_the_same_end(outcome, outcomes["undisturbed"])
    assert outcome.exits.count(-signal.SIGKILL) == 1 or len(outcome.writes()) < KILLS[name].kill_after


def test_a_rollout_has_no_more_writes_than_kills_are_planned_for(outcomes: dict[str, Outcome]) -> None:
    assert len(outcomes["undisturbed"].writes()) <= WRITES


def test_the_proxy_has_recorded_every_write_of_the_audit_log(cluster: Cluster, outcomes: dict[str, Outcome]) -> None:
    undisturbed = outcomes["undisturbed"]
    audited = [
        entry["requestURI"].partition("?")[0]
        for entry in cluster.requests(undisturbed.account)
        if entry["verb"] not in ("get", "list", "watch") and entry["responseStatus"]["code"] < 300
    ]
    recorded = [entry.asked.path for entry in undisturbed.record if entry.done]
    # The operator goes on renewing its Lease after the story is over.
    assert Counter(recorded) <= Counter(audited)
    assert {path for path in Counter(audited) - Counter(recorded) if "/leases" not in path} == set()


def test_a_look_costs_eleven_reads_and_each_write_at_most_one_more(outcomes: dict[str, Outcome]) -> None:
    seen = looks(outcomes["undisturbed"].record)[:-1]  # the last one may not have been over
    assert len(seen) > 5
    for look in seen:
        asked = [entry.asked.path.rpartition("/")[2] for entry in look]
        assert sorted(asked[:11]) == sorted(READ_BY_A_LOOK)
        assert len(look) - 11 <= 2 * sum(entry.asked.writes for entry in look)


def test_every_recorded_look_of_a_real_rollout_is_decided_again_as_it_was(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["undisturbed"].looks
    assert len(found) > 5
    assert {path.name: replay(path.read_text()).differences for path in found} == {path.name: () for path in found}


READ_BY_A_LOOK = [
    NAME,
    "configmaps",
    "controllerrevisions",
    "deployments",
    "nodes",
    "poddisruptionbudgets",
    "pods",
    "rolebindings",
    "roles",
    "serviceaccounts",
    "services",
]
