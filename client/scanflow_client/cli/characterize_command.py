"""``scanflow characterize``: measure the resources that a program, a service or an MPI job needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow_client.cli.command_options import (
    DecimalOption,
    EncodingOption,
    JsonOption,
    SeparatorOption,
    load_settings,
    open_deployer,
    parse_counts,
)
from scanflow_client.cli.command_output import choose_progress_stream, respond
from scanflow_client.cli.service_commands import DataOption, NpyOption, read_inputs

if TYPE_CHECKING:
    from scanflow_client.predict_io import PredictRequest
    from scanflow_client.tuning_target import TuningTarget

_MISSING_COUNTERS = {
    "cpu-migrations": "migrations between CPUs: perf is not installed, or not permitted to count",
    "cache-misses": "cache misses: this machine does not count them, or perf is not permitted to",
}
"""Messages for perf events that are not counted."""


def characterize(
    command: Annotated[
        list[str], Argument(metavar="-- COMMAND...|SERVICE|APP:JOB", help="A program, a service or an MPI job.")
    ],
    file: Annotated[
        str | None, Option("--file", metavar="FILE", help="The request to send to a service, as for scanflow predict.")
    ] = None,
    data: DataOption = None,
    npy: NpyOption = None,
    separator: SeparatorOption = "",
    encoding: EncodingOption = "",
    decimal: DecimalOption = "",
    cores: Annotated[
        str | None,
        Option("--cores", metavar="N,N", help="Numbers of cores to try. Default: 1,2,4 and so on, up to all."),
    ] = None,
    batches: Annotated[
        str | None,
        Option("--batches", metavar="N,N", help="Sizes of batches to try of a service with a GPU. Default: 1,4,16,64."),
    ] = None,
    rounds: Annotated[int, Option("--rounds", metavar="N", min=1, max=100, help="Runs on each number of cores.")] = 3,
    memory: Annotated[
        bool,
        Option(
            "--memory/--no-memory",
            help="Search for the least memory that a program, or the GPU of a service, runs with.",
        ),
    ] = True,
    timeout: Annotated[str, Option("--timeout", metavar="TIME", help="Maximum duration of a run.")] = "10m",
    write: Annotated[
        str | None,
        Option("--write", metavar="APP:NAME", help="Print a patch that sets the resources in a file: app.py:train."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Recommend resources for a program, a service or an MPI job.

    It is measured with increasing numbers of cores; a service is measured on a copy.

    Examples:
        scanflow characterize -- python train.py
        scanflow characterize --write app.py:train -- python train.py
        scanflow characterize app.py:serve --data '[[1.0, 2.0]]'
    """
    from scanflow.app.quantities import parse_duration
    from scanflow.characterization.characterization_study import characterize as measure
    from scanflow.characterization.characterization_study import choose_core_counts, choose_placements
    from scanflow.characterization.measured_program import find_memory_group_problem, list_counters, run_program
    from scanflow.placement.sysfs import read_topology
    from scanflow_client.formatting.characterization_text import build_characterization_json, format_characterization
    from scanflow_client.progress import open_output

    if write is not None:
        build_patch(write, "")  # fail before minutes of measurement
    machine, limit_s = read_topology(), parse_duration(timeout, what="--timeout")
    counts = (
        choose_core_counts(machine)
        if cores is None
        else parse_counts(cores, "--cores", what="numbers of cores", example="1,2,4")
    )
    has_request = (file, data, npy) != (None, None, None)
    target = find_workflow(command, is_service=has_request)
    if target is not None:
        read_sent = partial(read_inputs, file, data, npy, separator=separator, encoding=encoding, decimal=decimal)
        sizes = None if batches is None else parse_counts(batches, "--batches", what="sizes", example="1,4,16")
        resources = _characterize_workflow(
            target, counts, rounds, read_sent, batches=sizes, search_memory=memory, as_json=as_json
        )
        _print_patch(write, resources, as_json)
        return
    if has_request:
        raise UsageError("--data, --npy and --file are requests to a service, and this is a program. Leave them out.")
    missing = [] if find_memory_group_problem() is None else [f"memory limits. {find_memory_group_problem()}"]
    missing += [words for event, words in _MISSING_COUNTERS.items() if event not in list_counters()]
    with open_output(choose_progress_stream(as_json)) as output:
        characterization = measure(
            lambda placement, limit: run_program(command, placement, timeout_s=limit_s, limit_bytes=limit),
            choose_placements(machine, counts),
            rounds=rounds,
            search_memory=memory and find_memory_group_problem() is None,
            missing=missing,
            observe=output.update,
        )
    document = build_characterization_json(characterization)
    respond(document, as_json, lambda: format_characterization(characterization))
    _print_patch(write, str(characterization.recommendation), as_json)


def find_workflow(command: Sequence[str], *, is_service: bool = False) -> TuningTarget | None:
    """Return the service or the MPI job that a single word names; None: the command is a program.

    ``is_service``: a request was given, so that a file alone is an application, and no program.
    """
    from scanflow_client.tuning_target import TuningTarget

    (first, *more) = command
    file, colon, _ = first.rpartition(":")
    path = file if colon else first if is_service else ""
    is_file = Path(path).suffix in {".py", ".yaml", ".yml"}
    if more or (not is_file and first not in {record.name for record in open_deployer().services(instances=False)}):
        return None
    return TuningTarget.find(open_deployer(), first, types=("online", "mpi"))


def _characterize_workflow(
    target: TuningTarget,
    counts: Sequence[int],
    rounds: int,
    read_sent: Callable[[], PredictRequest],
    *,
    batches: Sequence[int] | None,
    search_memory: bool,
    as_json: bool,
) -> str:
    """Measure a workflow, print the result, and return the recommended resources."""
    from scanflow.backends.device_claims import HomeDevices
    from scanflow_client.characterize_workflow import BATCHES, characterize_job, characterize_service
    from scanflow_client.formatting.characterization_text import format_workflow_characterization
    from scanflow_client.predict_io import HttpRequest, to_http
    from scanflow_client.progress import open_output
    from scanflow_client.signals import end_on_signals

    deployer = open_deployer()
    with open_output(choose_progress_stream(as_json)) as output, end_on_signals(output.update, "deleting the copy"):
        if target.workflow.type == "mpi":
            result = characterize_job(
                deployer, target.app, target.workflow, counts, rounds=rounds, observe=output.update
            )
        else:
            sent = read_sent()

            @cache
            def build_request(name: str) -> HttpRequest:
                return to_http(deployer, name, sent, node=None, dtype=None, seldon=False)

            result = characterize_service(
                deployer,
                target,
                build_request,
                counts,
                rounds=rounds,
                batches=batches or BATCHES,
                search_memory=search_memory,
                devices=HomeDevices(load_settings().home),
                observe=output.update,
            )
    respond(asdict(result), as_json, lambda: format_workflow_characterization(result))
    return str(result.recommendation)


def _print_patch(target: str | None, resources: str, as_json: bool) -> None:
    if target is not None:
        print(build_patch(target, resources), end="", file=sys.stderr if as_json else sys.stdout)


def build_patch(target: str, resources: str) -> str:
    """Return the patch of ``app.py:NAME`` that sets its resources."""
    from scanflow_client.resources_patch import build_resources_patch

    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise InvalidError(f"--write {target!r} names no step. Write the file and the step: --write app.py:train")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise NotFoundError(f"{file!r:.300} cannot be read: {why}. Name another: --write app.py:train") from error
    return build_resources_patch(text, file, name, resources)
