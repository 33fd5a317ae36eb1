"""The cut of a budget of GPUs into N equal instances: whole ones, shares of one, or parts of one (equation 4.1). Pure.

The memory that an instance needs stays as it is, since each holds the whole model: N times it must fit the devices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.app.resources import MIN_GPU_SHARE, Resources
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.device_grants import DeviceDemand, DeviceGrant, build_demand, check_demand, choose_devices

Gpus: TypeAlias = int | float | str
"""GPUs of one instance, as in :class:`~scanflow.app.resources.Resources`."""

_STEPS: Final = 10**6
"""Shares are cut to millionths, rounded down: their sum is never more than the device."""

_OTHERS: Final = "its other instances"


@dataclass(frozen=True, kw_only=True)
class DeviceBudget:
    """The GPUs that a service may have, S of equation 4.1, and the machine that has them."""

    gpus: float
    """Whole GPUs, or less than one."""

    memory_bytes: int | None = None
    """The memory of a GPU that each instance needs; None: unknown."""

    inventory: Inventory | None
    """None: a cluster's, which says whether it has what pods ask for when they are deployed."""

    claims: tuple[DeviceGrant, ...] = ()
    """What others hold."""

    def list_cuts(self, instances: int) -> list[Gpus]:
        """Return what each of so many instances can get of the whole budget, whether or not the machine can give it:
        an equal amount, and a part of each profile of which as many make up the budget."""
        each = self.gpus / instances
        parts = [
            profile
            for profile, number in count_parts(self.inventory or Inventory()).items()
            if abs(instances / number - self.gpus) < MIN_GPU_SHARE
        ]
        if each >= 1:
            return [*([int(each)] if each % 1 == 0 else []), *parts]
        share = math.floor(each * _STEPS + 1e-6) / _STEPS
        return [*([share] if share >= MIN_GPU_SHARE else []), *parts]

    def list_possible_cuts(self, instances: int) -> list[Gpus]:
        """Return the cuts that the machine can give."""
        return [gpu for gpu in self.list_cuts(instances) if not self.explain_refusal(instances, gpu)]

    def explain_refusal(self, instances: int, gpu: Gpus) -> str:
        """Return why the machine cannot give so many instances this, beside what others hold; empty: it can."""
        if self.inventory is None:
            return ""
        if lack := self.explain_lack(1, gpu):
            return lack
        demand = self._build_demand(gpu)
        grants = list(self.claims)
        for count in range(instances):
            chosen = choose_devices(self.inventory, demand, grants)
            if isinstance(chosen, str):
                return f"{f'there is room for {count}' if count else f'{demand} is not free'}: {chosen}."
            grants += [replace(grant, owner=_OTHERS) for grant in chosen]
        return ""

    def explain_lack(self, instances: int, gpu: Gpus) -> str:
        """Return why the machine could not give so many instances this if nothing ran on it; empty: it could."""
        if self.inventory is None:
            return ""
        try:
            check_demand(self.inventory, replace(self._build_demand(gpu), copies=instances, copy="instance"))
        except UnsupportedError as error:
            return str(error)
        return ""

    def _build_demand(self, gpu: Gpus) -> DeviceDemand:
        demand = build_demand(Resources(gpu=gpu, gpu_memory=self.memory_bytes))
        assert demand is not None
        return demand


def count_parts(inventory: Inventory) -> Mapping[str, int]:
    """Return into how many parts of a profile a device is cut, by profile: of the device with the most."""
    parts: Counter[str] = Counter()
    for device in inventory.devices:
        if not device.fault:
            parts |= Counter(part.profile for part in device.mig_instances)
    return parts


def sum_gpus(instances: int, gpu: Gpus, inventory: Inventory) -> float:
    """Return the GPUs that so many instances have together; a part counts as its share of the device's parts.

    Raises:
        InvalidError: no device has such a part.
    """
    if isinstance(gpu, str):
        number = count_parts(inventory).get(gpu)
        if number is None:
            raise InvalidError(f"gpu={gpu!r} names a part that no GPU here has.")
        return _round_up(instances / number)
    return _round_up(instances * gpu)


def _round_up(gpus: float) -> float:
    """Return a sum as a whole number, if it lacks less than the least share of one: 3 shares of 0.333333 are a GPU."""
    whole = math.ceil(gpus - 1e-9)
    return float(whole) if whole - gpus < MIN_GPU_SHARE - 1e-9 else gpus
