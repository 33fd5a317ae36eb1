"""Commands on applications and on this machine: init, check, schema, plan, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scanflow_client.cli.command_options import (
    GraphOption,
    JsonOption,
    ParameterOption,
    TargetArgument,
    load_settings,
    open_deployer,
    split_parameters,
)
from scanflow_client.cli.command_output import respond, say
from scanflow_client.cli.exit_codes import UNAVAILABLE
from scanflow_client.cli.service_commands import (
    AffinityOption,
    CoresOption,
    CutOption,
    GpuOption,
    InstancesOption,
    IntoOption,
    parse_shape_options,
)

if TYPE_CHECKING:
    from scanflow_client.formatting.text_table import GraphScreen

TEMPLATE_HELP = "What to write: batch|service|loop|agent|mpi|notebook."


def init(
    folder: Annotated[Path, Argument(help="The folder to create. Default: the current one.")] = Path(),
    template: Annotated[str, Option("--template", metavar="TEMPLATE", help=TEMPLATE_HELP)] = "batch",
    name: Annotated[str | None, Option("--name", help="The application's name. Default: the folder's name.")] = None,
) -> None:
    """Write a small project: an application, its tests and a README. No existing file is overwritten.

    batch: a workflow. service: a model that is trained and served. loop: agents that watch a service and retrain its
    model. agent: an agent of your own. mpi: an MPI job. notebook: a notebook and its module.

    Examples:
        scanflow init my-app
        scanflow init shop --template service
    """
    from scanflow.app.application import Application
    from scanflow_client.project_files import build_application_name, get_template, read_files, write_project

    chosen = get_template(template)
    application = Application(name=build_application_name(folder) if name is None else name)
    paths = write_project(folder, read_files(chosen.name, application.name))
    say(*(f"  {path}" for path in paths))
    say(f"Wrote {len(paths)} files. Next: {chosen.format_command(folder)}")


def check(target: TargetArgument = None, as_json: JsonOption = False) -> None:
    """Check an application without running it.

    The check covers the graph, names, quantities, parameters and files, and the agents: their parameters, and the
    workflows and agents that their strategies name.

    Examples:
        scanflow check
        scanflow check app.py:training
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer import RunRequest
    from scanflow_client.agent_replay import check_agents
    from scanflow_client.formatting.run_text import format_check

    deployer = open_deployer()
    application, path, chosen = load_application(target)
    if chosen is not None:
        application.workflow(chosen)
    workflows = [workflow for workflow in application.workflows if chosen in {None, workflow.name}]
    plans = [deployer.plan(RunRequest(application, workflow.name)) for workflow in workflows]
    types = {workflow.name: workflow.type for workflow in workflows}
    if application.agents and chosen is None:
        check_agents(str(path))
    respond(plans, as_json, lambda: format_check(application.name, plans, types, file=path.name, target=target))


def schema() -> None:
    """Print the JSON schema of applications in YAML, with which an editor completes and checks such a file.

    Examples:
        scanflow schema > scanflow.schema.json
    """
    import json

    from scanflow.app.application_schema import build_application_schema

    typer.echo(json.dumps(build_application_schema(), indent=2, ensure_ascii=False))


def plan(
    target: TargetArgument = None,
    parameter: ParameterOption = None,
    instances: InstancesOption = None,
    cores: CoresOption = None,
    gpu: GpuOption = None,
    affinity: AffinityOption = None,
    cut: CutOption = None,
    into: IntoOption = None,
    graph: GraphOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print a workflow's steps and resources without running it.

    Examples:
        scanflow plan app.py -p epochs=3 --graph
        scanflow plan app.py:serve --instances 2 --cores 1
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer import RunRequest
    from scanflow_client.formatting.graph_text import build_plan_graph
    from scanflow_client.formatting.run_text import format_plan

    application, _, workflow = load_application(target)
    sizing = parse_shape_options(instances, cores, gpu, affinity, cut, into)
    if any(value is not None for value in sizing.values()):
        application = application.with_workflow(application.workflow(workflow).with_shape(**sizing))
    workflow_plan = open_deployer().plan(RunRequest(application, workflow, texts=split_parameters(parameter)))
    online = application.workflow(workflow_plan.workflow).type == "online"
    drawing: GraphScreen = [build_plan_graph(workflow_plan), ""] if graph else []
    respond(workflow_plan, as_json, lambda: [*drawing, *format_plan(workflow_plan, online=online)])


def doctor(
    backend: Annotated[
        str | None, Option("--backend", metavar="NAME", help="The backend to check, such as kubernetes.")
    ] = None,
    thorough: Annotated[bool, Option("--thorough", help="On a cluster: also start a pod with the image.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine or a cluster, and suggest fixes.

    A cluster is checked with --backend kubernetes.

    Examples:
        scanflow doctor
        scanflow doctor --backend kubernetes --thorough
    """
    from scanflow_client.doctor import examine
    from scanflow_client.formatting.text_table import Table

    settings = load_settings()
    if backend is not None:
        settings = settings.model_copy(update={"backend": backend})
    findings = examine(settings, thorough=thorough)
    table = Table(
        ("", "what", "found", "do"),
        [(finding.mark, finding.what, finding.found, finding.advice) for finding in findings],
    )
    respond(findings, as_json, lambda: [table])
    if any(finding.mark == "✗" for finding in findings):
        raise typer.Exit(UNAVAILABLE.code)
