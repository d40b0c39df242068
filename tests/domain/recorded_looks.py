"""Looks that decisions are held to, as `tandem-operator replay` reads them: those of a rollout on a real API server,
and the turns of stories in a simulated world.

`python -m tests.domain.recorded_looks` decides each of them anew and writes what differs, after a rule was changed on
purpose: the difference of the files is then what the change does. `... stories` plays the stories anew.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.domain.simulated_alert import alert
from tests.domain.simulated_specs import QUICK, V2
from tests.domain.simulated_world import Behaviour, World, push, settled

from tandem_operator.domain import recording
from tandem_operator.domain.observed import Observed

FOLDER = Path(__file__).parent / "recorded_looks"
TURNS = ("CanaryAborted", "SpeculationDisabled", "RollingBack")
"""What is worth keeping of the stories; how a canary comes up and is promoted is there from a real one."""


class Watched(World):
    """A world that remembers its last look."""

    last: Observed

    def observed(self) -> Observed:
        self.last = super().observed()
        return self.last

    def turns(self, seconds: int) -> Iterator[Observed]:
        """The looks of a span in which something turned."""
        for _ in range(seconds // 10):
            decision = self.tick()
            if any(event.reason in TURNS for event in decision.events):
                yield self.last

    @classmethod
    def serving(cls) -> "Watched":
        """The first revision serves, and has traffic."""
        world = cls(QUICK)
        world.run_until(settled, within=120, every=5)
        world.rate = 5
        return world


def stories() -> Iterator[tuple[str, Observed]]:
    refused = Watched.serving()
    push(refused, V2, Behaviour(acceptance=0.4, speedup=0.9))
    yield from ((f"refused-{n}", seen) for n, seen in enumerate(refused.turns(600)))
    unpredictable = Watched.serving()
    unpredictable.behaviour[unpredictable.stable] = Behaviour(acceptance=0.1, speedup=0.8)
    yield from ((f"disabled-{n}", seen) for n, seen in enumerate(unpredictable.turns(200)))
    taken_back = Watched.serving()
    v2 = push(taken_back, V2, Behaviour(acceptance=0.85, speedup=1.7))
    taken_back.run_until(lambda seen: seen.stable == v2 and settled(seen))
    taken_back.tick()
    alert(taken_back, taken_back.now)
    yield from ((f"alert-{n}", seen) for n, seen in enumerate(taken_back.turns(60)))


def main() -> None:
    if sys.argv[1:] == ["stories"]:
        for name, seen in stories():
            (FOLDER / f"story-{name}.json").write_text(recording.write(seen) + "\n")
    for path in sorted(FOLDER.glob("*.json")):
        played = recording.replay(path.read_text())
        path.write_text(recording.write(played.seen) + "\n")
        print(path.name, *(played.differences or ["as before"]), sep="\n  ")


if __name__ == "__main__":
    main()
