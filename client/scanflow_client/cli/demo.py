"""The command ``demo``: train, register, serve and ask, with one word."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanflow_client.cli.app import JsonOption, ParameterOption, app, deployer, parse_parameters

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.backends.records import RunRecord
    from scanflow.deployer import Deployer
    from scanflow_client.serving_demo import Served

__all__: list[str] = []


@app.command()
def demo(
    data: Annotated[
        str,
        typer.Option("--data", metavar="NAME|FILE", help="digits (comes with scikit-learn), mnist, or an .npz file."),
    ] = "digits",
    parameter: ParameterOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Let the service run on at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train two networks on handwritten digits, register the better one in MLflow, and serve it."""
    from scanflow_client.cli.runs import watch
    from scanflow_client.demo import load_demo, where_to_look
    from scanflow_client.serving_demo import served_lines

    where = deployer()
    application, path, parameters = load_demo(data)
    parameters |= parse_parameters(parameter)
    if not as_json:
        typer.echo(f"The demo is an application like yours: {path}")
    record = watch(
        lambda observe: where.run(application, parameters=parameters, source=path, observe=observe), as_json, last=False
    )
    served = _serve(where, application, path, record, keep=keep, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"run": record.model_dump(mode="json"), "served": served.as_json()}, indent=2))
    else:
        typer.echo("\n".join([*served_lines(served), *where_to_look(record, where, kept=keep)]))


def _serve(where: Deployer, app: Application, path: Path, run: RunRecord, *, keep: bool, as_json: bool) -> Served:
    """Serve the better network, ask it, and end the service again unless it is to be kept."""
    from scanflow_client.progress import changes_on, counting_on
    from scanflow_client.serving_demo import PICTURES, SERVICE, deploy_demo, question_all

    with nullcontext(lambda _change: None) if as_json else changes_on(sys.stdout) as observe:
        deploy_demo(where, app, path, observe)
    try:
        text = f"{PICTURES:,} pictures"
        with nullcontext(lambda _count: None) if as_json else counting_on(sys.stdout, text, PICTURES) as advance:
            return question_all(where, run, advance=advance)
    finally:
        if not keep:
            where.delete(SERVICE)
