"""Knows which models a request may name, and which content of an adapter a name means in the revision it falls to.

Refuses to know how a request falls to a revision, and which target pod it then goes to.

A name leads to content by the policy, revision by revision: in a canary `chat:legal` may be other weights than in
stable. Where the policy says nothing of adapters, it is what the targets have loaded under that name.
"""

from collections.abc import Mapping
from typing import Any

from tandem_runtime.domain.adapters import OF_THE_OPERATOR, AdapterDigest
from tandem_runtime.domain.errors import TargetLost
from tandem_runtime.domain.policy import PairRevision, Policy
from tandem_runtime.gateway.failures import ModelNotServed
from tandem_runtime.replicas import Pool

__all__ = ["adapter_of", "content", "models", "refusal"]


def models(policy: Policy, targets: Pool[Any]) -> tuple[str, ...]:
    """The model alone, and with each adapter of a revision of some weight that one of its targets has loaded."""
    weighted = [revision for revision in policy.revisions if revision.weight]
    names = {name for revision in weighted for name in _adapters(revision, targets)}
    return (policy.served_model_name, *(f"{policy.served_model_name}:{name}" for name in sorted(names)))


def adapter_of(model: str, policy: Policy) -> str:
    """The name behind the colon; empty for the model alone, and for what is not served here."""
    served, colon, name = model.partition(f"{policy.served_model_name}:")
    return name if colon and not served else ""


def content(model: str, policy: Policy, revision: PairRevision, targets: Pool[Any]) -> AdapterDigest | None:
    """What `<served name>:<adapter>` means at this moment; None for the served name alone.

    Raises ModelNotServed, and TargetLost where that is not known.
    """
    if model == policy.served_model_name:
        return None
    loaded = _adapters(revision, targets)
    name = model.removeprefix(f"{policy.served_model_name}:")
    if name != model and name in loaded:
        return loaded[name]
    if name != model and not targets.admitted().get(revision.target):
        raise TargetLost(f"no target pod of revision {revision.name} is ready; try again")
    raise refusal(model, models(policy, targets), revision)


def refusal(model: str, known: tuple[str, ...], revision: PairRevision | None = None) -> ModelNotServed:
    """What there is; that a name is there, and not in the revision that this request falls to, is said too."""
    if revision is not None and model in known:
        words = f"not served by revision {revision.name}, which this request falls to: another revision has it"
        return ModelNotServed(f"model {model!r} is {words}, and serves all once it is promoted")
    return ModelNotServed(f"model {model!r} is not served here; {', '.join(known)} can be asked for")


def _adapters(revision: PairRevision, targets: Pool[Any]) -> Mapping[str, AdapterDigest]:
    """What its requests mean by names, as far as one of its targets has it."""
    loaded = targets.adapters(revision.target)
    if revision.adapters is None:
        return {name: digest for name, digest in loaded.items() if not name.startswith(OF_THE_OPERATOR)}
    held = set(loaded.values())
    return {name: digest for name, digest in revision.adapters.items() if digest in held}
