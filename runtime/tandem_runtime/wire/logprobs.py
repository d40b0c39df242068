"""Knows how log-probabilities travel.

Refuses to know what they are told of: a verdict's tokens, or a prompt's.
"""

from collections.abc import Iterable, Iterator

from tandem_runtime.domain.tokens import TokenLogprob
from tandem_runtime.wire import verify_pb2 as pb
from tandem_runtime.wire.openings import paired


def logprob_messages(values: Iterable[TokenLogprob]) -> Iterator[pb.TokenLogprob]:
    return map(_message, values)


def logprob_values(messages: Iterable[pb.TokenLogprob], path: str) -> tuple[TokenLogprob, ...]:
    """Raises BadRequest naming `path` where an alternative has no number."""
    return tuple(
        TokenLogprob(message.logprob, paired(message.top_ids, message.top_logprobs, f"{path}.top_logprobs"))
        for message in messages
    )


def _message(value: TokenLogprob) -> pb.TokenLogprob:
    top_ids, top_logprobs = [token for token, _ in value.top], [logprob for _, logprob in value.top]
    return pb.TokenLogprob(logprob=value.logprob, top_ids=top_ids, top_logprobs=top_logprobs)
