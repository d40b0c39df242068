"""Knows how long texts and lists of a status may be: the API server refuses a whole status for one that is too long.

Refuses to know what they say. What is shown there comes from people and pods: names of alerts, commands, a fetcher's
last words, marks on ControllerRevisions. The CRD has the bounds; a test holds these equal to it.
"""

from collections.abc import Mapping

_TEXTS: Mapping[int, tuple[str, ...]] = {
    16: (
        "alerts[].revision",
        "canaryRevision",
        "previousRevision",
        "refusedRevision",
        "revisions[].acceptance",
        "revisions[].adapters",
        "revisions[].draft",
        "revisions[].draftReady",
        "revisions[].name",
        "revisions[].speedup",
        "revisions[].target",
        "revisions[].targetReady",
        "speculation.acceptance",
        "speculation.acceptedOfProposed",
        "speculation.meanAcceptedLength",
        "speculation.speedup",
        "stableRevision",
    ),
    32: (
        "canary.checks[].high",
        "canary.checks[].low",
        "canary.checks[].value",
        "canary.surge",
        "speculation.state",
        "speculation.verification",
    ),
    40: (
        "alerts[].at",
        "alerts[].since",
        "canary.deadlineAt",
        "canary.startedAt",
        "canary.stepStartedAt",
        "conditions[].lastTransitionTime",
        "speculation.nextTryAt",
        "speculation.since",
    ),
    63: (
        "alerts[].action",
        "canary.checks[].name",
        "canary.checks[].segment",
        "revisions[].reason",
        "speculation.reason",
    ),
    64: ("canary.checks[].threshold",),
    71: (
        "revisions[].draftDigest",
        "revisions[].targetDigest",
    ),
    128: (
        "alerts[].key",
        "alerts[].name",
        "canary.checks[].samples",
    ),
    256: ("handledCommands.*",),
    316: ("conditions[].type",),
    512: (
        "canary.checks[].message",
        "endpoint",
        "gateway.policyUndone",
        "selector",
    ),
    1024: (
        "alerts[].note",
        "conditions[].reason",
    ),
    32768: ("conditions[].message",),
}
LONGEST_TEXT: Mapping[str, int] = {path: bound for bound, paths in _TEXTS.items() for path in paths}
LONGEST_LIST: Mapping[str, int] = {"alerts": 20, "canary.checks": 32, "revisions": 101, "conditions": 32}


def fitted(status: Mapping[str, object]) -> dict[str, object]:
    """The status with every text cut and every list shortened to its bound; bookkeeping (`progress`) is left as it is.

    fitted({"alerts": [{"name": "x" * 200}]}) has a name of 128.
    """
    return {key: value if key == "progress" else _fit(value, key) for key, value in status.items()}


def _fit(value: object, path: str) -> object:
    if isinstance(value, str):
        return value[: LONGEST_TEXT.get(path)]
    if isinstance(value, Mapping):
        any_key = f"{path}.*" in LONGEST_TEXT
        return {key: _fit(held, f"{path}.*" if any_key else f"{path}.{key}") for key, held in value.items()}
    if isinstance(value, list):
        return [_fit(held, f"{path}[]") for held in value[: LONGEST_LIST.get(path)]]
    return value
