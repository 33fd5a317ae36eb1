"""The messages of the Open Inference Protocol over gRPC, built from ``open_inference_grpc.binpb``.

They live in a pool of their own. The stubs that protoc writes register themselves in the one pool of the process, where
a user's component that imports another client of the same protocol (``tritonclient``, say) would clash with them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"


@cache
def _load_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    described = descriptor_pb2.FileDescriptorSet.FromString(
        Path(__file__).with_name("open_inference_grpc.binpb").read_bytes()
    )
    for file in described.file:
        pool.Add(file)
    return pool


@cache
def get_message_class(name: str) -> Any:
    descriptor = _load_pool().FindMessageTypeByName(f"inference.{name}")
    return message_factory.GetMessageClass(descriptor)


def list_methods() -> dict[str, tuple[Any, Any]]:
    service = _load_pool().FindServiceByName(SERVICE)
    return {
        method.name: (get_message_class(method.input_type.name), get_message_class(method.output_type.name))
        for method in service.methods
    }
