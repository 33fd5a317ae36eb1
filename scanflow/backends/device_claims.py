"""The GPUs that attempts of this home hold: one file, changed under a lock, by any process that starts attempts.

A claim is valid while its attempt lives, whoever started it: a step outlives the process that drives its run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from scanflow.accelerators.accelerator_port import Accelerators, Device, DeviceProcess, Inventory, MigInstance
from scanflow.accelerators.mps import SERVER_NAME
from scanflow.accelerators.nvml import read_accelerators
from scanflow.accelerators.visible import HOLDER_VARIABLE, MEMORY_VARIABLE
from scanflow.app.quantities import format_bytes
from scanflow.backends.device_load import WINDOW_S, LoadReading, RecentLoad, compute_mean
from scanflow.backends.device_waits import DeviceWaits
from scanflow.backends.run_records import DeviceUse
from scanflow.errors import UnavailableError
from scanflow.files.private import create_private_folder
from scanflow.placement.device_grants import (
    DeviceDemand,
    DeviceGrant,
    build_device_variables,
    choose_devices,
    describe_process,
)
from scanflow.placement.device_reservations import DeviceRequest, reserve_devices
from scanflow.processes.identity import read_start_time
from scanflow.processes.shared_files import hold_lock, write_atomically
from scanflow.processes.shims import read_exit, read_started

_Held = TypeVar("_Held", Device, MigInstance)

START_S: Final = 10.0
"""How long a shim may take from claiming an attempt to starting it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """What one attempt holds."""

    holder: str
    """The attempt's folder, below the home."""

    who: str
    """For people: ``calm-otter-417/train``."""

    pid: int
    birth: str
    """The process that made the claim, which is about to start the attempt."""

    grants: tuple[DeviceGrant, ...]

    @property
    def subject(self) -> str:
        """Whose it is: ``run/calm-otter-417`` or ``service/digits``."""
        return f"{'service' if self.is_lasting else 'run'}/{self.who.partition('/')[0]}"

    @property
    def is_lasting(self) -> bool:
        """Whether it is an instance's, which ends with its service."""
        return self.holder.startswith("services/")


@cache
def _build_adapter() -> TypeAdapter[tuple[DeviceClaim, ...]]:
    return TypeAdapter(tuple[DeviceClaim, ...])


class HomeDevices:
    """The devices of this machine, and the claims of one home."""

    def __init__(self, home: Path, find: Callable[[], Accelerators] | None = None) -> None:
        self.home, self._find = home, find or read_accelerators
        self._file, self._lock = home / "devices" / "claims.json", home / "devices" / "lock"
        self._waits = DeviceWaits(home / "devices" / "waits.json")

    @cached_property
    def _accelerators(self) -> Accelerators:
        return self._find()

    def read_inventory(self) -> Inventory:
        return self._accelerators.read()

    def take(
        self,
        folder: Path,
        who: str,
        demand: DeviceDemand,
        *,
        near: Collection[int] = (),
        leaving: Collection[Path] = (),
        avoid: Collection[str] = (),
        since: float | None = None,
    ) -> tuple[DeviceGrant, ...] | str:
        """Choose and record the devices of an attempt that this process is about to start; or return why it waits.

        Args:
            near: The NUMA nodes of its cores.
            leaving: Attempts that it replaces: it shares their devices until they end, if there are no others.
            avoid: The UUIDs of devices that it gets only if there are no others.
            since: When it came, by ``time.monotonic()``: those who came later wait while it does, until
                :meth:`stop_waiting`. None: it waits in no line.

        Raises:
            UnavailableError: the claims cannot be read or written.
        """
        with self._change() as claims:
            inventory, own = self.read_inventory(), self._name(folder)
            others = [claim for claim in claims if claim.holder != own]
            ahead = self._waits.list_ahead(own, since)
            replaced = {self._name(attempt) for attempt in leaving}
            preferred = tuple(device for device in inventory.devices if device.uuid not in avoid)
            chosen = self._choose(replace(inventory, devices=preferred), demand, others, ahead, near=near)
            if isinstance(chosen, str) and len(preferred) < len(inventory.devices):
                chosen = self._choose(inventory, demand, others, ahead, near=near)
            if isinstance(chosen, str) and any(claim.holder in replaced for claim in others):
                chosen = self._choose(inventory, demand, others, ahead, near=near, without=replaced)
            if not isinstance(chosen, str):
                birth = read_start_time(os.getpid())
                self._write([*others, DeviceClaim(holder=own, who=who, pid=os.getpid(), birth=birth, grants=chosen)])
                self._waits.remove(own)
            elif since is not None:
                self._waits.add(own, who, demand, since)
            return chosen

    def stop_waiting(self, folder: Path) -> None:
        """Let those go first who came after an attempt that was to wait."""
        with self._change():
            self._waits.remove(self._name(folder))

    def explain_wait(self, demand: DeviceDemand, *, leaving: Collection[Path] = ()) -> str:
        """Return why an attempt that replaces those ``leaving`` would have to wait for its devices now; empty: it
        would not."""
        without, ahead = {self._name(attempt) for attempt in leaving}, self._waits.list_ahead("", None)
        chosen = self._choose(self.read_inventory(), demand, self.list_claims(), ahead, without=without)
        return chosen if isinstance(chosen, str) else ""

    def _choose(
        self,
        inventory: Inventory,
        demand: DeviceDemand,
        claims: Sequence[DeviceClaim],
        ahead: Sequence[DeviceRequest],
        *,
        near: Collection[int] = (),
        without: Collection[str] = (),
    ) -> tuple[DeviceGrant, ...] | str:
        """Choose beside the claims of all holders but those ``without``, and what is kept for who waits ``ahead``."""
        sessions = self._list_sessions(claims)

        def is_foreign(process: DeviceProcess) -> bool:
            return _is_foreign(process, sessions)

        held = [(claim, replace(grant, owner=claim.who)) for claim in claims for grant in claim.grants]
        lasting = [grant for claim, grant in held if claim.is_lasting]
        reserves = reserve_devices(inventory, ahead, [grant for _, grant in held], lasting, is_foreign=is_foreign)
        # What a step starts itself shares the step's own devices.
        hidden = {*without, os.environ.get(HOLDER_VARIABLE)}
        beside = [*(grant for claim, grant in held if claim.holder not in hidden), *reserves]
        return choose_devices(inventory, demand, beside, near=near, is_foreign=is_foreign)

    def release(self, folder: Path) -> None:
        with self._change() as claims:
            self._write([claim for claim in claims if claim.holder != self._name(folder)])

    def keep(self, ended: Path, following: Path, who: str) -> None:
        """Keep what an attempt held that has just ended for the one that this process starts next; unless others were
        granted some of it meanwhile."""
        with self._change() as claims:
            own = self._name(ended)
            grants = next((claim.grants for claim in self._read() if claim.holder == own), ())
            taken = {
                grant.uuid for claim in claims if claim.holder != own for grant in claim.grants if grant.share == 1
            }
            if grants and taken.isdisjoint(grant.uuid for grant in grants):
                birth = read_start_time(os.getpid())
                next_claim = DeviceClaim(
                    holder=self._name(following), who=who, pid=os.getpid(), birth=birth, grants=grants
                )
                self._write([*(claim for claim in claims if claim.holder != own), next_claim])

    def list_grants(self, folder: Path) -> tuple[DeviceGrant, ...]:
        """Return what an attempt holds."""
        return next((claim.grants for claim in self._read() if claim.holder == self._name(folder)), ())

    def list_claims(self) -> list[DeviceClaim]:
        """Return the claims of attempts that live."""
        return [claim for claim in self._read() if self._is_alive(claim)]

    def read_free(self) -> tuple[Inventory, tuple[DeviceGrant, ...]]:
        """Return the devices with only those processes on them that no attempt here started, and what attempts hold."""
        claims, inventory = self.list_claims(), self.read_inventory()
        sessions = self._list_sessions(claims)

        def keep_foreign(device: _Held) -> _Held:
            foreign = (process for process in device.processes if _is_foreign(process, sessions))
            return replace(device, processes=tuple(foreign))

        devices = tuple(
            replace(keep_foreign(device), mig_instances=tuple(map(keep_foreign, device.mig_instances)))
            for device in inventory.devices
        )
        held = tuple(replace(grant, owner=claim.who) for claim in claims for grant in claim.grants)
        return replace(inventory, devices=devices), held

    def build_variables(self, folder: Path, grants: Sequence[DeviceGrant]) -> dict[str, str]:
        """Return the environment variables of an attempt with its devices; without any it sees none."""
        mps = self.read_inventory().mps_directory if any(grant.sharing == "mps" for grant in grants) else None
        own = {HOLDER_VARIABLE: self._name(folder)} if grants else {}
        return {**build_device_variables(grants, mps), **own}

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self.home)) if folder.is_relative_to(self.home) else str(folder)

    @contextmanager
    def _change(self) -> Iterator[list[DeviceClaim]]:
        """Hold the claims of living attempts inside the context."""
        create_private_folder(self._file.parent)
        with hold_lock(self._lock):
            yield self.list_claims()

    def _read(self) -> tuple[DeviceClaim, ...]:
        try:
            return _build_adapter().validate_json(self._file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except ValidationError as error:
            raise UnavailableError(
                f"{str(self._file)!r}, which says who holds which GPU, cannot be read. Delete it when no step that "
                "asked for a GPU runs."
            ) from error
        except OSError as error:
            raise UnavailableError(f"{str(self._file)!r} cannot be read: {error.strerror}.") from error

    def _write(self, claims: Sequence[DeviceClaim]) -> None:
        write_atomically(self._file, _build_adapter().dump_json(tuple(claims)))

    def _is_alive(self, claim: DeviceClaim) -> bool:
        folder = self.home / claim.holder
        if not folder.is_dir():  # not prepared yet, or deleted
            return read_start_time(claim.pid) == claim.birth
        if read_exit(folder) is not None:
            return False
        started = read_started(folder)
        if started is not None:
            return any(
                started[birth] and read_start_time(int(started[pid])) == started[birth]
                for pid, birth in (("pid", "birth"), ("shim", "shim_birth"))
            )
        return read_start_time(claim.pid) == claim.birth or _is_starting(folder)

    def _list_sessions(self, claims: Sequence[DeviceClaim]) -> set[int]:
        """Return the sessions of the attempts that hold claims: every attempt leads one of its own."""
        started = [read_started(self.home / claim.holder) for claim in claims]
        return {int(record["pid"]) for record in started if record is not None}


@dataclass(slots=True)
class SeenUse:
    """What was seen so far of an attempt's use of its devices, by the UUIDs of its grants."""

    peaks: dict[str, int] = field(default_factory=dict)
    """The most memory that its processes were seen to hold."""

    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Who else was seen there last."""

    used: dict[str, int | None] = field(default_factory=dict)
    """The memory that it was seen to hold last."""

    loads: dict[str, RecentLoad] = field(default_factory=dict)
    """How busy its devices were lately."""

    excess: str = ""
    """By how much it was over a share whose bound is watched."""

    def add(self, inventory: Inventory, grants: Sequence[DeviceGrant], session: int, at: float) -> bool:
        """Add what is seen at a time of an attempt, which leads a session of its own; return whether it is over its
        share, for the first time."""
        before = self.excess
        for grant in grants:
            use = measure_use(inventory, grant, session)
            self.others[grant.uuid] = tuple(map(describe_process, use.others))
            self.used[grant.uuid] = use.used_bytes
            self.loads.setdefault(grant.uuid, RecentLoad()).add(LoadReading(at, use.busy_share, use.power_w))
            if use.own_bytes is not None:
                self.peaks[grant.uuid] = max(use.own_bytes, self.peaks.get(grant.uuid, 0))
            self.excess = self.excess or use.excess
        return bool(self.excess) and not before

    def compute_busy_share(self, window_s: float = WINDOW_S) -> float | None:
        """Return the share of the last ``window_s`` in which its devices computed; None: they did not say."""
        return compute_mean(load.compute_busy_share(window_s) for load in self.loads.values())

    def describe(self, grants: Sequence[DeviceGrant]) -> tuple[DeviceUse, ...]:
        unread = RecentLoad()
        return tuple(
            DeviceUse(
                number=grant.number,
                uuid=grant.uuid,
                name=grant.name,
                sharing=grant.sharing,
                share=grant.share,
                memory_bytes=grant.memory_bytes,
                peak_bytes=self.peaks.get(grant.uuid),
                others=self.others.get(grant.uuid, ()),
                used_bytes=self.used.get(grant.uuid),
                busy_share=_round(self.loads.get(grant.uuid, unread).compute_busy_share(), 2),
                power_w=_round(self.loads.get(grant.uuid, unread).compute_power_w(), 0),
            )
            for grant in grants
        )


@dataclass(frozen=True, slots=True)
class MeasuredUse:
    """Who was seen on a device, or part of one, that an attempt was granted."""

    own_bytes: int | None
    """The memory that the attempt's processes hold; None: they are not on it, or the driver does not say."""

    others: tuple[DeviceProcess, ...]
    excess: str
    """By how much they are over a share whose bound is watched; empty: they are not."""

    used_bytes: int | None = None
    """The memory that is held of the grant. None: the driver does not say, or who holds it is not seen."""

    busy_share: float | None = None
    """Of a whole device: of a share the driver would say how busy all are who have one."""

    power_w: float | None = None


def measure_use(inventory: Inventory, grant: DeviceGrant, session: int) -> MeasuredUse:
    """Return the use of a grant by an attempt, which leads a session of its own."""
    # One that has ended since the device was read is nobody's.
    processes = [(process, _find_session(process.pid)) for process in _list_processes(inventory, grant)]
    own = [process for process, leader in processes if leader == session]
    used = sum(process.memory_bytes or 0 for process in own)
    excess = ""
    if grant.sharing == "time slicing" and grant.memory_bytes is not None and used > grant.memory_bytes:
        excess = (
            f"Its processes held {format_bytes(used)} of GPU {grant.number}, and its share is "
            f"{format_bytes(grant.memory_bytes)}. Ask for more (gpu= or gpu_memory=), or bound what the framework "
            f"takes: {MEMORY_VARIABLE} tells the share."
        )
    others = tuple(process for process, leader in processes if leader not in {None, session})
    device = find_part(inventory, grant)
    says_memory = all(process.memory_bytes is not None for process in own)
    whole = device if grant.sharing == "exclusive" and isinstance(device, Device) else None
    return MeasuredUse(
        used if own and says_memory else None,
        others,
        excess,
        used_bytes=used
        if inventory.sees_processes and says_memory and device is not None
        else _find_used_bytes(device, grant),
        busy_share=None if whole is None else whole.busy_share,
        power_w=None if whole is None else whole.power_w,
    )


def find_part(inventory: Inventory, grant: DeviceGrant) -> Device | MigInstance | None:
    """Return the device, or the part of one, of a grant; None: it is not there any more, or failed."""
    device = next((device for device in inventory.devices if device.uuid == grant.device and not device.fault), None)
    if device is None or grant.sharing != "mig":
        return device
    return next((part for part in device.mig_instances if part.uuid == grant.uuid), None)


def _find_used_bytes(device: Device | MigInstance | None, grant: DeviceGrant) -> int | None:
    """Return what is held of a device or part by whoever is on it, if that can only be who has the grant."""
    return device.memory_used_bytes if device is not None and grant.sharing in {"exclusive", "mig"} else None


def _list_processes(inventory: Inventory, grant: DeviceGrant) -> tuple[DeviceProcess, ...]:
    part = find_part(inventory, grant)
    return () if part is None or not inventory.sees_processes else part.processes


def _round(number: float | None, digits: int) -> float | None:
    return None if number is None else round(number, digits)


def _find_session(pid: int) -> int | None:
    """Return the session of a process, which its leader's id names; None: it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_foreign(process: DeviceProcess, sessions: Collection[int]) -> bool:
    """Return whether a process is neither an attempt's, nor this one's, nor the Multi-Process Service's own."""
    if process.pid == os.getpid() or process.name.startswith(SERVER_NAME):
        return False
    session = _find_session(process.pid)
    return session is not None and session not in sessions


def _is_starting(folder: Path) -> bool:
    try:
        return time.time() - (folder / "claim").stat().st_mtime < START_S
    except OSError:
        return False
