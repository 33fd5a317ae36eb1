"""A device plugin beside the kubelet of this machine, as NVIDIA's is, whose devices are names and nothing more.

All kubelets of a cluster that `.ci/cluster` has brought up share one folder of sockets. The one that was started last
has it, so the devices are its node's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.gpus import count_gpus
from scanflow.backends.kubernetes.kinds import Manifest
from tests.waiting import patient, wait_until

SOCKETS: Final = Path("/var/lib/kubelet/device-plugins")
VERSION: Final = "v1beta1"
PROTO: Final = Path(__file__).with_name("device_plugin.proto")

Labels = Mapping[str, str]


@dataclass(kw_only=True, eq=False)
class AdvertisedDevices:
    """What a plugin offers, and to whom it was granted."""

    resource: str
    devices: Sequence[str]
    """UUIDs; ``UUID::1`` is a share of a GPU, as NVIDIA's plugin writes it."""

    node: str = ""
    grants: list[frozenset[str]] = field(default_factory=list)
    """The devices of each container that was started with any, in order."""

    over: threading.Event = field(default_factory=threading.Event)

    @property
    def uuids(self) -> set[str]:
        return {_cut_share(device) for device in self.devices}


@contextmanager
def advertise_devices(
    cluster: Cluster, resource: str, devices: Sequence[str], labels: Labels | None = None
) -> Iterator[AdvertisedDevices]:
    """Have the kubelet offer devices, on a node that is labelled as GPU feature discovery does."""
    offer = AdvertisedDevices(resource=resource, devices=devices)
    socket = SOCKETS / f"tests-{os.getpid()}-{resource.rpartition('/')[2]}.sock"
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", _handle(offer)),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        _register(socket.name, resource)
        wait_until(lambda: _find_node(cluster, offer), f"a node offers {resource}")
        node = _find_node(cluster, offer)
        assert node is not None
        offer.node = node["metadata"]["name"]
        with labelled_node(cluster, offer.node, labels or {}):
            yield offer
    finally:
        offer.over.set()
        server.stop(patient(5)).wait()
        socket.unlink(missing_ok=True)


@contextmanager
def labelled_node(cluster: Cluster, node: str, labels: Labels) -> Iterator[None]:
    """Give a node labels, and at the end those that it had."""
    manifest = cluster.get("Node", node)
    assert manifest is not None
    before = manifest["metadata"].get("labels", {})
    cluster.patch("Node", node, None, {"metadata": {"labels": dict(labels)}})
    try:
        yield
    finally:
        cluster.patch("Node", node, None, {"metadata": {"labels": {label: before.get(label) for label in labels}}})


def _find_node(cluster: Cluster, offer: AdvertisedDevices) -> Manifest | None:
    nodes, _ = cluster.find("Node")
    return next((node for node in nodes if count_gpus(node, offer.resource) == len(offer.devices)), None)


def _register(endpoint: str, resource: str) -> None:
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{SOCKETS / 'kubelet.sock'}", options=options) as channel:
        register = channel.unary_unary(
            f"/{VERSION}.Registration/Register",
            request_serializer=_find_message("RegisterRequest").SerializeToString,
            response_deserializer=_find_message("Empty").FromString,
        )
        request = _find_message("RegisterRequest")(version=VERSION, endpoint=endpoint, resource_name=resource)
        register(request, timeout=patient(10))


def _handle(offer: AdvertisedDevices) -> dict[str, grpc.RpcMethodHandler]:
    """Return what answers the kubelet."""

    def describe(request: object, context: object) -> Any:
        return _find_message("DevicePluginOptions")()

    def list_and_watch(request: object, context: object) -> Iterator[Any]:
        yield _find_message("ListAndWatchResponse")(
            devices=[{"ID": device, "health": "Healthy"} for device in offer.devices]
        )
        offer.over.wait()

    def allocate(request: Any, context: object) -> Any:
        response = _find_message("AllocateResponse")()
        for container in request.container_requests:
            uuids = sorted({_cut_share(device) for device in container.devices_ids})
            offer.grants.append(frozenset(uuids))
            response.container_responses.add().envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
        return response

    answers: dict[str, tuple[Callable[..., Any], Callable[..., grpc.RpcMethodHandler], str]] = {
        "GetDevicePluginOptions": (describe, grpc.unary_unary_rpc_method_handler, "Empty"),
        "ListAndWatch": (list_and_watch, grpc.unary_stream_rpc_method_handler, "Empty"),
        "Allocate": (allocate, grpc.unary_unary_rpc_method_handler, "AllocateRequest"),
    }
    return {
        method: make(answer, _find_message(request).FromString, lambda message: message.SerializeToString())
        for method, (answer, make, request) in answers.items()
    }


def _cut_share(device: str) -> str:
    return device.partition("::")[0]


@cache
def _find_message(name: str) -> Any:
    return message_factory.GetMessageClass(_load_pool().FindMessageTypeByName(f"{VERSION}.{name}"))


@cache
def _load_pool() -> descriptor_pool.DescriptorPool:
    """Compile the messages into a pool of their own."""
    words = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}", "--descriptor_set_out=/dev/stdout"]
    written = subprocess.run([*words, PROTO.name], stdout=subprocess.PIPE, check=True).stdout
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(written).file:
        pool.Add(file)
    return pool
