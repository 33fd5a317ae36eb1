"""Commands on runs: run, runs, show, output, logs, stop, resume, spin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from scanflow.errors import NotFoundError, ScanflowError, StepFailedError, UnsupportedError, UsageError, did_you_mean
from scanflow_client.cli.command_options import (
    GraphOption,
    JsonOption,
    LimitOption,
    ParameterOption,
    RunArgument,
    TargetArgument,
    check_choice,
    open_deployer,
    split_parameters,
)
from scanflow_client.cli.command_output import choose_progress_stream, print_json, respond, say, write_blocks
from scanflow_client.cli.exit_codes import FAILED, STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scanflow.backends.run_records import Event, RunRecord, StepFile
    from scanflow.deployer import Deployer, RunRequest
    from scanflow_client.formatting.text_table import GraphScreen


def run(
    target: TargetArgument = None,
    parameter: ParameterOption = None,
    no_cache: Annotated[
        bool, Option("--no-cache", help="Run cached steps as well, and put their new outputs into the cache.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow; print a line per step and the last result.

    Examples:
        scanflow run app.py
        scanflow run app.py:training -p epochs=3
        scanflow run app.py --no-cache
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer import RunRequest

    deployer = open_deployer()
    application, path, workflow = load_application(target)
    request = RunRequest(application, workflow, texts=split_parameters(parameter), source=path, refresh_cache=no_cache)
    watch(deployer, request, as_json)


def resume(
    name: RunArgument = "@latest",
    app: Annotated[
        str | None, Option("--app", metavar="APP", help="Continue with this application, not that of the run's file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a run, by default the newest if it did not succeed. Finished steps are kept, failed ones run again.

    Examples:
        scanflow resume
        scanflow resume keen-otter-417 --app app.py
    """
    from scanflow.application_loading import load_application
    from scanflow.deployer import RunRequest
    from scanflow.deployer.deployer_port import LATEST

    application, source = (None, None) if app is None else load_application(app)[:2]
    deployer = open_deployer()
    if name == LATEST and (newest := deployer.show(name)).state == "succeeded":
        raise UsageError(
            f"The newest run, {newest.name} of {newest.app}:{newest.workflow}, succeeded, and has nothing to continue. "
            "Name the run: scanflow runs"
        )
    watch(deployer, RunRequest(application, run=name, source=source), as_json)


def spin(
    step: Annotated[str, Argument(help="The step to run again.")],
    on: Annotated[str, Option("--run", metavar="RUN", help="The run that provides the inputs.")] = "@latest",
    parameter: ParameterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one step again on its inputs from a past run. The file's current code is used.

    Examples:
        scanflow spin train -p rate=0.2
        scanflow spin train --run keen-otter-417
    """
    from scanflow.deployer import RunRequest

    watch(open_deployer(), RunRequest(texts=split_parameters(parameter), run=on, step=step), as_json)


def runs(limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """List runs, the newest first.

    Examples:
        scanflow runs
        scanflow runs -n 5 --json
    """
    from scanflow_client.formatting.run_text import format_runs

    records = open_deployer().runs(limit=limit)
    respond(records, as_json, lambda: format_runs(records))


def show(name: RunArgument = "@latest", graph: GraphOption = False, as_json: JsonOption = False) -> None:
    """Show a run: its steps, their states, usage, and the files that they left.

    Examples:
        scanflow show
        scanflow show @latest-1 --graph
    """
    from scanflow_client.formatting.graph_text import build_run_graph
    from scanflow_client.formatting.run_text import format_run

    deployer = open_deployer()
    record = deployer.show(name)
    files = _list_files(deployer, record.name)
    detailed = record.with_details(files=[file.model_dump() for file in files]) if files else record
    head, *rest = format_run(record, files)
    drawing: GraphScreen = ["", build_run_graph(record), ""] if graph else []
    respond(detailed, as_json, lambda: [head, *drawing, *rest])


def output(
    name: RunArgument = "@latest",
    step: Annotated[str | None, Argument(metavar="[STEP]", help="The step. Default: the last one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the result of a step, or its named outputs, and the files that it left.

    Examples:
        scanflow output
        scanflow output @latest train --json
    """
    from scanflow_client.formatting.run_text import format_files, format_output

    deployer = open_deployer()
    record = deployer.show(name)
    chosen = step or _get_last_step(record)
    value = _simplify(deployer.outputs(record.name, chosen))
    files = [] if as_json else _list_files(deployer, record.name, chosen)
    respond(value, as_json, lambda: [*format_output(record.name, chosen, value), *format_files(files)], mask=False)


def logs(
    name: Annotated[
        str, Argument(metavar="[RUN|SERVICE]", help="A run's name, @latest for the newest run, or a service's name.")
    ] = "@latest",
    task: Annotated[
        str | None,
        Argument(metavar="[TASK|INSTANCE]", help="A step, a task such as train.3, or an instance. Default: all."),
    ] = None,
    instance: Annotated[
        str | None, Option("--instance", help="The instance of a service; same as the argument INSTANCE.")
    ] = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing until the task or service ends.")] = False,
    stream: Annotated[str, Option("--stream", help="stdout, stderr or both.")] = "both",
    attempt: Annotated[int | None, Option("--attempt", min=1, help="The attempt. Default: the last.")] = None,
    raw: Annotated[bool, Option("--raw", help="Pass escape sequences on to the terminal.")] = False,
) -> None:
    """Print the logs of a run's steps or a service's instances.

    Examples:
        scanflow logs
        scanflow logs @latest train.3 --stream stderr
        scanflow logs digits --follow
    """
    from scanflow_client.task_logs import (
        describe_earlier_attempt,
        format_heading,
        iterate_task_blocks,
        select_logged_tasks,
    )

    chosen = check_choice(stream, ("stdout", "stderr", "both"), "--stream")
    deployer = open_deployer()
    try:
        record = deployer.show(name)
    except NotFoundError:
        if not (names := [service.name for service in deployer.services(instances=False)]):
            raise
        if name not in names:
            raise NotFoundError(f"There is no run and no service {name!r}.{did_you_mean(name, names)}") from None
        _print_service_logs(deployer, name, instance=instance or task, follow=follow, raw=raw)
        return
    tasks = select_logged_tasks(record, task)
    silent = []
    for task_name in tasks:
        if len(tasks) > 1:
            say(format_heading(task_name))
        blocks = iterate_task_blocks(deployer, record.name, task_name, stream=chosen, attempt=attempt, follow=follow)
        silent += [] if write_blocks(blocks, raw=raw) else [task_name]
    if silent:
        say(f"There is no output of {', '.join(silent)}.", err=True)
    if attempt is None and (note := describe_earlier_attempt(record, tasks)):
        say(note, err=True)


def stop(
    name: RunArgument = "@latest",
    task: Annotated[
        str | None, Argument(metavar="[TASK]", help="Stop only this step, or this task of a fan-out: train.3.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Request a run's steps to stop. The run can be resumed.

    Examples:
        scanflow stop
        scanflow stop keen-otter-417 train.3
    """
    record = open_deployer().stop(name, task)
    stopped = f"Stopped {record.name}. Continue it: scanflow resume {record.name}"
    requested = f"Asked {f'{task} of ' if task else ''}{record.name} to stop. See: scanflow show {record.name}"
    respond(record, as_json, lambda: [stopped if record.state == "stopped" else requested])


def watch(deployer: Deployer, request: RunRequest, as_json: bool, *, last: bool = True) -> RunRecord:
    """Run a request and show its progress and outcome; exit with 1 if it failed and 130 if it was stopped.

    ``last``: no other output follows, so the record is printed with JSON, and else the last step's result.
    """
    from scanflow.backends.run_records import RunStarted
    from scanflow_client.formatting.run_text import format_failure, format_outcome
    from scanflow_client.progress import show_run_progress

    started: list[str] = []
    with show_run_progress(choose_progress_stream(as_json)) as observe:

        def note(event: Event) -> None:
            if isinstance(event, RunStarted):
                started.append(event.run)
            observe(event)

        try:
            record = deployer.run(request, observe=note)
        except KeyboardInterrupt:
            for name in started[-1:]:
                say(f"Left {name} before its steps had stopped. Continue it: scanflow resume {name}", err=True)
            raise
    if not as_json:
        say(*(_format_result(deployer, record) if last and record.state == "succeeded" else ()), format_outcome(record))
    elif last or record.state != "succeeded":
        print_json(record)
    if record.state == "failed":
        if as_json:
            raise typer.Exit(FAILED.code)
        raise StepFailedError("\n".join(format_failure(record)))
    if record.state == "stopped":
        raise typer.Exit(STOPPED.code)
    return record


def _format_result(deployer: Deployer, record: RunRecord) -> list[str]:
    from scanflow_client.formatting.run_text import format_output

    try:
        step = _get_last_step(record)
        value = _simplify(deployer.outputs(record.name, step))
    except ScanflowError:  # the step was skipped, or has only files as outputs
        return []
    return [] if value is None or value == {} else format_output(record.name, step, value)


def _get_last_step(record: RunRecord) -> str:
    ended = [task.step for task in record.tasks if task.state in {"succeeded", "empty"}]
    if not ended:
        raise NotFoundError(f"No step of the run {record.name!r} has succeeded. See: scanflow show {record.name}")
    return ended[-1]


def _list_files(deployer: Deployer, run: str, step: str | None = None) -> list[StepFile]:
    try:
        return deployer.files(run, step)
    except UnsupportedError:  # what else there is to show is shown
        return []


def _simplify(outputs: Any) -> Any:
    """Return the result of a step that has no other output, else its outputs by name; a list for a fan-out."""
    if isinstance(outputs, list):
        return [_simplify(output) for output in outputs]
    return outputs["result"] if outputs.keys() == {"result"} else outputs


def _print_service_logs(deployer: Deployer, name: str, *, instance: str | None, follow: bool, raw: bool) -> None:
    """Print the logs of a service's instances, below each instance's name."""
    from scanflow.deployer import InstanceLogs

    last = None

    def generate_blocks() -> Iterator[bytes]:
        nonlocal last
        for writer, block in deployer.logs(InstanceLogs(name, instance), follow=follow):
            if writer != last and instance is None:
                yield f"── {writer}\n".encode()
            last = writer
            yield block

    if not write_blocks(generate_blocks(), raw=raw):
        say(f"There is no output of the instances of {name}.", err=True)
