"""Knows how what is said in sessions becomes bytes and comes back: requests, replies, and frames of them.

Refuses to know streams, sessions' owners and who calls whom, and what is asked of a pod as a whole (`pod_calls`).

Total both ways: a value that does not fit and bytes that make no sense are `BadRequest` naming the field, never another
exception. What the wire rounds, by decision: seconds to microseconds, the KV share to basis points, probabilities and
logprobs to float32. An empty proposal has no q, and a verdict's logprobs are absent or one per emitted token, so empty
and absent are one thing there.

A frame is `Requests` or `Replies` with one repeated field, and protobuf defines the concatenation of two encodings as
their merge. So every message is encoded once, as a frame of its own, and joining frames is joining bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from google.protobuf.message import DecodeError

from tandem_runtime.domain.ahead import MORE_TOKENS
from tandem_runtime.domain.errors import BadRequest, TandemError
from tandem_runtime.domain.policy import LONGEST_PROPOSAL
from tandem_runtime.domain.tokens import (
    CONFIDENCE_KINDS,
    Ahead,
    Incarnation,
    Opened,
    OpenSession,
    Outlook,
    PromptRead,
    Proposal,
    ProposeRound,
    ReadPrompt,
    RunRounds,
    ScoreTokens,
    SessionId,
    SparseRow,
    Stop,
    Verdict,
    VerifyRound,
)
from tandem_runtime.domain.verification import refuse_bad_row
from tandem_runtime.wire import faults
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.logprobs import logprob_messages, logprob_values
from tandem_runtime.wire.openings import open_message, open_value

_MICROSECONDS = 1_000_000
_BASIS_POINTS = 10_000
_UINT32 = 2**32 - 1
_BYTE = 255
UNFIT = (ValueError, TypeError, KeyError)
"""Protobuf refuses an integer outside its field's range by the first, and a wrong type by the second."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the call that this request's number names."""


@dataclass(frozen=True, slots=True)
class Close:
    """Free the session."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run has sent all its verdicts."""


@dataclass(frozen=True, slots=True)
class Scored:
    matches: tuple[bool, ...]


_OfSession: TypeAlias = VerifyRound | RunRounds | ProposeRound | ScoreTokens | ReadPrompt
RequestBody: TypeAlias = OpenSession | _OfSession | Cancel | Close
ReplyBody: TypeAlias = Opened | Verdict | Ended | Proposal | Scored | PromptRead | TandemError

# Requests -------------------------------------------------------------------------------------------------------------


def request_frame(body: RequestBody, *, call: int, session: int, bound: Incarnation | None = None) -> bytes:
    """One request as a frame. The incarnation travels only when it is not the one `bound` by Opened."""
    frame = pb.Requests()
    try:
        message = frame.requests.add(call=call, session=session)
        if isinstance(body, _OfSession) and body.incarnation != bound:
            message.incarnation = body.incarnation
        _fill_request(message, body)
        return frame.SerializeToString()
    except UNFIT as error:
        raise does_not_fit(_suspect(body), error) from error


def _suspect(body: RequestBody) -> str:
    """What to name if the message cannot be built: the one part of a request that a user writes as ids."""
    return "prompt" if isinstance(body, OpenSession) else "request"


def _fill_request(message: pb.Request, body: RequestBody) -> None:
    match body:
        case OpenSession():
            message.open.CopyFrom(open_message(body))
        case VerifyRound():
            _fill_verify(message.verify, body)
        case RunRounds():
            message.run.CopyFrom(pb.Run(round=body.round, offset=body.offset, max_tokens=body.max_tokens))
        case ProposeRound():
            _fill_propose(message.propose, body)
        case ScoreTokens():
            message.score.CopyFrom(pb.Score(base=body.base, ids=body.ids))
        case ReadPrompt(base=base, count=count, alternatives=most):
            message.read_prompt.CopyFrom(pb.ReadPrompt(base=base, count=count, alternatives=most))
        case Cancel():
            message.cancel.SetInParent()
        case Close():
            message.close.SetInParent()
        case _:
            assert_never(body)


class IncomingRequest(NamedTuple):
    """A request whose numbers are read and whose body is not yet: that needs the session that the number stands for."""

    call: int
    session: int
    message: pb.Request
    kind: str | None
    """The name of the kind in verify.proto, or None for one that this release does not know."""

    def body(self, *, session: SessionId, bound: Incarnation) -> RequestBody:
        """Raises BadRequest naming the field."""
        named = Incarnation(self.message.incarnation) or bound
        return decode_request(self.message, session=session, incarnation=named)


def read_requests(frame: bytes) -> list[IncomingRequest]:
    """Raises BadRequest if the frame is not `Requests` at all."""
    try:
        requests = pb.Requests.FromString(frame).requests
    except DecodeError as error:
        raise BadRequest(
            f"a frame of {len(frame)} bytes is not tandem.verify.v1.Requests", parameter="frame"
        ) from error
    return [IncomingRequest(each.call, each.session, each, each.WhichOneof("kind")) for each in requests]


def decode_request(message: pb.Request, *, session: SessionId, incarnation: Incarnation) -> RequestBody:
    match message.WhichOneof("kind"):
        case "open":
            return open_value(message.open, session)
        case "verify":
            return _verify_value(message.verify, session, incarnation)
        case "run":
            run = message.run
            return RunRounds(session, incarnation, run.round, run.offset, run.max_tokens)
        case "propose":
            return _propose_value(message.propose, session, incarnation)
        case "score":
            return ScoreTokens(session, incarnation, message.score.base, tuple(message.score.ids))
        case "read_prompt":
            read = message.read_prompt
            return ReadPrompt(session, incarnation, read.base, read.count, read.alternatives)
        case "cancel":
            return Cancel()
        case "close":
            return Close()
        case _:
            raise BadRequest("a request without a kind that this release knows", parameter="kind")


def _fill_propose(message: pb.Propose, value: ProposeRound) -> None:
    """In its place in the frame, as with a verify: the two are most of what a gateway sends, and copies cost half."""
    message.SetInParent()
    message.base, message.k = value.base, value.k
    message.committed.extend(value.committed)
    if value.stop is not None:
        message.stop.CopyFrom(_stop_message(value.stop))
    if value.outlook is not None:
        message.outlook.CopyFrom(_outlook_message(value.outlook))


def _propose_value(message: pb.Propose, session: SessionId, incarnation: Incarnation) -> ProposeRound:
    stop = _stop_value(message.stop) if message.HasField("stop") else None
    outlook = _outlook_value(message.outlook, k=message.k) if message.HasField("outlook") else None
    return ProposeRound(session, incarnation, message.base, tuple(message.committed), message.k, stop, outlook)


def _outlook_message(value: Outlook) -> pb.Outlook:
    survivals = [_scaled(survival, _BASIS_POINTS) for survival in value.survivals]
    return pb.Outlook(survivals_basis_points=survivals, branches=value.branches, enough=value.enough or 0)


def _outlook_value(message: pb.Outlook, *, k: int) -> Outlook:
    told = len(message.survivals_basis_points)
    if told > k + MORE_TOKENS:
        raise BadRequest(
            f"propose.outlook.survivals_basis_points has {told} entries for k {k}; send one per token of the proposal, "
            f"and {MORE_TOKENS} more at most",
            parameter="propose.outlook.survivals_basis_points",
        )
    survivals = tuple(min(points, _BASIS_POINTS) / _BASIS_POINTS for points in message.survivals_basis_points)
    return Outlook(survivals, message.branches, message.enough or None)


def _stop_message(value: Stop) -> pb.Stop:
    acceptance = bytes(_scaled(each, _BYTE) for each in value.acceptance)
    return pb.Stop(least_basis_points=_scaled(value.least, _BASIS_POINTS), acceptance=acceptance)


def _stop_value(message: pb.Stop) -> Stop:
    if len(message.acceptance) != CONFIDENCE_KINDS:
        raise BadRequest(
            f"propose.stop.acceptance has {len(message.acceptance)} bytes; send one for each of {CONFIDENCE_KINDS}",
            parameter="propose.stop.acceptance",
        )
    return Stop(message.least_basis_points / _BASIS_POINTS, tuple(each / _BYTE for each in message.acceptance))


def _fill_verify(message: pb.Verify, value: VerifyRound) -> None:
    message.SetInParent()
    message.round, message.offset = value.round, value.offset
    message.ids.extend(value.proposal.ids)
    if value.proposal.q:
        message.q.extend(_row_messages(value.proposal.q))
    message.survivals = bytes([round(survival * _BYTE) for survival in value.survivals])


def _verify_value(message: pb.Verify, session: SessionId, incarnation: Incarnation) -> VerifyRound:
    k = len(message.ids)
    most = max(k, LONGEST_PROPOSAL)
    if message.survivals and not k <= len(message.survivals) <= most:
        raise BadRequest(
            f"survivals: {len(message.survivals)} bytes for {k} proposed ids; send one per id that was asked for, "
            f"{most} at most, or none",
            parameter="survivals",
        )
    proposal = Proposal(ids=tuple(message.ids), q=_row_values(message.q, k, "proposal.q"))
    survivals = tuple([byte / _BYTE for byte in message.survivals])
    return VerifyRound(session, incarnation, message.round, message.offset, proposal, survivals)


# Replies --------------------------------------------------------------------------------------------------------------


def reply_frame(body: ReplyBody, *, call: int) -> bytes:
    """One reply as a frame; `call` 0 answers a frame that could not be read."""
    frame = pb.Replies()
    try:
        _fill_reply(frame.replies.add(call=call), body)
        return frame.SerializeToString()
    except UNFIT as error:
        raise does_not_fit("reply", error) from error


def _fill_reply(message: pb.Reply, body: ReplyBody) -> None:
    match body:
        case Opened():
            message.opened.CopyFrom(pb.Opened(incarnation=body.incarnation, cached_tokens=body.cached_tokens))
        case Verdict():
            _fill_verdict(message.verdict, body)
        case Ended():
            message.ended.SetInParent()
        case Proposal():
            _fill_proposal(message.proposal, body)
        case Scored():
            message.scored.matches.extend(body.matches)
            message.scored.SetInParent()
        case PromptRead():
            message.prompt_read.CopyFrom(pb.PromptRead(logprobs=logprob_messages(body.logprobs)))
        case TandemError():
            message.failure.CopyFrom(faults.failure_message(body))
        case _:
            assert_never(body)


class IncomingReply(NamedTuple):
    """A reply whose number is read and whose body is not yet, so that one without meaning fails its own call only."""

    call: int
    message: pb.Reply

    def body(self) -> ReplyBody:
        """A failure comes back as the error that it stands for. Raises BadRequest for a reply that means nothing."""
        return decode_reply(self.message)


def read_replies(frame: bytes) -> list[IncomingReply]:
    """In order. Raises BadRequest if the frame is not `Replies` at all."""
    try:
        replies = pb.Replies.FromString(frame).replies
    except DecodeError as error:
        raise BadRequest(f"{len(frame)} bytes are not tandem.verify.v1.Replies", parameter="frame") from error
    return [IncomingReply(call=each.call, message=each) for each in replies]


def decode_reply(message: pb.Reply) -> ReplyBody:
    match message.WhichOneof("kind"):
        case "opened":
            return Opened(Incarnation(message.opened.incarnation), message.opened.cached_tokens)
        case "verdict":
            return _verdict_value(message.verdict)
        case "ended":
            return Ended()
        case "proposal":
            return _proposal_value(message.proposal)
        case "scored":
            return Scored(tuple(message.scored.matches))
        case "prompt_read":
            return PromptRead(logprob_values(message.prompt_read.logprobs, "prompt_read.logprobs"))
        case "failure":
            return faults.error_value(message.failure)
        case _:
            raise BadRequest("a reply without a kind that this release knows", parameter="kind")


def _fill_proposal(message: pb.Proposal, value: Proposal) -> None:
    """In its place in the frame, and nothing where a default says it; so is a verdict: most of what engines send."""
    message.SetInParent()
    message.ids.extend(value.ids)
    if value.q:
        message.q.extend(_row_messages(value.q))
    message.draft_microseconds = _scaled(value.draft_seconds, _MICROSECONDS)
    if value.rows != 1:
        message.rows = value.rows
    if value.confidences:
        message.confidences = bytes(value.confidences)
    if value.ahead is not None:
        message.ahead.CopyFrom(pb.Ahead(hit=value.ahead.hit, wasted=value.ahead.wasted))


def _proposal_value(message: pb.Proposal) -> Proposal:
    ids = tuple(message.ids)
    return Proposal(
        ids=ids,
        q=_row_values(message.q, len(ids), "proposal.q"),
        draft_seconds=message.draft_microseconds / _MICROSECONDS,
        rows=message.rows or 1,
        confidences=_confidence_values(message.confidences, len(ids)),
        ahead=Ahead(message.ahead.hit, message.ahead.wasted) if message.HasField("ahead") else None,
    )


def _confidence_values(confidences: bytes, k: int) -> tuple[int, ...]:
    if len(confidences) not in (0, k):
        raise BadRequest(
            f"proposal.confidences has {len(confidences)} bytes for {k} ids; send one per id or none",
            parameter="proposal.confidences",
        )
    return tuple(confidences)


def _fill_verdict(message: pb.Verdict, value: Verdict) -> None:
    message.SetInParent()
    message.round, message.offset = value.round, value.offset
    message.accepted, message.token = value.accepted, value.token
    message.queue_microseconds = _scaled(value.queue_seconds, _MICROSECONDS)
    message.forward_microseconds = _scaled(value.forward_seconds, _MICROSECONDS)
    message.kv_used_basis_points = _scaled(value.kv_used, _BASIS_POINTS)
    if value.logprobs:
        message.logprobs.extend(logprob_messages(value.logprobs))
    if value.credits:
        message.credits_basis_points.extend(_scaled(each, _BASIS_POINTS) for each in value.credits)
    if value.rows != 1:
        message.rows = value.rows
    if value.unjudged:
        message.unjudged = value.unjudged
    if value.beside:
        message.beside = value.beside


def _verdict_value(message: pb.Verdict) -> Verdict:
    return Verdict(
        round=message.round,
        offset=message.offset,
        accepted=message.accepted,
        token=message.token,
        logprobs=logprob_values(message.logprobs, "verdict.logprobs") if message.logprobs else None,
        queue_seconds=message.queue_microseconds / _MICROSECONDS,
        forward_seconds=message.forward_microseconds / _MICROSECONDS,
        kv_used=message.kv_used_basis_points / _BASIS_POINTS,
        credits=_credit_values(message.credits_basis_points) if message.credits_basis_points else (),
        rows=message.rows or 1,
        unjudged=message.unjudged,
        beside=message.beside,
    )


def _credit_values(credits: Sequence[int]) -> tuple[float, ...]:
    for at, credit in enumerate(credits):
        if credit > _BASIS_POINTS:
            path = f"verdict.credits_basis_points[{at}]"
            raise BadRequest(f"{path} is {credit}; a chance has {_BASIS_POINTS} at most", parameter=path)
    return tuple(credit / _BASIS_POINTS for credit in credits)


# Parts ----------------------------------------------------------------------------------------------------------------


def _row_messages(rows: Sequence[SparseRow]) -> Iterator[pb.SparseRow]:
    return (pb.SparseRow(ids=row.ids, probabilities=row.probabilities) for row in rows)


def _row_values(rows: Sequence[pb.SparseRow], k: int, path: str) -> tuple[SparseRow, ...] | None:
    if not rows:
        return None
    if len(rows) != k:
        raise BadRequest(f"{path}: {len(rows)} rows for {k} proposed ids; send one row per id or none", parameter=path)
    return tuple(_row_value(row, f"{path}[{at}]") for at, row in enumerate(rows))


def _row_value(row: pb.SparseRow, path: str) -> SparseRow:
    value = SparseRow(tuple(row.ids), tuple(row.probabilities))
    refuse_bad_row(value, path)
    return value


def _scaled(value: float, unit: int) -> int:
    """`value` in whole units; a clock that stepped back or ran for an hour saturates instead of failing the round."""
    return min(max(round(value * unit), 0), _UINT32)


def does_not_fit(what: str, error: Exception) -> BadRequest:
    return BadRequest(f"a {what} holds a value that the wire cannot carry: {error}", parameter=what)
