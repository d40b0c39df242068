"""Further targets beside the one of a running gateway."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.seams.gateway_peers import Running, local

from tandem_runtime.domain.tokens import TokenId
from tandem_runtime.engines.scripted import Script
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.local import LOCAL_TARGET
from tandem_runtime.ports import StepModel, TargetEngine
from tandem_runtime.replicas import Replica


@contextmanager
def another_target(
    running: Running, model: StepModel | Script, uid: str, *, end_tokens: Sequence[TokenId] = ()
) -> Iterator[Replica[TargetEngine]]:
    """A target of the same hash, with an engine of its own, while the block lasts."""
    one = local(model, uid, end_tokens=end_tokens)
    with BatchedTarget(one.model, one.facts, clock=running.clock) as engine:
        replica: Replica[TargetEngine] = Replica(uid, LOCAL_TARGET, engine, one.facts.capabilities(one.model))
        with running.gateway.fleet.targets.holding(replica):
            yield replica
