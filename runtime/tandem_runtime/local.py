"""Knows how a pair becomes a fleet within one process: each engine on a thread of its own, one replica per role.

Refuses to know HTTP and where models come from.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, assert_never

from tandem_runtime.domain.policy import (
    ControlPolicy,
    Drafter,
    ExactnessPolicy,
    PairRevision,
    Policy,
    RevisionName,
    RoleHash,
    SpeculationPolicy,
)
from tandem_runtime.domain.suffix import EarlierOutputs
from tandem_runtime.domain.tokens import Capabilities
from tandem_runtime.drafters import EARLIER_BYTES, LookupDraft, draft_capabilities
from tandem_runtime.engines.batched import DEFAULT_SIZE
from tandem_runtime.engines.draft_loop import BatchedDraft
from tandem_runtime.engines.pace import Pace
from tandem_runtime.engines.planning import StepSize
from tandem_runtime.engines.sessions import EngineFacts
from tandem_runtime.engines.target_loop import BatchedTarget
from tandem_runtime.gateway.seats import Fleet
from tandem_runtime.ports import AdapterDesk, Clock, DraftEngine, StepModel
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
    drafter: ClassVar[Drafter] = Drafter.MODEL
    """What it is as a draft."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A draft without a model. `earlier_bytes` bounds what it keeps of earlier outputs."""

    drafter: Drafter
    earlier_bytes: int = EARLIER_BYTES


@contextmanager
def local_fleet(target: LocalModel, draft: LocalModel | Lookup | None, *, clock: Clock) -> Iterator[Fleet]:
    """Engines that run while the block lasts, in pools of one replica each."""
    fleet = Fleet(Pool(), Pool())
    with ExitStack() as running:
        engine = running.enter_context(
            BatchedTarget(target.model, target.facts, clock=clock, size=target.size, pace=target.pace)
        )
        capabilities = target.facts.capabilities(target.model)
        replica = Replica(
            str(target.facts.incarnation), LOCAL_TARGET, engine, capabilities, adapters=lambda: engine.loaded_adapters
        )
        running.enter_context(fleet.targets.holding(replica))
        if draft is not None:
            running.enter_context(fleet.drafts.holding(_guesser(draft, target.facts, capabilities, clock, running)))
        yield fleet


def adapter_desk(fleet: Fleet) -> AdapterDesk | None:
    """Of the one target of a local fleet; None where it takes no adapters."""
    return next((each.engine.adapters for each in fleet.targets if isinstance(each.engine, BatchedTarget)), None)


def _guesser(
    draft: LocalModel | Lookup, facts: EngineFacts, target: Capabilities, clock: Clock, running: ExitStack
) -> Replica[DraftEngine]:
    """`facts` and `target` are the target's."""
    match draft:
        case LocalModel(model, own, pace, size):
            drafter = running.enter_context(BatchedDraft(model, own, clock=clock, size=size, pace=pace))
            return Replica(str(own.incarnation), LOCAL_DRAFT, drafter, own.capabilities(model))
        case Lookup(kind, earlier_bytes):
            earlier = EarlierOutputs(earlier_bytes)
            lookup = LookupDraft(kind, target, clock, end_tokens=facts.end_tokens, earlier=earlier)
            return Replica(kind.value, LOCAL_DRAFT, lookup, draft_capabilities(kind, target))
        case _:
            assert_never(draft)


def local_policy(
    served_model_name: str,
    *,
    drafter: Drafter | None,
    speculation: SpeculationPolicy,
    control: ControlPolicy,
    exactness: ExactnessPolicy,
) -> Policy:
    """The policy of one pair that gets everything. `drafter` None: the target alone."""
    revision = PairRevision(
        LOCAL_REVISION,
        LOCAL_TARGET,
        None if drafter is None else LOCAL_DRAFT,
        weight=100,
        drafter=drafter or Drafter.MODEL,
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
