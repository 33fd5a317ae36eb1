"""Commands on services: deploy, services, scale, traffic, promote, rollback, delete."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scanflow_client.cli.app import JsonOption, TargetArgument, app, deployer, print_json, table

if TYPE_CHECKING:
    from scanflow.app.resources import AffinityMode
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord
    from scanflow.deployer import Deployer

__all__ = ["print_service_logs"]

ServiceArgument = Annotated[str, typer.Argument(metavar="NAME", help="The service: its workflow's name.")]
CoresOption = Annotated[str | None, typer.Option("--cores", metavar="C", help="Cores of one instance: 2, 0.5, 500m.")]
AffinityOption = Annotated[
    str | None, typer.Option("--affinity", metavar="MODE", help="Where an instance may run: any|cpu|cpumem|cpumempin.")
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Whose model it is. Default: the only node that has one.")
]


@app.command()
def deploy(
    target: TargetArgument = None,
    instances: Annotated[int | None, typer.Option("--instances", metavar="N", min=0, help="How many copies.")] = None,
    cores: CoresOption = None,
    affinity: AffinityOption = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="P", min=1, max=65535, help="Of HTTP. Default: the next free one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an online workflow; where it is served already, change it without a gap.

    What is not given is as the workflow says.
    """
    from scanflow.loading import load_application

    where = deployer()
    application, path, workflow = load_application(target)
    wanted: dict[str, Any] = {"instances": instances, "cores": _cores(cores), "affinity": _affinity(affinity)}
    record = _watch(
        lambda observe: where.deploy(application, workflow, port=port, source=path, observe=observe, **wanted), as_json
    )
    if not as_json:
        typer.echo("\n".join(_ways_to_ask(where, record)))


@app.command()
def services(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, in detail.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List what is deployed; with a name, show its instances and revisions."""
    from scanflow_client.service_words import service_rows

    if name is not None:
        _show(deployer().service(name), as_json)
        return
    records = deployer().services()
    if as_json:
        print_json(records)
    elif records:
        table(("service", "state", "url", "ready", "cores", "models", "rps", "p95"), service_rows(records))
    else:
        typer.echo("Nothing is deployed. Deploy an online workflow: scanflow deploy app.py:WORKFLOW")


@app.command()
def scale(
    name: ServiceArgument,
    instances: Annotated[int | None, typer.Argument(metavar="[N]", min=0, help="How many instances.")] = None,
    cores: CoresOption = None,
    affinity: AffinityOption = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why it has as many as it has.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Cut a service into other instances while it serves: more, fewer, larger, smaller."""
    from scanflow_client.service_words import explanation_lines

    where = deployer()
    if explain:
        found = where.explain(name)
        if as_json:
            print_json(found)
        else:
            typer.echo("\n".join(explanation_lines(found)))
        return
    wanted: dict[str, Any] = {"instances": instances, "cores": _cores(cores), "affinity": _affinity(affinity)}
    _watch(lambda observe: where.scale(name, observe=observe, **wanted), as_json, look=True)


@app.command()
def traffic(
    name: ServiceArgument,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="models:/name/3 or models:/name@alias.")],
    weight: Annotated[
        str | None,
        typer.Option("--weight", "-w", metavar="SHARE", help="10% or 0.1 of the requests; 0: none any more."),
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Copy every request; only count the answers.")] = False,
    node: NodeOption = None,
    promote_if: Annotated[
        str | None,
        typer.Option("--promote-if", metavar="RULE", help="Judge it by machine: p95<=1.2x, or errors<=1x+0.01."),
    ] = None,
    after: Annotated[int, typer.Option("--after", metavar="N", min=1, help="Judge when it answered so many.")] = 100,
    within: Annotated[
        str | None, typer.Option("--within", metavar="TIME", help="Take it back if it did not until then: 10m.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put another version of a model on trial: a share of the requests (canary), or a copy of each (shadow)."""
    from scanflow.app.quantities import parse_duration
    from scanflow.errors import InvalidError
    from scanflow_client.judgements import parse_judgement, parse_share

    if not shadow and weight is None:
        raise InvalidError("A version on trial needs a share of the requests: --weight 10%, or --shadow for copies.")
    share = 0.0 if weight is None else parse_share(weight)
    if within is not None and promote_if is None:
        raise InvalidError("--within says when to give up on a rule. Give the rule too: --promote-if 'p95<=1.2x'.")
    limit = None if within is None else parse_duration(within, what="--within")
    judgement = None if promote_if is None else parse_judgement(promote_if, after=after, within_s=limit)
    where = deployer()
    _watch(
        lambda observe: where.traffic(
            name, model, node=node, weight=share, shadow=shadow, judgement=judgement, observe=observe
        ),
        as_json,
        look=True,
    )


@app.command()
def promote(
    name: ServiceArgument,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Swap this version in. Default: the one on trial.")
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the version on trial answer everything, or swap another version in, without a failed request."""
    where = deployer()
    _watch(lambda observe: where.promote(name, model, node=node, observe=observe), as_json, look=True)


@app.command()
def rollback(name: ServiceArgument, as_json: JsonOption = False) -> None:
    """Take back the version on trial; without one, return to what was served before, cut as it was then."""
    where = deployer()
    _watch(lambda observe: where.rollback(name, observe=observe), as_json, look=True)


@app.command()
def delete(name: ServiceArgument, as_json: JsonOption = False) -> None:
    """Answer what is begun, then end a service and forget it. Its models and records are kept."""
    where = deployer()
    record = where.service(name)
    with _observer(as_json) as observe:
        where.delete(name, observe=observe)
    if as_json:
        print_json(record)
    elif record.source is not None:
        typer.echo(f"Deleted {name}. Deploy it again: scanflow deploy {record.source}:{name}")
    else:
        typer.echo(f"Deleted {name}. See what is left: scanflow services")


def print_service_logs(where: Deployer, name: str, *, instance: str | None, follow: bool) -> None:
    """Print what a service's instances wrote, and which of them did."""
    last = None
    for whose, block in where.service_logs(name, instance=instance, follow=follow):
        if whose != last and instance is None:
            typer.echo(f"── {whose}")
        last = whose
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


def _watch(start: Callable[[ServiceObserver], ServiceRecord], as_json: bool, *, look: bool = False) -> ServiceRecord:
    """Tell of a change as it happens, and what came of it; with ``look``, end with the command that shows it."""
    from scanflow_client.service_words import service_line

    with _observer(as_json) as observe:
        record = start(observe)
    if as_json:
        print_json(record)
    else:
        typer.echo(service_line(record))
        if look:
            typer.echo(f"Look at it: scanflow services {record.name}")
    return record


def _observer(as_json: bool) -> Any:
    from contextlib import nullcontext

    from scanflow_client.progress import changes_on

    return nullcontext(lambda _change: None) if as_json else changes_on(sys.stdout)


def _show(record: ServiceRecord, as_json: bool) -> None:
    from scanflow_client.service_words import error_lines, instance_rows, next_for, revision_rows, service_line

    if as_json:
        print_json(record)
        return
    typer.echo("\n".join([service_line(record), *error_lines(record)]))
    if record.instances:
        heads = ("instance", "state", "pid", "since", "cpus", "threads", "memory", "busy", "begun", "restarts")
        table(heads, instance_rows(record))
    table(("revision", "role", "share", "models", "requests", "errors", "p50", "p95"), revision_rows(record))
    if record.recorded or record.dropped:
        dropped = f", {record.dropped} could not be kept" if record.dropped else ""
        typer.echo(f"Predictions taken to the tracker: {record.recorded}{dropped}")
    typer.echo(next_for(record))


def _ways_to_ask(where: Deployer, record: ServiceRecord) -> list[str]:
    from scanflow_client.service_words import ways_to_ask

    return ways_to_ask(record, _inputs(where, record))


def _inputs(where: Deployer, record: ServiceRecord) -> list[dict[str, Any]]:
    """Return what the graph declares that it takes, else what a registered model in it does."""
    from scanflow.errors import ScanflowError

    nodes = [None, *(node for one in record.revisions for node in one.models)] if record.state == "ready" else []
    for node in nodes:
        try:
            if found := where.metadata(record.name, node=node).get("inputs"):
                return list(found)
        except ScanflowError:  # it is deployed all the same, and the next command will say what is wrong
            break
    return []


def _cores(text: str | None) -> float | None:
    from scanflow.app.quantities import parse_cpu

    return None if text is None else parse_cpu(text)


def _affinity(text: str | None) -> AffinityMode | None:
    from scanflow.app.resources import Affinity

    return None if text is None else Affinity.model_validate(Affinity.coerce(text)).mode
