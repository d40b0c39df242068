"""Knows how a pair becomes a fleet within one process: each engine on a thread of its own, one replica per role.

Refuses to know HTTP and where models come from.
"""

from collections.abc import Iterator, Sequence
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
from tandem_runtime.domain.suffix import EarlierOutputs
from tandem_runtime.domain.tokens import Drafter
from tandem_runtime.drafters import EARLIER_BYTES, LookupDraft
from tandem_runtime.engines.batched import DEFAULT_SIZE, BatchedEngine
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.seats import Fleet, lookup_replica
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
    size: StepSize = DEFAULT_SIZE


@dataclass(frozen=True, slots=True)
class Lookup:
    """A drafter without a model. `earlier_bytes` bounds what it keeps of earlier outputs."""

    drafter: Drafter
    earlier_bytes: int = EARLIER_BYTES


@contextmanager
def local_fleet(
    target: LocalModel, draft: LocalModel | None, lookups: Sequence[Lookup] = (), *, clock: Clock
) -> Iterator[Fleet]:
    """Engines that run while the block lasts, in pools of one replica each."""
    fleet = Fleet(Pool(), Pool())
    with ExitStack() as running:
        engine = running.enter_context(
            BatchedTarget(target.model, target.facts, clock=clock, size=target.size, pace=target.pace)
        )
        capabilities = target.facts.capabilities(target.model)
        replica = Replica(
            str(target.facts.incarnation),
            LOCAL_TARGET,
            engine,
            capabilities,
            accepting=lambda: engine.trouble is None,
            adapters=lambda: engine.loaded_adapters,
        )
        running.enter_context(fleet.targets.holding(replica))
        if draft is not None:
            drafts = running.enter_context(
                BatchedDraft(draft.model, draft.facts, clock=clock, size=draft.size, pace=draft.pace)
            )
            told = draft.facts.capabilities(draft.model)
            running.enter_context(
                fleet.drafts.holding(Replica(str(draft.facts.incarnation), LOCAL_DRAFT, drafts, told))
            )
        for lookup in lookups:
            engine_of_it = LookupDraft(
                lookup.drafter,
                capabilities,
                clock,
                end_tokens=target.facts.end_tokens,
                earlier=EarlierOutputs(lookup.earlier_bytes),
            )
            running.enter_context(fleet.drafts.holding(lookup_replica(engine_of_it)))
        yield fleet


def adapter_desk(fleet: Fleet) -> AdapterDesk | None:
    """Of the one target of a local fleet; None where it takes no adapters."""
    return next((each.engine.adapters for each in fleet.targets if isinstance(each.engine, BatchedTarget)), None)


def hung(fleet: Fleet, deadline_seconds: float) -> str | None:
    """Which engine of a local fleet hangs, and that only another process helps; None where none does."""
    engines = (replica.engine for pool in (fleet.targets, fleet.drafts) for replica in pool)
    found = (each.hung(deadline_seconds) for each in engines if isinstance(each, BatchedEngine))
    return next((words for words in found if words is not None), None)


def local_policy(
    served_model_name: str,
    *,
    drafters: Sequence[Drafter],
    speculation: SpeculationPolicy,
    control: ControlPolicy,
    exactness: ExactnessPolicy,
) -> Policy:
    """The policy of one pair that gets everything. No drafters: the target alone."""
    revision = PairRevision(
        LOCAL_REVISION,
        LOCAL_TARGET,
        LOCAL_DRAFT if Drafter.MODEL in drafters else None,
        weight=100,
        lookups=tuple(drafter for drafter in drafters if drafter is not Drafter.MODEL),
    )
    return Policy(
        number=1,
        served_model_name=served_model_name,
        salt="local",
        revisions=(revision,),
        speculation=speculation,
        control=control,
        exactness=exactness,
    )
