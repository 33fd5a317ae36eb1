"""The instance pool of a service: starts, adopts, polls and drains instances, and records their exits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, inf
from pathlib import Path
from selectors import BaseSelector
from typing import Any, Final

from scanflow.accelerators.visible import VISIBLE
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.device_faults import find_fault
from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.grants import choose_grant
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor import attempts
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.instance_metrics import ServiceMetrics
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.shapes import build_shape_demand
from scanflow.backends.version_memory import fits_beside, measure_versions
from scanflow.errors import UnavailableError
from scanflow.files.disk import build_disk_error
from scanflow.instance_messages import ControlMessage, encode
from scanflow.placement.device_grants import DeviceGrant
from scanflow.placement.place import Grant
from scanflow.placement.topology import Topology
from scanflow.processes.shims import Exit, Shims, stop_attempt

POLL_S = 1.0  # polling interval of ready instances ...
EAGER_S = 0.05  # ... and of those that are changing
METRICS_S = 0.25  # shortest interval between two metrics requests to an instance
LOW_PRIORITY_S = 20.0  # longest time that a starting instance runs with lowered CPU priority
_GROWTH: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""TensorFlow and JAX take most of a device at once, unless told; then nobody can know what a version needs."""

LogEvent = Callable[[str], None]


class InstancePool:
    """All instances of one service that have a process, or wait for a restart."""

    def __init__(
        self, folder: ServiceFolder, shims: Shims, metrics: ServiceMetrics, selector: BaseSelector, log_event: LogEvent
    ) -> None:
        self._folder, self._shims, self._metrics, self._selector, self._log_event = (
            folder,
            shims,
            metrics,
            selector,
            log_event,
        )
        self._devices = HomeDevices(folder.path.parent.parent)
        self._watched = 0.0
        self.waits_for = ""
        """What the instance waits for that could not be started last: ``a GPU: GPU 0 is granted to digits/1``."""

        self.by_name: dict[str, Instance] = {}
        self._by_path: dict[Path, Instance] = {}

    # What is there

    @property
    def instances(self) -> list[Instance]:
        return list(self.by_name.values())

    @property
    def ready(self) -> list[Instance]:
        """The ready instances."""
        return [instance for instance in self.instances if instance.phase == "ready" and instance.channel is not None]

    @property
    def alive(self) -> list[Instance]:
        return [instance for instance in self.instances if instance.alive]

    @property
    def has_unsent(self) -> bool:
        return any(instance.channel is not None and instance.channel.has_unsent for instance in self.instances)

    # Coming and going

    def meet_driver(self, desired: DesiredState) -> None:
        """Wait for the first answer of the driver of a service's GPUs, or that it gives none, before any instance is
        watched: one would be taken for silent meanwhile."""
        if build_shape_demand(desired.definition.shape) is not None:
            self._devices.read_inventory()

    def adopt(self, desired: DesiredState, now: float, wall: float) -> None:
        """Adopt the instances of an earlier supervisor; ``wall``: seconds since the epoch."""
        spec_hash = desired.definition.spec_hash
        for name, path in attempts.list_newest_attempts(self._folder):
            template = attempts.read_template(path)
            exit_ = self._shims.adopt(path) if (path / "alive").exists() else Exit(exit_code=None, reason="void")
            if template is None:
                if exit_ is None:  # nothing can be known of it
                    stop_attempt(path)
                continue
            devices = self._devices.list_grants(path) if desired.definition.shape.gpu else ()
            instance = Instance(name=name, template=template, path=path, devices=devices, since=now, began=now)
            record = attempts.read_started(path)
            if exit_ is None:
                instance.is_unreported = True
                instance.began = now - max(0.0, wall - float(record["began"] if record else wall))
                self._register(instance)
                self._log_event(f"instance {name} is adopted")
            elif template.spec_hash == spec_hash and exit_.exit_code != 0 and exit_.reason not in {"void", "stopped"}:
                self.by_name[name] = instance
                self._record_exit(instance, exit_, now, retry=desired.in_effect)

    def start(self, desired: DesiredState, name: str, topology: Topology, *, count: int, now: float) -> str:
        """Start an instance, or restart one that ended; or return why it waits for another to end.

        Raises:
            InvalidError: there are not enough cores.
            UnavailableError: the disk cannot be written, or no GPU is free.
        """
        self.waits_for = ""
        spec_hash, shape = desired.definition.spec_hash, desired.definition.shape
        previous = self.by_name.get(name)
        if previous is not None and previous.spec_hash == spec_hash:
            template = previous.template
        else:
            previous, others = None, [instance for instance in self.instances if instance.name != name]
            own, leaving = split_grants(others, spec_hash)
            grant = choose_grant(self._folder, topology, shape, count, own, leaving)
            template = attempts.Template(spec_hash, shape.cores or 1.0, grant)
        path = attempts.get_next_attempt_folder(self._folder.get_attempts_folder(name))
        devices = self._take_devices(desired, name, path, template.grant)
        if isinstance(devices, str):
            return devices
        try:
            variables = self._build_device_variables(desired, path, devices)
            attempts.create_attempt(self._folder, desired, name, template, path, devices=variables)
        except OSError as error:
            self._devices.release(path)
            raise build_disk_error(error, self._folder.get_attempts_folder(name)) from error
        instance = Instance(name=name, template=template, path=path, devices=devices, since=now, began=now)
        if previous is not None:
            instance.lives, instance.restarts = previous.lives, previous.restarts + 1
            instance.was_ready, instance.error = previous.was_ready, previous.error
        self._register(instance)
        self._shims.start(path)
        attempts.prune(path.parent)
        self._log_event(f"instance {name} is starting" + (" again" if instance.restarts else ""))
        return ""

    def _take_devices(
        self, desired: DesiredState, name: str, path: Path, grant: Grant
    ) -> tuple[DeviceGrant, ...] | str:
        """Take the GPUs of an instance, near its cores; while the instances that it replaces live, maybe theirs, if
        they have the memory for both. Return why it waits for one of these to end.

        Raises:
            UnavailableError: none is free; it says who has them.
        """
        demand = build_shape_demand(desired.definition.shape)
        if demand is None:
            return ()
        spec_hash = desired.definition.spec_hash
        leaving = [other for other in self.alive if other.spec_hash != spec_hash or other.phase == "draining"]
        versions = measure_versions(desired.definition.current.nodes)
        inventory = self._devices.read_inventory()
        crowded = [other for other in leaving if not fits_beside(inventory, other.devices, versions)]
        beside = [other.path for other in leaving if other not in crowded]
        taken = self._devices.take(path, f"{desired.name}/{name}", demand, near=grant.memory_nodes, leaving=beside)
        if not isinstance(taken, str):
            return taken
        self.waits_for, why = f"a GPU: {taken}", f"{demand} is not free: {taken}"
        if crowded:
            little = f", and too little of its memory for {versions}, which needs {versions.describe_size()}"
            self.waits_for, why = f"{self.waits_for}{little}", f"{why}{little}"
        if any(other.phase == "draining" for other in crowded):
            return why
        way = f" To replace it all the same: scanflow delete {desired.name}, then scanflow deploy." if crowded else ""
        raise UnavailableError(f"{why}.{way}")

    def _build_device_variables(
        self, desired: DesiredState, path: Path, devices: Sequence[DeviceGrant]
    ) -> Mapping[str, str]:
        env = desired.definition.serving.env
        if not devices and (VISIBLE in env or not self._devices.read_inventory().devices):
            return {}
        growth = {name: value for name, value in _GROWTH.items() if devices and name not in env}
        return {**growth, **self._devices.build_variables(path, devices)}

    def record_exit(self, path: Path, exit_: Exit, now: float, *, retry: bool) -> bool:
        """Record the exit of a process; return whether it was an instance's.

        ``retry``: restart it also after a configuration error, since it has served before.
        """
        instance = self._by_path.pop(path, None)
        if instance is None:
            return False
        if self.by_name.get(instance.name) is instance:
            self._record_exit(instance, exit_, now, retry=retry)
            if instance.phase == "waiting" and instance.error is None:
                del self.by_name[instance.name]
        return True

    def forget(self, name: str) -> None:
        instance = self.by_name.pop(name, None)
        if instance is not None and instance.devices and not instance.alive:
            self._devices.release(attempts.get_next_attempt_folder(self._folder.get_attempts_folder(name)))

    def _register(self, instance: Instance) -> None:
        self.by_name[instance.name] = instance
        self._by_path[instance.path] = instance

    def _record_exit(self, instance: Instance, exit_: Exit, now: float, *, retry: bool) -> None:
        if instance.channel is not None:
            self._receive(instance, instance.channel)  # it may have reported its last metrics
        self._metrics.retire(str(instance.path))
        if exit_.seconds is not None:
            instance.began = now - exit_.seconds
        if instance.phase == "draining" or (exit_.reason in {"void", "stopped"} and not instance.stuck):
            instance.record_exit(now, None, restart=True)
            self._log_event(f"instance {instance.name} has ended")
            return
        reason = "it stopped answering" if instance.stuck else attempts.describe_failure(instance.path, exit_)
        reason = instance.seen.excess or reason
        restart = retry or instance.was_ready or exit_.exit_code != attempts.CONFIGURATION
        instance.record_exit(now, reason, restart=restart)
        if restart and instance.devices:  # nobody else gets them during the pause
            following = attempts.get_next_attempt_folder(self._folder.get_attempts_folder(instance.name))
            self._devices.keep(instance.path, following, f"{self._folder.path.name}/{instance.name}")
        pause = f", and starts again in {instance.due - now:.2g} s" if instance.due > now else ", and starts again"
        self._log_event(f"instance {instance.name} ended: {reason}{pause if restart else ''}")

    # Talking

    @property
    def counted(self) -> float:
        """The time of which the oldest counts of an instance are."""
        answering = [instance for instance in self.alive if instance.phase != "starting" and instance.channel]
        return min((instance.counted for instance in answering), default=inf)

    def poll(self, now: float, *, eager: bool, serving: bool, since: float | None = None) -> None:
        """Request the state of all instances when due; more often for changing instances, or with ``eager`` for all.

        ``serving``: whether requests are being answered, here or by the backup, so that starting instances get a lower
        CPU priority. ``since``: a reader wants the counts of this time or later.
        """
        self.watch_devices(now)
        for instance in self.alive:
            instance.find_process()
            instance.yield_cpu(serving and instance.phase == "starting" and now - instance.began < LOW_PRIORITY_S)
            if instance.channel is None:
                self._connect(instance, now)
            if instance.channel is None:
                continue
            instance.channel.flush()
            if instance.channel.is_awaiting("state"):
                continue
            often = eager or instance.phase in {"starting", "draining"}
            awaited = since is not None and instance.phase != "starting" and instance.metered < since
            if awaited or now - instance.polled_at >= (EAGER_S if often else POLL_S) - 0.001:
                instance.polled_at = now
                with_metrics = awaited or (instance.phase != "starting" and now - instance.metered >= METRICS_S)
                metrics = self._build_metrics_request(instance, now) if with_metrics else {}
                instance.channel.ask("state", metrics | self._compute_fair_share(instance))

    def watch_devices(self, now: float) -> None:
        """Read back who uses the GPUs of instances; kill those over a share that nothing else bounds."""
        having = [instance for instance in self.instances if instance.devices]
        granted = [instance for instance in having if instance.alive and instance.pid is not None]
        if not granted:
            self._metrics.report_devices(self._folder.path.name, ())
        if not having or now - self._watched < POLL_S:
            return
        self._watched, inventory = now, self._devices.read_inventory()
        for instance in having:
            before, instance.faults = instance.faults, {}
            for grant in instance.devices:
                if fault := find_fault(inventory, grant):
                    instance.faults[grant.uuid] = fault
                    if before.get(grant.uuid) != fault:
                        self._log_event(f"GPU {grant.number} of instance {instance.name} has failed: {fault}")
        for instance in granted:
            if instance.pid is not None and instance.seen.add(inventory, instance.devices, instance.pid, now):
                self._log_event(f"instance {instance.name} uses more than its share of a GPU: killing it")
                instance.refusal = instance.seen.excess  # if it loads another version, it would do it again
                instance.kill()
        uses = [use for instance in granted for use in instance.describe_devices()]
        self._metrics.report_devices(self._folder.path.name, uses)

    def _compute_fair_share(self, instance: Instance) -> dict[str, Any]:
        """Return the average number of busy connections per ready instance."""
        if instance.phase != "ready":
            return {}
        busy = [int(ready.state.get("busy_connections") or 0) for ready in self.ready]
        return {"fair_share": ceil(sum(busy) / len(busy)) if len(busy) > 1 else None}

    def _build_metrics_request(self, instance: Instance, now: float) -> dict[str, Any]:
        instance.metered = now
        return {"metrics": True, "others": self._metrics.sum_others(str(instance.path))}

    def _connect(self, instance: Instance, now: float) -> None:
        channel = instance.channel = Channel.connect(instance.path / "control")
        if channel is not None:
            instance.answered = now
            channel.watch(self._selector, partial(self._receive, instance, channel))

    def _receive(self, instance: Instance, channel: Channel) -> None:
        replies, is_connected = channel.receive_answers()
        now = time.monotonic()
        for request, body in replies:
            self._handle_answer(instance, request, body, now)
        if not is_connected and instance.channel is channel:
            instance.disconnect()

    def _handle_answer(self, instance: Instance, request: ControlMessage, body: dict[str, Any], now: float) -> None:
        error = body.get("error")
        if request.kind == "state" and error is not None:
            instance.answered = now  # it cannot report, as when it may open no more files, but it is not stuck
        elif request.kind == "state":
            phase = instance.phase
            if "metrics" in body:
                self._metrics.report(str(instance.path), body.pop("metrics"))
                instance.counted = instance.metered
            instance.update_state(body, now)
            if phase == "starting" and instance.phase == "ready":
                where = (
                    f" on core {', '.join(map(str, instance.cpus))}"
                    if instance.cpus and instance.template.grant.cpus
                    else ""
                )
                self._log_event(f"instance {instance.name} is ready{where} ({now - instance.began:.1f} s)")
        elif request.kind == "apply":
            instance.answered = now
            if error is None:
                instance.serves = max(instance.serves, int(request.body.get("generation", 0)))
            else:
                instance.refusal = str(error)

    def apply(self, instance: Instance, desired: DesiredState) -> None:
        if instance.channel is not None:
            body: dict[str, Any] = json.loads(encode(desired.definition.desired))
            instance.refusal = None
            instance.channel.ask("apply", body)

    def drain(self, instance: Instance, now: float, *, idle_s: float | None) -> None:
        """Drain an instance; ``idle_s``: how long it keeps idle connections, instead of its configured time."""
        instance.enter("draining", now)
        if instance.channel is not None:
            instance.channel.ask("drain", {} if idle_s is None else {"idle_s": idle_s})
        else:
            instance.stop()

    def close(self) -> None:
        """Close all connections; instances run on."""
        for instance in self.instances:
            instance.disconnect()


def split_grants(others: Sequence[Instance], spec_hash: str) -> tuple[list[Grant], list[Grant]]:
    """Return the grants of other instances: of those that stay, and of those that leave. A draining instance leaves,
    even if it has the same spec hash, as when a service is scaled down."""
    staying = [instance for instance in others if instance.spec_hash == spec_hash and instance.phase != "draining"]
    leaving = [instance for instance in others if instance not in staying and instance.alive]
    return [instance.template.grant for instance in staying], [instance.template.grant for instance in leaving]
