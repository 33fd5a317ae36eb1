"""Starts the gRPC face where there is to be one: its library takes 10 MB, which others need not pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.wire import InstanceSpec

if TYPE_CHECKING:
    from scanflow_serving.grpc_face import Core, GrpcFace

__all__ = ["start_grpc"]


async def start_grpc(core: Core, spec: InstanceSpec) -> GrpcFace | None:
    """Return the face, listening; None: the service has no gRPC.

    Raises:
        UnavailableError: another program has the port.
    """
    if spec.grpc_port is None:
        return None
    from scanflow_serving.grpc_face import GrpcFace

    face = GrpcFace(core, spec.host, spec.grpc_port, spec.limits)
    await face.start()
    return face
