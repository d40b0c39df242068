"""Knows what the links between the roles are made of: names, limits and every option of gRPC that we chose.

Refuses to know messages and engines. A default of the link that nobody chose becomes an outage, so each one that can
end or refuse a stream is written here with its reason; both ends read the same table.
"""

from typing import Final

from tandem_runtime.domain.errors import BadRequest, ModelRefused
from tandem_runtime.domain.tokens import Capabilities

TARGET_SERVICE: Final = "tandem.verify.v1.Target"
DRAFT_SERVICE: Final = "tandem.verify.v1.Draft"

FEWER_THREADS: Final = {"GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener"}
"""Environment for gRPC, to be set before it is loaded: who waits for a message reads it, as in releases before 2026. By
default one thread waits, another reads, and a third tells, and to wake them one by one is a quarter of what a message
takes that comes alone (decision 0017). A release that knows these names no more says so in a line, and is slower."""

MAX_MESSAGE_BYTES: Final = 16 * 2**20
"""A prompt of a million ids of a 150,000 vocabulary is 3 MB; gRPC's own 4 MiB would cut off the longest contexts."""

JOINED_FRAME_BYTES: Final = 256 * 2**10
"""Messages share a frame up to here: joining more saves no more system calls, but delays what stands first."""

_OPEN_OVERHEAD_BYTES: Final = 64 * 2**10
"""What an Open holds beside its token ids: parameters, and a logit bias of up to 4000 entries of 14 bytes."""

_NEVER_MILLISECONDS: Final = 2**31 - 1
_KEEPALIVE_MILLISECONDS: Final = 5_000
_PING_TIMEOUT_MILLISECONDS: Final = 10_000
"""A process that shares its cores with many others may be late by seconds and is still alive."""

Options = list[tuple[str, int]]

_BOTH_ENDS: Final[Options] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A node that vanishes sends no goodbye, and a process that hangs keeps its sockets: pings find both in 15 s, where
    # TCP alone would take a quarter of an hour.
    ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MILLISECONDS),
    # The ping that measures bandwidth has a timeout of its own, a minute by default, and while it is out no keepalive
    # ping is sent: a peer that hangs just after a burst of data would be found by this one only.
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MILLISECONDS),
    # Ping on quiet links too, and without end: else the first request after a quiet hour finds the dead peer.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

CLIENT_OPTIONS: Final[Options] = [
    *_BOTH_ENDS,
    # The roles talk pod to pod: a proxy from the environment would be a detour at best.
    ("grpc.enable_http_proxy", 0),
    # A quiet link stays: by default gRPC gives it up after half an hour.
    ("grpc.client_idle_timeout_ms", _NEVER_MILLISECONDS),
    # A round is not repeated behind our back: the driver knows whether it may be.
    ("grpc.enable_retries", 0),
    # Each peer has its own connection and its own back-off, also where two peers share an address over time.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER_OPTIONS: Final[Options] = [
    *_BOTH_ENDS,
    # Accept the clients' pings: by default the server answers the third one on a quiet link with "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MILLISECONDS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # A long request is no reason to hang up, and a quiet gateway neither.
    ("grpc.max_connection_age_ms", _NEVER_MILLISECONDS),
    ("grpc.max_connection_idle_ms", _NEVER_MILLISECONDS),
    # Two servers on one port would silently share its connections: the second must fail to start.
    ("grpc.so_reuseport", 0),
]


def check_request(size_bytes: int) -> None:
    """Refuse here what the peer's transport would refuse by ending the stream with all its sessions."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise BadRequest(
            f"the request takes {size_bytes} bytes on the link to the engine, whose limit is {MAX_MESSAGE_BYTES}; "
            "shorten the prompt",
            parameter="prompt",
        )


def check_reply(size_bytes: int) -> None:
    """As `check_request`, for what an engine says: full-vocabulary rows of q can be that long. It would be as long from
    any engine."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise BadRequest(
            f"the engine's answer takes {size_bytes} bytes on a link whose limit is {MAX_MESSAGE_BYTES}; send sparser q"
        )


def check_context_fits(capabilities: Capabilities) -> None:
    """Raises ModelRefused if the longest session could not be opened over a link.

    A protobuf varint holds 7 bits a byte: ids below 150,000 take up to 3 bytes, so 131,072 ids take 393,216 bytes.
    """
    id_bytes = max(1, -(-(capabilities.vocab_size - 1).bit_length() // 7))
    needed = capabilities.max_length * id_bytes + _OPEN_OVERHEAD_BYTES
    if needed > MAX_MESSAGE_BYTES:
        raise ModelRefused(
            f"max_length {capabilities.max_length} x {id_bytes} bytes per id + {_OPEN_OVERHEAD_BYTES} = {needed} bytes "
            f"do not fit a message of {MAX_MESSAGE_BYTES}; lower --max-length"
        )
