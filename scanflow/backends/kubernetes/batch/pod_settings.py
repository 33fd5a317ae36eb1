"""The settings of a run's pods, from which their manifests are built. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scanflow.app.executor import Executor
from scanflow.app.resources import Affinity
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS
from scanflow.backends.kubernetes.gpus import DevicePlugin
from scanflow.errors import UnsupportedError

SMALL: Final = {"cpu": "50m", "memory": "128Mi"}


@dataclass(frozen=True, slots=True)
class StepImage:
    """A step's image, and its own mounts: the application's files, where the image lacks them."""

    image: str
    mounts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The namespace, images, volumes and limits of a run's pods."""

    namespace: str
    image: str
    """Of steps that are not in ``images``, and of pods that only report signals."""

    service_account: str
    images: Mapping[str, StepImage] = field(default_factory=dict)
    volumes: tuple[Mapping[str, Any], ...] = ()
    """Volumes that ``images`` mount, beside those of every run."""

    claim: str = OUTPUTS
    store: str | None = None
    """The address of the environment's outputs in an object store. None: they are on the claim."""

    store_secret: str | None = None
    """The Secret that the store is reached with. None: the pods' own rights."""

    pull_secret: str | None = None
    device_plugin: DevicePlugin = field(default_factory=DevicePlugin)
    keep_s: int = 7 * 24 * 3600
    """Seconds that a Workflow stays after its end."""

    def select_image(self, step: str) -> StepImage:
        return self.images.get(step) or StepImage(self.image)


def check_honoured(node: Executor) -> None:
    """Raise for an affinity that pods do not support.

    Raises:
        UnsupportedError: with the field's name.
    """
    affinity = node.affinity if isinstance(node.affinity, Affinity) else Affinity()
    if affinity.mode == "cpumempin":
        raise UnsupportedError(
            f"Executor {node.name!r}: Kubernetes does not support affinity 'cpumempin' of a step. Write 'cpumem': "
            "whole cores of its own."
        )
    if affinity.mode != "any":
        _check_exclusive(node)


def _check_exclusive(node: Executor) -> None:
    cores = node.resources.cores
    if cores is None or cores % 1 or node.resources.memory_bytes is None:
        raise UnsupportedError(
            f"Executor {node.name!r}: Kubernetes honours affinity for whole cores and known memory only. "
            "Write resources=sf.Resources(cpu=2, memory='1Gi')."
        )
