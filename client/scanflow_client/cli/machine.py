"""``scanflow topology``: the machine, who sits where, and where instances would sit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scanflow_client.cli.app import JsonOption, app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scanflow.backends.service_records import ServiceRecord
    from scanflow.placement.place import Grant
    from scanflow.placement.topology import Topology
    from scanflow_client.drawing import Occupant

__all__: list[str] = []

PLAIN_WIDTH = 96


@app.command()
def topology(
    instances: Annotated[
        int | None, typer.Option("--instances", "-n", min=1, help="Show where so many instances would sit.")
    ] = None,
    cores: Annotated[str | None, typer.Option("--cores", metavar="CORES", help="Of each: 2, 0.5 or 500m.")] = None,
    affinity: Annotated[
        str | None, typer.Option("--affinity", metavar="MODE", help="any, cpu, cpumem or cpumempin.")
    ] = None,
    order: Annotated[
        str, typer.Option("--order", help="Caches: keep instances apart or together, or go by numbered cores.")
    ] = "apart",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the machine's description.")
    ] = None,
    from_: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Show a machine that was saved.")] = None,
    sysfs: Annotated[
        Path | None, typer.Option("--sysfs", metavar="FOLDER", help="Show a machine whose /sys was copied there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw this machine and where instances sit; or plan where they would, here or on another machine."""
    from scanflow.errors import InvalidError
    from scanflow.placement.explain import explain
    from scanflow.placement.topology import save as write

    if from_ is not None and sysfs is not None:
        raise InvalidError("--from and --sysfs both say which machine to show. Leave one out.")
    machine = _machine(from_, sysfs)
    if save is not None:
        write(machine, save)
    services = _services() if from_ is None and sysfs is None else []
    grants: tuple[Grant, ...] = ()
    reasons: list[str] = []
    if instances is not None or cores is not None or affinity is not None:
        mode, others = _mode(affinity), _bound(services)
        grants = _planned(machine, instances or 1, cores, mode, order, others)
        reasons = explain(machine, grants, mode, taken={cpu for other in others for cpu in other.cpus})
    if as_json:
        typer.echo(json.dumps(_told(machine, services, grants, reasons), indent=2))
        return
    if save is not None:
        typer.echo(f"Wrote {save}. Show it anywhere: scanflow topology --from {save}")
    _show(machine, _occupants(services, grants), grants, reasons)


def _machine(from_: Path | None, sysfs: Path | None) -> Topology:
    from scanflow.placement.sysfs import another_machine, read_topology
    from scanflow.placement.topology import load

    if from_ is not None:
        return load(from_)
    return read_topology() if sysfs is None else another_machine(sysfs)


def _services() -> Sequence[ServiceRecord]:
    """Return this machine's own services; where none was ever deployed, without loading what could tell."""
    from scanflow.settings import Settings

    settings = Settings.from_environment()
    if not (settings.home.expanduser() / "services").is_dir():
        return []
    from scanflow.deployer import EmbeddedDeployer

    return EmbeddedDeployer(settings).services()


def _mode(affinity: str | None) -> Any:
    from scanflow.app.resources import Affinity

    return Affinity.coerce(affinity or "any")["mode"]


def _bound(services: Sequence[ServiceRecord]) -> list[Grant]:
    """Return what running instances have for themselves."""
    from scanflow.placement.place import Grant

    return [
        Grant(one.cpus, one.memory_nodes, cores=one.cores or float(len(one.cpus)))
        for service in services
        if service.shape.affinity != "any"
        for one in service.instances
        if one.cpus and one.state not in {"waiting", "failed"}
    ]


def _planned(
    machine: Topology, instances: int, cores: str | None, mode: Any, order: str, beside: Sequence[Grant]
) -> tuple[Grant, ...]:
    from scanflow.app.quantities import parse_cpu
    from scanflow.errors import InvalidError, did_you_mean
    from scanflow.placement.place import place

    if order not in {"apart", "together", "numbered"}:
        raise InvalidError(f"--order {order!r} is not known.{did_you_mean(order, ['apart', 'together', 'numbered'])}")
    amount = None if cores is None else parse_cpu(cores)
    return place(machine, instances, amount, mode, beside=beside, order=order)  # type: ignore[arg-type]


def _told(
    machine: Topology, services: Sequence[ServiceRecord], grants: Sequence[Grant], reasons: Sequence[str]
) -> dict[str, Any]:
    from scanflow.placement.threads import thread_variables

    return {
        "topology": machine.model_dump(mode="json", exclude_none=True),
        "effective_cpus": machine.effective_cpus,
        "effective_count": machine.effective_count,
        "services": [
            {"service": service.name, "instance": one.instance, "cpus": one.cpus, "memory_nodes": one.memory_nodes}
            for service in services
            for one in service.instances
        ],
        "placement": [
            {
                "instance": number,
                "cores": grant.cores,
                "cpus": grant.cpus,
                "memory_nodes": grant.memory_nodes,
                "thread_cpus": grant.thread_cpus,
                "threads": thread_variables(grant.cores),
            }
            for number, grant in enumerate(grants, 1)
        ],
        "reasons": reasons,
    }


def _occupants(services: Sequence[ServiceRecord], grants: Sequence[Grant]) -> list[Occupant]:
    """Return who sits where, instances on the very same CPUs as one."""
    from scanflow_client.drawing import Occupant, labels

    seated: dict[tuple[int, ...], list[str]] = {}
    for service in services:
        for one in service.instances:
            if one.cpus and one.state not in {"waiting", "failed"}:
                seated.setdefault(one.cpus, []).append(f"{service.name}/{one.instance}")
    for number, grant in enumerate(grants, 1):
        seated.setdefault(grant.cpus, []).append(f"instance {number}")
    return [
        Occupant(label, _named(names), cpus) for label, (cpus, names) in zip(labels(), seated.items(), strict=False)
    ]


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if len(names) > 3 else ", ".join(names)


def _show(machine: Topology, occupants: Sequence[Occupant], grants: Sequence[Grant], reasons: Sequence[str]) -> None:
    from scanflow_client.drawing import draw, legend, summary

    if sys.stdout.isatty():
        _show_in_colours(machine, occupants)
    else:
        typer.echo("\n".join(summary(machine)))
        for panel in draw(machine, occupants, width=PLAIN_WIDTH - 2):
            typer.echo(f"\n{panel.title}")
            typer.echo("\n".join(f"  {''.join(cell.text for cell in line)}".rstrip() for line in panel.lines))
        typer.echo(f"\n{legend(machine, occupants)}".rstrip())
    for line in _below(occupants, grants, reasons):
        typer.echo(line)


def _below(occupants: Sequence[Occupant], grants: Sequence[Grant], reasons: Sequence[str]) -> list[str]:
    """Return who the letters stand for, and of planned instances why they would sit there."""
    from scanflow.placement.cpulist import format_cpus

    letters = {occupant.cpus: occupant.label for occupant in occupants}
    planned = {grant.cpus for grant in grants}
    lines = [
        f"{occupant.label}  {occupant.name}: CPUs {format_cpus(occupant.cpus)}"
        for occupant in occupants
        if occupant.cpus not in planned
    ]
    return lines + [
        f"{letters[grants[place - 1].cpus]}  {reason}" if place else reason for place, reason in enumerate(reasons)
    ]


def _show_in_colours(machine: Topology, occupants: Sequence[Occupant]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from scanflow_client.drawing import FORBIDDEN, FREE, draw, legend, summary

    console = Console(highlight=False)
    colours = ("bold cyan", "bold green", "bold magenta", "bold yellow", "bold blue", "bold red")
    styles = {occupant.label: colours[place % len(colours)] for place, occupant in enumerate(occupants)}
    styles |= {FREE: "", FORBIDDEN: "dim strike"}
    console.print("\n".join(summary(machine)), markup=False)
    for panel in draw(machine, occupants, width=max(20, console.width - 4)):
        lines = [Text.assemble(*((cell.text, styles.get(cell.mark, "")) for cell in line)) for line in panel.lines]
        console.print(Panel(Text("\n").join(lines), title=panel.title, title_align="left", expand=False))
    console.print(legend(machine, occupants), markup=False)
