"""``scanflow topology``: the machine, the instances on it, and where new instances would be placed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from scanflow.errors import InvalidError
from scanflow_client.cli.command_options import JsonOption, check_choice, load_settings
from scanflow_client.cli.command_output import print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanflow.accelerators.accelerator_port import Inventory
    from scanflow.backends.device_claims import DeviceClaim
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.placement.place import Grant
    from scanflow.placement.topology import Topology
    from scanflow_client.formatting.topology_text import Occupant

PLAIN_WIDTH = 94
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


def topology(
    instances: Annotated[
        int | None, Option("--instances", "-n", min=1, help="Plan the placement of this many instances.")
    ] = None,
    cores: Annotated[
        str | None, Option("--cores", metavar="CORES", help="Cores of each instance: 2, 0.5 or 500m.")
    ] = None,
    affinity: Annotated[str | None, Option("--affinity", metavar="MODE", help="any, cpu, cpumem or cpumempin.")] = None,
    order: Annotated[
        str, Option("--order", help="Caches: place instances apart or together, or by the cores' numbers (numbered).")
    ] = "apart",
    save: Annotated[
        Path | None, Option("--save", metavar="FILE", help="Save the machine's description to a file.")
    ] = None,
    from_: Annotated[Path | None, Option("--from", metavar="FILE", help="Show a saved machine.")] = None,
    sysfs: Annotated[
        Path | None, Option("--sysfs", metavar="FOLDER", help="Show another machine by a copy of its /sys.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a machine and its instances, or plan new instances.

    Default: this machine; --from and --sysfs show another one.

    Examples:
        scanflow topology
        scanflow topology -n 4 --cores 2 --affinity cpumem
    """
    from scanflow.accelerators.accelerator_port import Inventory
    from scanflow.accelerators.visible import is_driver_loaded
    from scanflow.backends.device_claims import DeviceClaim, HomeDevices
    from scanflow.backends.device_text import format_machine_devices
    from scanflow.placement.sysfs import read_machine_copy, read_topology
    from scanflow.placement.topology import load
    from scanflow.placement.topology import save as write
    from scanflow_client.exclusive_cpus import list_exclusive_grants

    if from_ is not None and sysfs is not None:
        raise InvalidError("--from and --sysfs both name a machine to show. Leave one out.")
    machine = load(from_) if from_ is not None else read_topology() if sysfs is None else read_machine_copy(sysfs)
    if save is not None:
        write(machine, save)
    services: Sequence[ServiceRecord] = []
    settings = load_settings()
    if from_ is None and sysfs is None and (settings.home.expanduser() / "services").is_dir():
        from scanflow.deployer import EmbeddedDeployer

        services = EmbeddedDeployer(settings).services()
    inventory, claims = Inventory(), list[DeviceClaim]()
    if from_ is None and sysfs is None:
        devices = HomeDevices(settings.home.expanduser().absolute())
        inventory, claims = devices.read_inventory(), devices.list_claims()
    grants: tuple[Grant, ...] = ()
    reasons: list[str] = []
    if instances is not None or cores is not None or affinity is not None:
        grants, reasons = _plan_grants(machine, instances or 1, cores, affinity, order, list_exclusive_grants(services))
    if as_json:
        print_json({**_to_json(machine, services, grants, reasons), "devices": _describe_devices(inventory, claims)})
        return
    if save is not None:
        say(f"Wrote {save}. Show it on any machine: scanflow topology --from {save}")
    _print_drawing(machine, _list_occupants(services, grants), grants, reasons)
    if inventory.devices:
        say("", *format_machine_devices(inventory, claims))
    elif inventory.absence and is_driver_loaded():
        say("", f"No GPU can be granted: {inventory.absence}")


def _describe_devices(inventory: Inventory, claims: Sequence[DeviceClaim]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    granted = [(grant, claim.who) for claim in claims for grant in claim.grants]
    return [
        {
            **asdict(device),
            "granted": [{**asdict(grant), "who": who} for grant, who in granted if grant.device == device.uuid],
        }
        for device in inventory.devices
    ]


def _plan_grants(
    machine: Topology, instances: int, cores: str | None, affinity: str | None, order: str, others: Sequence[Grant]
) -> tuple[tuple[Grant, ...], list[str]]:
    from scanflow.app.quantities import parse_cpu
    from scanflow.app.resources import Affinity
    from scanflow.placement.explain import explain
    from scanflow.placement.place import place

    mode: Any = Affinity.coerce(affinity or "any")["mode"]
    chosen = check_choice(order, ("apart", "together", "numbered"), "--order")
    amount = None if cores is None else parse_cpu(cores)
    grants = place(machine, instances, amount, mode, beside=others, order=chosen)
    return grants, explain(machine, grants, mode, taken={cpu for other in others for cpu in other.cpus})


def _to_json(
    machine: Topology, services: Sequence[ServiceRecord], grants: Sequence[Grant], reasons: Sequence[str]
) -> dict[str, Any]:
    from scanflow.placement.threads import build_thread_variables

    return {
        "topology": machine.model_dump(mode="json", exclude_none=True),
        "effective_cpus": machine.effective_cpus,
        "effective_count": machine.effective_count,
        "services": [
            {
                "service": service.name,
                "instance": instance.instance,
                "cpus": instance.cpus,
                "memory_nodes": instance.memory_nodes,
            }
            for service in services
            for instance in service.instances
        ],
        "placement": [
            {
                "instance": number,
                "cores": grant.cores,
                "cpus": grant.cpus,
                "memory_nodes": grant.memory_nodes,
                "thread_cpus": grant.thread_cpus,
                "threads": build_thread_variables(grant.cores),
            }
            for number, grant in enumerate(grants, 1)
        ],
        "reasons": reasons,
    }


def _list_occupants(services: Sequence[ServiceRecord], grants: Sequence[Grant]) -> list[Occupant]:
    """Return the instances and their CPUs; instances on the same CPUs are merged."""
    from scanflow.placement.topology_drawing import generate_labels
    from scanflow_client.exclusive_cpus import iterate_pinned_instances
    from scanflow_client.formatting.topology_text import Occupant

    names_by_cpus: dict[tuple[int, ...], list[str]] = {}
    for service, instance in iterate_pinned_instances(services):
        names_by_cpus.setdefault(instance.cpus, []).append(f"{service.name}/{instance.instance}")
    for number, grant in enumerate(grants, 1):
        names_by_cpus.setdefault(grant.cpus, []).append(f"instance {number}")
    return [
        Occupant(label, f"{names[0]} to {names[-1]}" if len(names) > 3 else ", ".join(names), cpus)
        for label, (cpus, names) in zip(generate_labels(), names_by_cpus.items(), strict=False)
    ]


def _print_drawing(
    machine: Topology, occupants: Sequence[Occupant], grants: Sequence[Grant], reasons: Sequence[str]
) -> None:
    from scanflow_client.formatting.topology_text import (
        describe_topology,
        draw_topology,
        format_legend,
        format_placement,
    )

    terminal = sys.stdout.isatty()
    colours = {occupant.label: _COLOURS[place % len(_COLOURS)] for place, occupant in enumerate(occupants)}
    say(*describe_topology(machine))
    for panel in draw_topology(
        machine, occupants, width=shutil.get_terminal_size().columns - 4 if terminal else PLAIN_WIDTH
    ):
        say("", panel.title)
        for line in panel.lines:
            coloured = re.sub(r"\d+([A-Za-z]+)", lambda cell: typer.style(cell[0], fg=colours.get(cell[1])), line)
            typer.echo(f"  {coloured if terminal else line}")
    say("", format_legend(machine, occupants), *format_placement(occupants, grants, reasons))
