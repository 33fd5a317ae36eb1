"""The command ``demo``: train, serve, and watch the agents close the loop, with one word."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanflow_client.cli.app import JsonOption, ParameterOption, app, deployer, parse_parameters, server

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.deployer import Deployer
    from scanflow_client.loop_demo import Loop

__all__: list[str] = []


@app.command()
def demo(
    data: Annotated[
        str,
        typer.Option("--data", metavar="NAME|FILE", help="digits (comes with scikit-learn), mnist, or an .npz file."),
    ] = "digits",
    drifted: Annotated[
        Path | None,
        typer.Option("--drifted", metavar="FILE", help="Drifted digits, such as MNIST-C's. Default: they are made."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the report goes. Default: the home folder.")
    ] = None,
    parameter: ParameterOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Let the service and the agents run on at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on handwritten digits, serve the model, let the data drift, and watch agents retrain and promote."""
    from scanflow_client.cli.runs import watch
    from scanflow_client.demo import load_demo, report_path, where_to_look
    from scanflow_client.loop_demo import SERVICE, loop_lines, report_of
    from scanflow_client.standing import look_before

    application, path, parameters, corrupted = load_demo(data, drifted)
    parameters |= parse_parameters(parameter)
    if not as_json:
        typer.echo(f"The demo is an application like yours: {path}")
    with _control_plane(keep=keep, as_json=as_json):
        where = deployer()
        look_before(where, server(), application, SERVICE)  # what is refused is refused before the training
        record = watch(
            lambda observe: where.run(application, "mnist-wf", parameters=parameters, source=path, observe=observe),
            as_json,
            last=False,
        )
        loop = _close_the_loop(where, application, path, corrupted, keep=keep, as_json=as_json)
        written = report_path(report, record)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(report_of(application, loop), encoding="utf-8")
        if as_json:
            told = {"run": record.model_dump(mode="json"), "loop": loop.as_json(), "report": str(written)}
            typer.echo(json.dumps(told, indent=2))
        else:
            typer.echo("\n".join([*loop_lines(loop, written), *where_to_look(record, path, kept=keep)]))


@contextmanager
def _control_plane(*, keep: bool, as_json: bool) -> Iterator[None]:
    """Have the control plane up meanwhile; what was up before stays up."""
    from scanflow.settings import Settings
    from scanflow_client.plane import down, up
    from scanflow_client.standing import wanted_agents

    settings = Settings.from_environment()
    if settings.url is not None:  # somebody else's to start and to end
        yield
        return
    raised = up(settings)
    ends = raised.server and not keep
    if not as_json:
        typer.echo(f"The control plane is up: {raised.up.server.url}" + ("" if raised.server else " (it was before)"))
    try:
        if ends and (others := wanted_agents(server())):
            ends = False
            names = ", ".join(f"{one['name']} of {one['app']}" for one in others)
            typer.echo(f"It stays up, as {names} were to run before. Stop all: scanflow down", err=as_json)
        yield
    finally:
        if ends and (done := down(settings)).running:
            typer.echo("\n".join(done.left), err=True)


def _close_the_loop(
    where: Deployer, application: Application, path: Path, drifted: Path | None, *, keep: bool, as_json: bool
) -> Loop:
    """Serve the champion, start the agents, send digits, and tell the story until a better model is promoted.

    What this began is ended at the end, whether or not it failed on the way; what was there before it is not.
    """
    from scanflow_client.demo import traffic_program
    from scanflow_client.loop_demo import SERVICE, run_loop, start_agents
    from scanflow_client.progress import changes_on
    from scanflow_client.standing import end_agents, end_service, look_before
    from scanflow_client.story_screen import story_on
    from scanflow_client.traffic import Traffic

    asked = server()
    look_before(where, asked, application, SERVICE)
    with ExitStack() as stack:
        with nullcontext(lambda _change: None) if as_json else changes_on(sys.stdout) as observe:
            if not keep:
                stack.callback(end_service, where, application, SERVICE)
            served = where.deploy(application, SERVICE, source=path, observe=observe)
        if not keep:
            stack.callback(end_agents, asked, application, [one.name for one in application.agents])
        names = start_agents(asked, application, path)
        if not as_json:
            typer.echo(f"From here on, the agents act by themselves: {', '.join(names)}")
        program, arguments = traffic_program(path, served, drifted)
        traffic = stack.enter_context(Traffic(program, *arguments, log=Path(served.folder) / "demo-traffic.log"))
        with story_on(None if as_json else sys.stdout) as screen:
            return run_loop(
                asked,
                application,
                traffic,
                models=lambda: {
                    one.id: next(iter(one.models.values()), "?") for one in where.service(SERVICE).revisions
                },
                tell=screen.tell,
                look=screen.look,
            )
