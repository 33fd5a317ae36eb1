"""``scanflow tune``: search the best configuration of a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from scanflow.errors import UsageError
from scanflow_client.cli.command_options import (
    DecimalOption,
    EncodingOption,
    JsonOption,
    SeparatorOption,
    check_choice,
    load_settings,
    open_deployer,
    open_existing_client,
    parse_counts,
)
from scanflow_client.cli.command_output import choose_progress_stream, name_written, remark, respond
from scanflow_client.cli.exit_codes import STOPPED
from scanflow_client.cli.service_commands import (
    DataOption,
    DtypeOption,
    NpyOption,
    OneNodeOption,
    SeldonOption,
    read_inputs,
)

if TYPE_CHECKING:
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.tuning.candidates import Candidate
    from scanflow_client.predict_io import HttpRequest
    from scanflow_client.tuning_report import TuningReport


def tune(
    target: Annotated[str, Argument(metavar="NAME|APP[:WORKFLOW]", help="A service, or an online workflow in a file.")],
    file: Annotated[
        str | None,
        Argument(metavar="[FILE|-]", help="The request to send, as for scanflow predict: .npy, .npz, .json, raw."),
    ] = None,
    data: DataOption = None,
    npy: NpyOption = None,
    node: OneNodeOption = None,
    dtype: DtypeOption = None,
    seldon: SeldonOption = False,
    separator: SeparatorOption = "",
    encoding: EncodingOption = "",
    decimal: DecimalOption = "",
    live: Annotated[
        bool, Option("--live", help="Send recent requests, from the service's recorded predictions.")
    ] = False,
    goal: Annotated[str, Option("--goal", metavar="GOAL", help="throughput|latency|cost.")] = "throughput",
    p99: Annotated[str | None, Option("--p99", metavar="TIME", help="Upper bound of the p99 latency: 50ms.")] = None,
    cores: Annotated[
        int | None, Option("--cores", metavar="N", min=1, help="The budget of cores. Default: the service's cores.")
    ] = None,
    gpus: Annotated[
        int | None, Option("--gpus", metavar="N", min=1, help="The budget of GPUs. Default: the service's GPUs.")
    ] = None,
    batches: Annotated[str | None, Option("--batches", metavar="N,N", help="Batch sizes to try, too: 4,16.")] = None,
    trials: Annotated[int, Option("--trials", metavar="N", help="Maximum number of candidates.")] = 20,
    minutes: Annotated[float, Option("--minutes", metavar="M", help="Maximum duration in minutes.")] = 15.0,
    seconds: Annotated[
        float, Option("--seconds", metavar="S", min=0.5, max=600, help="Duration of a measurement in seconds.")
    ] = 3.0,
    connections: Annotated[
        int, Option("--connections", "-c", metavar="N", min=1, help="Number of concurrent callers.")
    ] = 16,
    out: Annotated[
        Path | None,
        Option("--out", metavar="DIR", help="Write trials and a plot to this folder, or continue its search."),
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Ignore earlier searches for this model or similar ones.")] = False,
    log: Annotated[bool, Option("--log/--no-log", help="Log the search in the application's tracker.")] = True,
    apply: Annotated[bool, Option("--apply", help="Resize the service if a candidate is better.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the best instances, cores, GPUs, affinity and threads.

    Candidates are measured on a copy of the service. Ctrl-C ends the search.

    Examples:
        scanflow tune digits rows.npy --goal latency --minutes 5
        scanflow tune digits --live --apply
    """
    from scanflow.app.quantities import parse_duration
    from scanflow.backends.device_claims import HomeDevices
    from scanflow.tuning.goals import GOALS, Goal
    from scanflow_client.model_client import open_server_knowledge
    from scanflow_client.predict_io import to_http
    from scanflow_client.progress import open_output
    from scanflow_client.recorded_requests import read_recorded_requests
    from scanflow_client.signals import end_on_signals
    from scanflow_client.tuning import TuningBudget, find_history, log_tuning, tune_service, write_files
    from scanflow_client.tuning_report import draw_tuning, format_step, format_tuning, suggest_command
    from scanflow_client.tuning_target import TuningTarget

    bound_s = None if p99 is None else parse_duration(p99, what="--p99")
    search_goal = Goal(name=check_choice(goal, GOALS, "--goal"), p99_s=bound_s)
    budget = TuningBudget(trials=trials, minutes=minutes)
    deployer = open_deployer()
    tuned = TuningTarget.find(deployer, target)
    if apply and tuned.record is None:
        raise UsageError(f"--apply changes a deployed service, and {target!r} is not deployed. Leave it out.")
    settings = load_settings()

    def open_knowledge() -> KnowledgeBase:
        return open_server_knowledge(settings, open_existing_client())

    history = None if fresh else find_history(open_knowledge, settings.home, tuned, search_goal)
    if live and (file, data, npy) != (None, None, None):
        raise UsageError("--live sends recorded requests. Leave out the file, --data and --npy, or leave out --live.")
    if live:
        inputs = read_recorded_requests(open_knowledge(), tuned.app.name, tuned.app.team, tuned.workflow.name)
    else:
        inputs = [read_inputs(file, data, npy, separator=separator, encoding=encoding, decimal=decimal)]

    def build_requests(name: str) -> list[HttpRequest]:
        return [to_http(deployer, name, sample, node=node, dtype=dtype, seldon=seldon) for sample in inputs]

    with open_output(choose_progress_stream(as_json)) as output, end_on_signals(output.update, "deleting the copy"):
        report = tune_service(
            deployer,
            tuned,
            build_requests,
            search_goal,
            budget,
            cores=cores,
            gpus=gpus,
            devices=HomeDevices(settings.home),
            batches=parse_batch_sizes(batches),
            connections=connections,
            seconds=seconds,
            folder=out,
            history=history,
            observe=lambda step: output.update(format_step(step)),
            on_trial=lambda text: output.print(text, ""),
        )
    chart = draw_tuning(report)
    respond(report.summary(), as_json, lambda: format_tuning(report))
    if out is not None:
        remark(as_json, name_written(write_files(report, out, chart)))
    if log and report.result.trials:
        run = log_tuning(open_knowledge(), settings.home, report, chart)
        remark(as_json, f"Logged as the run {run.name} ({run.run_id}) of {tuned.app.name}.")
    if (command := suggest_command(report)) is not None and not apply:
        remark(as_json, f"Apply it: {command}")
    if apply and report.result.winner is not None:
        _apply(report, report.result.winner, as_json)
    if report.result.interrupted:
        raise typer.Exit(STOPPED.code)


def parse_batch_sizes(text: str | None) -> list[int]:
    """Return the batch sizes ``4,16`` as numbers."""
    return [] if text is None else parse_counts(text, "--batches", what="sizes", example="4,16")


def _apply(report: TuningReport, winner: Candidate, as_json: bool) -> None:
    from scanflow.backends.service_change import ServiceChange
    from scanflow_client.progress import show_service_changes
    from scanflow_client.tuning_report import format_shape_options

    name, before = report.target.workflow.name, report.result.default
    if winner.batch is not None:
        remark(as_json, f"Set the batch size in the application: sf.Batching(max_size={winner.batch}).")
    change = ServiceChange(
        instances=winner.instances,
        cores=winner.cores,
        gpu=winner.gpu or None,
        affinity=winner.affinity,
        threads=winner.threads,
    )
    with show_service_changes(choose_progress_stream(as_json)) as observe:
        open_deployer().change(name, change, observe=observe)
    remark(as_json, f"Resized {name}. Undo: scanflow scale {name} {before.instances} {format_shape_options(before)}")
