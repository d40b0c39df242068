"""Knows how a pair becomes a fleet within one process: each engine on a thread of its own, one replica per role.

Refuses to know HTTP and where models come from.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tandem_runtime.domain.policy import (
    ControlPolicy,
    ExactnessPolicy,
    PairRevision,
    Policy,
    RevisionName,
    RoleHash,
    SpeculationPolicy,
)
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.ports import AdapterDesk, Clock, StepModel
from tandem_runtime.replicas import Pool, Replica

LOCAL_REVISION = RevisionName("local")
LOCAL_TARGET = RoleHash("local-target")
LOCAL_DRAFT = RoleHash("local-draft")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model, what its engine is told about it, and the pace of its steps where it has one."""

    model: StepModel
    facts: EngineFacts
    pace: Pace | None = None


@contextmanager
def local_fleet(target: LocalModel, draft: LocalModel | None, *, clock: Clock) -> Iterator[Fleet]:
    """Engines that run while the block lasts, in pools of one replica each."""
    fleet = Fleet(Pool(), Pool())
    with ExitStack() as running:
        engine = running.enter_context(BatchedTarget(target.model, target.facts, clock=clock, pace=target.pace))
        capabilities = target.facts.capabilities(target.model)
        replica = Replica(
            str(target.facts.incarnation), LOCAL_TARGET, engine, capabilities, adapters=lambda: engine.loaded_adapters
        )
        running.enter_context(fleet.targets.holding(replica))
        if draft is not None:
            drafter = running.enter_context(BatchedDraft(draft.model, draft.facts, clock=clock, pace=draft.pace))
            capabilities = draft.facts.capabilities(draft.model)
            guesser = Replica(str(draft.facts.incarnation), LOCAL_DRAFT, drafter, capabilities)
            running.enter_context(fleet.drafts.holding(guesser))
        yield fleet


def adapter_desk(fleet: Fleet) -> AdapterDesk | None:
    """Of the one target of a local fleet; None where it takes no adapters."""
    return next((each.engine.adapters for each in fleet.targets if isinstance(each.engine, BatchedTarget)), None)


def local_policy(
    served_model_name: str,
    *,
    has_draft: bool,
    speculation: SpeculationPolicy,
    control: ControlPolicy,
    exactness: ExactnessPolicy,
) -> Policy:
    """The policy of one pair that gets everything."""
    revision = PairRevision(LOCAL_REVISION, LOCAL_TARGET, LOCAL_DRAFT if has_draft else None, weight=100)
    return Policy(
        number=1,
        served_model_name=served_model_name,
        salt="local",
        revisions=(revision,),
        speculation=speculation,
        control=control,
        exactness=exactness,
    )
