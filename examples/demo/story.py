"""Knows the story: what is done in each chapter, what must come of it, and which figures it leaves.

Refuses to know how the cluster is made. The demo tells it to a person; the end-to-end test runs the same chapters and
holds the figures against the promises. Every figure of an engine with a pace is called paced.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from examples.demo.narrator import Narrator, StoryError
from examples.demo.stage import PAIRS, ROOT, SYSTEM_NAMESPACE, Stage
from examples.demo.traffic import Load, Traffic
from openai import OpenAI

NAMESPACE, NAME = "llm", "chat"
PROMPTS = ROOT / "examples" / "pairs" / "prompts.json"
OBJECT = Path(__file__).with_name("chat.yaml")
STREAMS = 2


@dataclass(slots=True)
class Story:
    """The chapters in their order; each may rely on the ones before."""

    stage: Stage
    narrator: Narrator
    prompts: Mapping[str, Sequence[str]] = field(default_factory=lambda: json.loads(PROMPTS.read_text()))
    figures: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    seen: Callable[[], Mapping[str, Any]] | None = None
    traffic: Traffic | None = None

    def tell(self) -> dict[str, Any]:
        """All chapters; returns the figures. Traffic stops in every ending, the cluster stays."""
        try:
            for chapter in (
                self.install,
                self.first_words,
                self.poor_draft,
                self.good_draft,
                self.unpredictable,
                self.alert,
            ):
                chapter()
        except StoryError as error:
            if self.traffic is not None and self.traffic.trouble:
                raise StoryError(f"{error}; the clients' last request failed with {self.traffic.trouble}") from error
            raise
        finally:
            if self.traffic is not None:
                self.traffic.stop()
        return self.figures

    def install(self) -> None:
        say = self.narrator
        say.chapter("a", "install Tandem, apply a SpeculativeDeployment")
        self.stage.install()
        say.say("helm install: the operator runs, with its CRD, its rights and its alert sink")
        self.stage.kubectl("create", "namespace", NAMESPACE)
        self.stage.kubectl("apply", "-f", str(OBJECT))
        self.seen = self.stage.follow(NAMESPACE, NAME)
        say.say("applied examples/demo/chat.yaml: a target on H100 nodes, a draft on an L4 node, one gateway")
        seconds = say.wait("the pair comes up", self._unless_ready)
        say.wait("the draft joins", lambda: self._unless_condition("DraftReady", "True"))
        self.figures["ready_seconds"] = seconds
        self.url = self.stage.forward(NAMESPACE, NAME, 8000)
        say.say(f"Ready after {seconds:.0f} s; the OpenAI API is at {self.url}/v1")
        say.show(self.stage.kubectl("get", "pods", "-n", NAMESPACE, "-o", "wide"))

    def first_words(self) -> None:
        say = self.narrator
        say.chapter("b", "the first completion, and what speculation earns")
        self._stream_one(self.prompts["prose"][0])
        self.traffic = Traffic(self._load("prose"))
        self.traffic.start()
        say.say(
            f"{STREAMS} clients now ask for prose; part of each target's time runs with speculation off, for comparison"
        )
        say.wait("acceptance and speed-up are measured", lambda: self._unless_figures("acceptance", "speedup"))
        speculation = self._status()["speculation"]
        self.figures["acceptance"] = float(speculation["acceptance"])
        self.figures["paced_speedup"] = float(speculation["speedup"])
        say.say(
            f"conditional acceptance {speculation['acceptance']}, paced speed-up {speculation['speedup']} against the "
            "off arm (slots of the same target pods)"
        )
        say.say(f"beside it, unpaced: {self._steps('target')}; {self._steps('draft')}")
        self._table()

    def poor_draft(self) -> None:
        say = self.narrator
        say.chapter("c", "a poor draft is applied: the canary refuses it")
        stable, pods = self._status()["stableRevision"], self._target_pods()
        self._edit_draft("draft-poor")
        seconds = say.wait("the canary judges the poor draft", self._unless_refused)
        status, taken_back = self._status(), self._condition("RolledBack")
        say.say(f"{taken_back['reason']}: {taken_back['message']}")
        self.figures["refused_seconds"] = seconds
        self.figures["refused_reason"] = taken_back["reason"]
        self.figures["stable_untouched"] = status["stableRevision"] == stable
        self.figures["target_pods_untouched"] = self._target_pods() == pods
        say.say(f"refused after {seconds:.0f} s; stable is still {stable}, and the target's pods are the same ones")
        self._table()

    def good_draft(self) -> None:
        say = self.narrator
        say.chapter("d", "the good draft with captured graphs, a step 4 ms instead of 8: promoted")
        before = self._status()["stableRevision"]
        self._edit_draft("draft-good", pace="l4-8b")
        say.wait("the canary begins", lambda: None if self._status().get("canaryRevision") else "a canary")
        seconds = say.wait("the canary is judged", lambda: self._unless_promoted(before))
        after = self._status()["stableRevision"]
        self.figures["promoted_seconds"] = seconds
        self.figures["promoted"] = after != before
        say.say(f"promoted after {seconds:.0f} s: {before} -> {after}; the old pair is kept for a rollback")
        self._table()

    def unpredictable(self) -> None:
        say = self.narrator
        say.chapter("e", "traffic that the draft cannot predict: speculation goes off by itself, and comes back")
        assert self.traffic is not None
        self.traffic.switch(self._load("other"))
        say.say("the clients now ask for something the draft has never seen")
        seconds = say.wait("speculation is judged", lambda: self._unless_speculation("Disabled"))
        speculation = self._status()["speculation"]
        self.figures["disabled_seconds"] = seconds
        self.figures["disabled_reason"] = speculation["reason"]
        say.say(f"disabled after {seconds:.0f} s: {self._condition('SpeculationActive')['message']}")
        self._table()
        self.traffic.switch(self._load("prose"))
        say.say("the clients ask for prose again")
        seconds = say.wait("speculation comes back", lambda: self._unless_speculation("Active"))
        self.figures["returned_seconds"] = seconds
        say.say(f"active again after {seconds:.0f} s: {self._condition('SpeculationActive')['message']}")

    def alert(self) -> None:
        say = self.narrator
        say.chapter("f", "an alert fires: the last promotion is rolled back")
        status = self._status()
        before, previous = status["stableRevision"], status["previousRevision"]
        operator = self.stage.forward(SYSTEM_NAMESPACE, "tandem-operator", 9090)
        body = self._alert_body()
        began = time.monotonic()
        answer = httpx.post(
            f"{operator}/v1/alerts", json=body, headers={"Authorization": f"Bearer {self.stage.token}"}, trust_env=False
        )
        if answer.status_code != 202:
            raise StoryError(f"the alert was answered with {answer.status_code}: {answer.text}")
        say.wait("the rollback", lambda: self._unless_stable(previous))
        self.figures["rolled_back_seconds"] = time.monotonic() - began
        self.figures["rolled_back_to_previous"] = self._status()["stableRevision"] == previous
        seconds = self.figures["rolled_back_seconds"]
        say.say(f"{before} -> {previous} after {seconds:.1f} s: {self._condition('RolledBack')['message']}")
        self._table()

    def _steps(self, role: str) -> str:
        """What a step of a role's engine took on the average, with its pace and without."""
        found = self.stage.metrics(NAMESPACE, role)
        steps = found["tandem_engine_steps_total"]
        paced, unpaced = (
            found[f'tandem_engine_step_seconds_total{{kind="{kind}"}}'] / steps * 1000 for kind in ("paced", "unpaced")
        )
        return f"a {role} step computes for {unpaced:.1f} ms and is stretched to {paced:.1f} ms"

    def _load(self, kind: str) -> Load:
        return Load(url=self.url, model=NAME, prompts=self.prompts[kind], streams=STREAMS)

    def _stream_one(self, prompt: str) -> None:
        client = OpenAI(base_url=f"{self.url}/v1", api_key="none")
        pieces, gaps, last = [], [], time.monotonic()
        for chunk in client.completions.create(model=NAME, prompt=prompt, max_tokens=48, temperature=0, stream=True):
            now = time.monotonic()
            gaps.append(now - last)
            last = now
            pieces.append(chunk.choices[0].text if chunk.choices else "")
        apart = statistics.median(gaps) * 1000
        self.narrator.say(f"the official openai client streamed {len(gaps)} chunks, {apart:.0f} ms apart (paced)")
        self.narrator.show(f"{prompt}>>>{''.join(pieces)}")

    def _status(self) -> dict[str, Any]:
        assert self.seen is not None
        status: dict[str, Any] = self.seen().get("status", {})
        return status

    def _condition(self, kind: str) -> dict[str, Any]:
        conditions = {held["type"]: held for held in self._status().get("conditions", [])}
        found: dict[str, Any] = conditions.get(
            kind, {"status": "Unknown", "reason": "NotReported", "message": "not reported yet"}
        )
        return found

    def _unless_condition(self, kind: str, wanted: str) -> str | None:
        held = self._condition(kind)
        return None if held["status"] == wanted else f"{kind}={held['status']} ({held['message']})"

    def _unless_ready(self) -> str | None:
        if self._condition("Ready")["status"] == "True":
            return None
        told = {role: self._condition(f"{role}Ready")["message"] for role in ("Target", "Draft")}
        return f"target {told['Target']}, draft {told['Draft']}"

    def _unless_figures(self, *names: str) -> str | None:
        speculation = self._status().get("speculation", {})
        missing = [name for name in names if not speculation.get(name)]
        return f"{' and '.join(missing)}" if missing else None

    def _unless_refused(self) -> str | None:
        status = self._status()
        if status.get("refusedRevision"):
            return None
        return self._canary_line(status)

    def _unless_promoted(self, before: str) -> str | None:
        status = self._status()
        if status["stableRevision"] != before:
            return None
        if not status.get("canaryRevision"):
            raise StoryError(f"the canary ended without promotion: {self._condition('RolledBack')['message']}")
        return self._canary_line(status)

    def _unless_speculation(self, state: str) -> str | None:
        speculation = self._status()["speculation"]
        if speculation["state"] == state:
            return None
        return (
            f"{speculation['state']} ({speculation.get('reason')}), acceptance {speculation.get('acceptance') or '-'}"
        )

    def _unless_stable(self, revision: str) -> str | None:
        stable = self._status()["stableRevision"]
        return None if stable == revision else f"stable is {stable}"

    def _canary_line(self, status: Mapping[str, Any]) -> str:
        canary = status.get("canary") or {}
        checks = [f"{check['name']} {check['verdict']} {check['value']}".rstrip() for check in canary.get("checks", [])]
        told = ", ".join(checks) or f"no check yet, {self._canary_pods(status)}"
        return f"step {canary.get('step', '-')} at {canary.get('percent', 0)} %, {told}"

    def _canary_pods(self, status: Mapping[str, Any]) -> str:
        """What an unjudged canary waits for first: its draft's pods."""
        named = {revision["name"]: revision for revision in status.get("revisions", [])}
        ready = named.get(status.get("canaryRevision", ""), {}).get("draftReady")
        return f"{ready} pods of its draft are ready" if ready else "its draft has no pods yet"

    def _target_pods(self) -> list[str]:
        selector = f"tandem.dev/deployment={NAME},tandem.dev/role=target"
        path = "jsonpath={.items[*].metadata.uid}"
        return sorted(self.stage.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", path).split())

    def _edit_draft(self, folder: str, **engine_args: str) -> None:
        arguments = {name.replace("_", "-"): value for name, value in engine_args.items()}
        patch = {"spec": {"draft": {"model": {"uri": f"file://{PAIRS}/{folder}"}, "engineArgs": arguments}}}
        self.stage.kubectl("patch", "specdep", NAME, "-n", NAMESPACE, "--type", "merge", "-p", json.dumps(patch))
        self.narrator.say(f"kubectl patch specdep {NAME}: {json.dumps(patch['spec']['draft'])}")

    def _alert_body(self) -> dict[str, Any]:
        labels = {"alertname": "TandemHighErrorRate", "namespace": NAMESPACE, "specdep": NAME}
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        alert = {"status": "firing", "labels": labels, "startsAt": started, "fingerprint": "d3m0"}
        return {"version": "4", "status": "firing", "receiver": "tandem", "alerts": [alert]}

    def _table(self) -> None:
        self.narrator.show(self.stage.kubectl("get", "specdep", "-A", "-o", "wide"))
