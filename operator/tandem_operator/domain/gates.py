"""Knows what can be said of a revision before any traffic: whether its models fit each other, and whether they find
room.

Refuses to know what is done about it.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from tandem_operator.domain.decision import GateResult, GateVerdict
from tandem_operator.domain.errors import SpecError
from tandem_operator.domain.observed import ANNOTATION_TOKENIZER, Node, Pod
from tandem_operator.domain.pools import AcceleratorTable, choose
from tandem_operator.domain.revision import Revision, Role, RoleHash
from tandem_operator.domain.spec import Placement, Spec, SurgeMode

CRASHES = 5
"""Restarts after which a pod that still fails is called a crash loop."""


def admit(spec: Spec, table: AcceleratorTable, nodes: Sequence[Node] | None) -> None:
    """Raises SpecError for what the API server cannot check: an accelerator that is not in the operator's table."""
    placements: tuple[tuple[Role, Placement], ...] = (
        (Role.TARGET, spec.target.placement),
        (Role.DRAFT, spec.draft.placement),
    )
    labels = None if nodes is None else [node.labels for node in nodes]
    for role, placement in placements:
        if placement.accelerator is not None:
            path = f"spec.{role}.placement.accelerator"
            choose(placement.accelerator, count=placement.count, table=table, nodes=labels, path=path)


def admit_surge(asked: SurgeMode, stable: Revision | None, wanted: Revision) -> None:
    """Raises SpecError where the pods of a change cannot come up as `spec.canary.surge` asks."""
    if stable is None or stable == wanted or asked not in (SurgeMode.SHARED_TARGET, SurgeMode.IN_PLACE_DRAFT):
        return
    if stable.target != wanted.target:
        words = "the target changes too, so its pods cannot be shared; set Auto or SideBySide, or leave the target"
        raise SpecError("spec.canary.surge", str(asked), words)
    if asked is SurgeMode.IN_PLACE_DRAFT and None in (stable.draft, wanted.draft):
        words = "only draft pods can take the place of draft pods, and one of the revisions has none; set Auto"
        raise SpecError("spec.canary.surge", str(asked), words)


def compatible(pair: Revision, pods: Iterable[Pod]) -> GateResult:
    """Whether draft and target share a tokenizer, by the digests that their fetchers reported.

    A draft whose token ids mean other texts cannot propose anything; the target then serves alone.
    """
    if pair.draft is None:
        return GateResult(GateVerdict.OPEN, "NoDraft", "the target serves alone")
    held = tuple(pods)
    target, draft = _tokenizer(held, Role.TARGET, pair.target), _tokenizer(held, Role.DRAFT, pair.draft)
    if target is None or draft is None:
        missing = "target" if target is None else "draft"
        return GateResult(GateVerdict.UNKNOWN, "NotFetchedYet", f"the {missing}'s tokenizer has not been fetched yet")
    if target != draft:
        message = f"the tokenizers differ: target {target}, draft {draft}; use a draft trained with the target's"
        return GateResult(GateVerdict.CLOSED, "TokenizersDiffer", message)
    lessons = taught_elsewhere(pair, held)
    if lessons is not None:
        return GateResult(GateVerdict.OPEN, "DraftOfAnotherTarget", f"both use the tokenizer {target}; {lessons}")
    return GateResult(GateVerdict.OPEN, "TokenizersEqual", f"both use the tokenizer {target}")


def taught_elsewhere(pair: Revision, pods: Iterable[Pod]) -> str | None:
    """That the draft's manifest names another target than the pair's, in words; None where it does not, or nobody
    knows: most drafts have no manifest."""
    held = tuple(pods)
    if pair.draft is None:
        return None
    taught_by, target = _taught_by(held, pair.draft), _digest(held, pair.target)
    if taught_by is None or target is None or taught_by == target:
        return None
    return f"the draft was taught by the target {taught_by}, and proposes to {target}: fewer of its tokens may stand"


NAMES_TOLD = 5
"""Pods that a message names with each digest."""


Noted = Mapping[RoleHash, str]
"""By target hash: the digest of the tokenizer that its first pod reported, whether or not that pod is still there."""


def mixed(pods: Iterable[Pod], noted: Noted) -> GateResult | None:
    """That pods of one role hash fetched different weights, or another tokenizer than the first of them, and which;
    None where none did.

    A hash stands for one model, so a folder or a branch has changed under its name between two pods.
    """
    here = [pod for pod in pods if not pod.leaving]
    return _mixed_weights(here) or _other_tokenizers(here, noted)


def _mixed_weights(pods: Iterable[Pod]) -> GateResult | None:
    held = [pod for pod in pods if pod.fetched is not None and pod.fetched.digest]
    for role, role_hash in sorted({(pod.role, str(pod.role_hash)) for pod in held}):
        digests = _by_digest(pod for pod in held if (pod.role, pod.role_hash) == (role, role_hash))
        if len(digests) > 1:
            words = "; ".join(f"{_named(names)} {digest}" for digest, names in sorted(digests.items()))
            message = (
                f"{role} pods of {role_hash} hold different weights: {words}; what their uri names has changed: delete "
                "the pods whose weights are not meant, or give other weights a uri or a revision of their own"
            )
            return GateResult(GateVerdict.CLOSED, "DigestsDiffer", message)
    return None


def _other_tokenizers(pods: Sequence[Pod], noted: Noted) -> GateResult | None:
    for target, first in sorted(noted.items()):
        ours = [pod for pod in pods if pod.role is Role.TARGET and pod.role_hash == target]
        others = sorted((pod for pod in ours if _words(pod) not in (None, first)), key=lambda pod: pod.name)
        if others:
            message = (
                f"target pods of {target} read text otherwise than its first pod, with the tokenizer {first}: "
                f"{_named([pod.name for pod in others])} {_words(others[0])}; put the tokenizer's files back and "
                f"delete these pods, or, if they are meant, remove {ANNOTATION_TOKENIZER} from the ControllerRevisions"
            )
            return GateResult(GateVerdict.CLOSED, "DigestsDiffer", message)
    return None


def first_tokenizer(pods: Iterable[Pod], target: RoleHash) -> str | None:
    """That of the pod which started first, of those that have told."""
    ours = [pod for pod in pods if pod.role is Role.TARGET and pod.role_hash == target and _words(pod)]
    first = min(ours, key=lambda pod: (_age_key(pod), pod.name), default=None)
    return None if first is None else _words(first)


def _age_key(pod: Pod) -> float:
    """Of one that nobody started yet nobody knows when it will be."""
    return inf if pod.started_at is None else pod.started_at.timestamp()


def _words(pod: Pod) -> str | None:
    return None if pod.fetched is None else pod.fetched.tokenizer or None


def _by_digest(pods: Iterable[Pod]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pod in sorted(pods, key=lambda pod: pod.name):
        if pod.fetched is not None and pod.fetched.digest:
            found.setdefault(pod.fetched.digest, []).append(pod.name)
    return found


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"{', '.join(names[:NAMES_TOLD])}{more}"


def retokenized(stable: Revision, canary: Revision, pods: Iterable[Pod], noted: Noted) -> str | None:
    """That a canary's target came with another tokenizer than the gateways', in words; None where not, or nobody knows.

    Gateways read stable's for every revision: none would ever let the canary's pods in. Where none has told which, it
    is that of stable's own pods, or what was noted of them once there are none. One that reads another than stable's
    pods is never ready and says nothing of the others; and pods that both revisions share were let in.
    """
    if canary.target == stable.target:
        return None
    held = tuple(pods)
    theirs = _tokenizer(held, Role.TARGET, canary.target)
    ours = _of_gateways(held) or _tokenizer(held, Role.TARGET, stable.target) or noted.get(stable.target)
    if ours is None or theirs is None or ours == theirs:
        return None
    return (
        f"its target's tokenizer is {theirs} and stable's is {ours}; gateways read one for both, and ids of another "
        "would mean other text: serve it as an object of its own and move its callers, or give the new target the "
        "tokenizer.json, tokenizer_config.json and chat_template.jinja of the old one"
    )


def _of_gateways(pods: Iterable[Pod]) -> str | None:
    told = (pod.fetched for pod in pods if pod.role is Role.GATEWAY and pod.ready and not pod.leaving)
    return next((fetched.tokenizer for fetched in told if fetched is not None and fetched.tokenizer), None)


def _taught_by(pods: Iterable[Pod], draft: str) -> str | None:
    ours = (pod.fetched for pod in pods if pod.role is Role.DRAFT and pod.role_hash == draft)
    return next((fetched.taught_by for fetched in ours if fetched is not None and fetched.taught_by), None)


def _digest(pods: Iterable[Pod], target: str) -> str | None:
    ours = (pod.fetched for pod in pods if pod.role is Role.TARGET and pod.role_hash == target)
    return next((fetched.digest for fetched in ours if fetched is not None and fetched.digest), None)


def _tokenizer(pods: Iterable[Pod], role: Role, role_hash: str) -> str | None:
    ours = (pod.fetched for pod in pods if pod.role is role and pod.role_hash == role_hash)
    return next((fetched.tokenizer for fetched in ours if fetched is not None and fetched.tokenizer), None)


def capacity(pods: Iterable[Pod]) -> GateResult:
    """Whether every pod found a node; what the scheduler says of the first that did not."""
    unplaced = sorted((pod for pod in pods if pod.unschedulable is not None), key=lambda pod: pod.name)
    if not unplaced:
        return GateResult(GateVerdict.OPEN, "Scheduled", "every pod has a node")
    first = unplaced[0]
    return GateResult(
        GateVerdict.CLOSED, "Unschedulable", f"{len(unplaced)} of the {first.role} pods: {first.unschedulable}"
    )


def crash_looping(pods: Iterable[Pod]) -> Pod | None:
    """The first pod that fails again and again."""
    failing = (pod for pod in pods if pod.waiting_reason == "CrashLoopBackOff" and pod.restarts >= CRASHES)
    return next(failing, None)
