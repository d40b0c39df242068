"""Knows how what is asked of a pod as a whole becomes bytes and comes back: what it can do, and to forget a tenant.

Refuses to know sessions and frames (`codec`), which no pod is asked for here.

Total both ways, as there: bytes that make no sense are `BadRequest` naming the field.
"""

from google.protobuf.message import DecodeError

from tandem_runtime.domain.adapters import AdapterDigest, AdapterFacts
from tandem_runtime.domain.errors import BadRequest
from tandem_runtime.domain.tokens import Capabilities
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.codec import UNFIT, does_not_fit
from tandem_runtime.wire.openings import VERIFICATIONS, verification_value

_DETERMINISMS = {"Bitwise": pb.DETERMINISM_BITWISE, "NearTie": pb.DETERMINISM_NEAR_TIE}
_DETERMINISMS_BACK: dict[int, str] = {number: name for name, number in _DETERMINISMS.items()}


def describe_request() -> bytes:
    return pb.DescribeRequest().SerializeToString()


def forget_request(tenant: str) -> bytes:
    return pb.ForgetRequest(tenant=tenant).SerializeToString()


def read_forget(encoded: bytes) -> str:
    """The tenant. Raises BadRequest."""
    try:
        return pb.ForgetRequest.FromString(encoded).tenant
    except DecodeError as error:
        raise BadRequest("the request is not tandem.verify.v1.ForgetRequest", parameter="tenant") from error


def forget_reply() -> bytes:
    return pb.ForgetReply().SerializeToString()


def capabilities_bytes(value: Capabilities) -> bytes:
    try:
        return pb.DescribeReply(
            model_digest=value.model_digest,
            tokenizer_digest=value.tokenizer_digest,
            vocab_size=value.vocab_size,
            max_length=value.max_length,
            determinism=_DETERMINISMS[value.determinism],
            verifications=[VERIFICATIONS[each] for each in value.verifications],
            adapters=[
                pb.Adapter(name=each.name, digest=each.digest, rank=each.rank, bytes=each.bytes)
                for each in value.adapters
            ],
        ).SerializeToString()
    except UNFIT as error:
        raise does_not_fit("capabilities", error) from error


def read_capabilities(encoded: bytes) -> Capabilities:
    """Raises BadRequest for bytes or enum values that this release does not know."""
    try:
        message = pb.DescribeReply.FromString(encoded)
    except DecodeError as error:
        raise BadRequest("the answer is not tandem.verify.v1.DescribeReply", parameter="describe") from error
    determinism = _DETERMINISMS_BACK.get(message.determinism)
    if determinism is None:
        raise BadRequest(
            f"determinism {message.determinism} is not one that this release knows", parameter="determinism"
        )
    return Capabilities(
        model_digest=message.model_digest,
        tokenizer_digest=message.tokenizer_digest,
        vocab_size=message.vocab_size,
        max_length=message.max_length,
        determinism=determinism,
        verifications=tuple(verification_value(each, "verifications") for each in message.verifications),
        adapters=tuple(
            AdapterFacts(each.name, AdapterDigest(each.digest), each.rank, each.bytes) for each in message.adapters
        ),
    )
