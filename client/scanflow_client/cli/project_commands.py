"""Commands on applications and on this machine: init, check, plan, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scanflow.errors import InvalidError
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

_FIRST_APP = '''"""A first workflow. Run it: scanflow run app.py"""

import scanflow as sf


@sf.step
def load(count: int = 4) -> list[float]:
    return [n / 10 for n in range(1, count + 1)]


@sf.step(retries=1, timeout="5m")
def train(rate: float) -> dict[str, float]:
    print(f"training with rate {{rate}}")
    return {{"rate": rate, "score": 1 - (rate - 0.3) ** 2}}


@sf.step
def select(trained: list[dict[str, float]]) -> dict[str, float]:
    best = max(trained, key=lambda one: one["score"])
    print(f"best: {{best}}")
    return best


rates = load.bind(count=4)
trained = train.map(rates)  # once for each rate, in parallel
best = select.bind(trained)

app = sf.Application(
    name="{name}",
    workflows=[sf.Workflow(name="training", nodes=[rates, trained, best])],
)
'''


def init(
    folder: Annotated[Path, Argument(help="The folder to create. Default: the current one.")] = Path(),
    name: Annotated[str | None, Option("--name", help="The application's name. Default: the folder's name.")] = None,
) -> None:
    """Write a small example application. No existing file is overwritten.

    Example: scanflow init my-app --name shop
    """
    from scanflow.names import build_slug, check_name

    if name is not None:
        check_name(name, "application")
    path = folder / "app.py"
    if path.exists():
        raise InvalidError(f"The file {str(path)!r} exists already. Name another folder: scanflow init my-app")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_FIRST_APP.format(name=name or build_slug(folder.absolute().name) or "app"), encoding="utf-8")
    say(f"Wrote {path}. Run it: scanflow run {path}")


def check(target: TargetArgument = None, as_json: JsonOption = False) -> None:
    """Check an application without running it.

    The check covers the graph, names, quantities, parameters and files, and the agents: their parameters, and the
    workflows and agents that their strategies name.

    Example: scanflow check app.py
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

    Example: scanflow plan app.py --graph
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

    Example: scanflow doctor
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
