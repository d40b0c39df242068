"""Knows the demo as a command: `python -m examples.demo` tells the story and leaves it running; `down` ends it."""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

from examples.demo.narrator import Narrator, StoryError
from examples.demo.stage import PAIRS, PAIRS_FOLDER, ROOT, SYSTEM_NAMESPACE, Stage
from examples.demo.story import NAME, NAMESPACE, Story

from tandem_devcluster.state import StateFolder
from tandem_devcluster.testing import Cluster

OPENING = """\
Tandem's demo. Everything is real: Kubernetes' own API server, controllers and scheduler, the Helm chart, the operator,
the gateway, a trained draft and target. Two things are not: nodes run pods as processes, and the engines' steps are
stretched to the cost of real GPUs (target 15 + 0.6 K ms per step, draft 8 ms, or 4 ms with captured graphs), so every
speed below is called paced.
Thresholds, gates and confidence are the defaults, but that times to first token are not compared, which takes more
requests. Durations, slots and steps are shorter, and more time is spent in off slots, so that a few minutes hold enough
of them:
  slotSeconds 2 (default 20), control.percent 20 (default 5),
  steps shadow 5 s and 50 % 5 s (default shadow 120 s, 10, 25, 50 %), intervalSeconds 2 (default 30),
  autoDisable.windowSeconds 20 (default 300), cooldownSeconds 10 (default 600).
"""
QUIET = "\nSpeeds are measured: with other work on the machine a good draft may not pass."


def main() -> int:
    arguments = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return (down if arguments.verb == "down" else up)(arguments.state)
    except KeyboardInterrupt:
        print(f"\nstopped by hand; {after_a_stop(arguments.state)}", file=sys.stderr)
        return 130
    except (StoryError, subprocess.SubprocessError) as error:
        quiet = QUIET if isinstance(error, StoryError) else ""
        print(f"\nthe demo stopped: {error}\n{after_a_stop(arguments.state)}{quiet}", file=sys.stderr)
        return 1


def after_a_stop(state: Path) -> str:
    if StateFolder(state).running() is None:
        return "nothing is left running; `make demo` starts again"
    look = f"{state}/bin/kubectl get specdep -A -o wide"
    return f"what it reached still runs: {look}; `make demo-down` ends it, `make demo` starts again"


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Tell Tandem's story on a real control plane."
    )
    parser.add_argument("verb", nargs="?", choices=["up", "down"], default="up")
    parser.add_argument("--state", type=Path, default=ROOT / ".devcluster", help="folder of the dev cluster's state")
    return parser.parse_args(words)


def up(state: Path) -> int:
    narrator = Narrator()
    print(OPENING, flush=True)
    if StateFolder(state).running() is not None:
        print(f"==> ending the dev cluster that runs in {state}", flush=True)
        devcluster(state, "down")
    devcluster(state, "up", "--folder", f"{PAIRS}={PAIRS_FOLDER}")
    narrator.say("the control plane is ready, with nodes for L4, H100 and everything else")
    stage = Stage(Cluster(StateFolder(state)))
    with stage.relays:
        Story(stage, narrator).tell()
    print(next_commands(state, narrator.elapsed()), flush=True)
    return 0


def down(state: Path) -> int:
    devcluster(state, "down")
    return 0


def devcluster(state: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tandem_devcluster", "--state", str(state), *arguments], check=True)


def next_commands(state: Path, seconds: float) -> str:
    kubectl = f"{state}/bin/kubectl"
    forward = f"{sys.executable} -m tandem_devcluster --state {state} forward -n {NAMESPACE} svc/{NAME} 8000"
    curl = "curl -sN --retry 9 --retry-connrefused http://127.0.0.1:8000/v1/completions"
    request = json.dumps({"model": NAME, "prompt": "Return the", "max_tokens": 32, "stream": True})
    return f"""
The story took {seconds:.0f} s. The system is still running; try:
  {kubectl} get specdep -A -o wide
  {kubectl} describe specdep {NAME} -n {NAMESPACE}
  {kubectl} explain specdep.spec.canary.analysis
  {kubectl} logs -n {SYSTEM_NAMESPACE} deploy/tandem-operator
Your own requests (the address that the story printed ended with it):
  {forward} --local-port 8000 &
  {curl} -H 'content-type: application/json' -d '{request}'
End it all:
  make demo-down
"""


if __name__ == "__main__":
    sys.exit(main())
