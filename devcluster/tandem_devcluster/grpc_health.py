"""One call of the standard gRPC health protocol.

It knows nothing of probes and thresholds.
"""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


async def check_grpc(address: str, service: str) -> tuple[bool, str]:
    """Whether the service says SERVING, and what it said; the caller sets the time limit."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        except grpc.aio.AioRpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return reply.status == health_pb2.HealthCheckResponse.SERVING, f"service {service!r} is {name}"
