"""An alert as the operator's sink leaves it on an object of the simulated world."""

import json
from datetime import datetime

from tests.domain.simulated_world import World


def alert(
    world: World, starts_at: datetime, *, key: str = "0" * 32, name: str = "TandemHighErrorRate", revision: str = ""
) -> None:
    labels = {"alertname": name, "namespace": "llm", "specdep": "chat"}
    intent = {"name": name, "fingerprint": "f", "startsAt": starts_at.isoformat(), "revision": revision}
    world.annotations[f"alert.tandem.dev/{key}"] = json.dumps({**intent, "labels": labels})
