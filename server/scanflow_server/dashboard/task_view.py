"""What a run's page shows of one task: its state, the end of its log, its outputs and its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, get_args
from urllib.parse import quote, urlencode

from scanflow.backends.log_reader import Stream
from scanflow.backends.run_records import TaskRecord
from scanflow.deployer import TaskLog
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, TooLargeError, UnsupportedError, did_you_mean
from scanflow.text.printable import make_printable
from scanflow_server.dashboard.output_views import OutputView, build_file_table, build_output_view, list_file_views
from scanflow_server.dashboard.page_cells import CellTable, Link
from scanflow_server.dashboard.run_files import read_attempt
from scanflow_server.dashboard.run_reader import RunReader

_LOG_BYTES: Final = 64 * 1024
_MAX_LINES: Final = 500
_MAX_ATTEMPTS: Final = 10
_MAX_FILES: Final = 50


class LogView(NamedTuple):
    """The end of what a task wrote."""

    stream: str
    text: str
    address: str
    """Of the whole log."""


class TaskView(NamedTuple):
    task: TaskRecord
    attempts: Sequence[Link]
    attempt: int
    logs: Sequence[LogView]
    log_problem: str
    outputs: Sequence[OutputView]
    output_problem: str
    files: CellTable | None
    """None: the backend does not list them."""


def choose_task(tasks: Sequence[TaskRecord], name: str) -> TaskRecord | None:
    """Return the task that a page shows: of those of that name or step, or of all without a name, the first that
    failed, else one that runs, else the last that began. Pure.

    Raises:
        NotFoundError: there is no task of that name.
    """
    matches = [task for task in tasks if task.task == name] or [task for task in tasks if name in {"", task.step}]
    if name and not matches:
        raise NotFoundError(f"The run has no task {name!r}.{did_you_mean(name, [task.task for task in tasks])}")
    for state in ("failed", "running"):
        if match := next((task for task in matches if task.state == state), None):
            return match
    return max(matches, key=lambda task: task.began or 0.0, default=None)


def load_task_view(reader: RunReader, task: TaskRecord | None) -> TaskView | None:
    if task is None:
        return None
    request, attempt = reader.request, read_attempt(reader.request) or task.attempts
    logs, log_problem = _load_logs(reader, task, attempt)
    outputs, output_problem = _load_outputs(reader, task)
    files, views = _load_files(reader, task)
    attempts = range(max(1, task.attempts - _MAX_ATTEMPTS + 1), task.attempts + 1)
    return TaskView(
        task=task,
        attempts=[
            Link(str(number), request.build_address(task=task.task, attempt=number) + "#task") for number in attempts
        ],
        attempt=attempt,
        logs=logs,
        log_problem=log_problem,
        outputs=[*outputs, *views],
        output_problem=output_problem,
        files=files,
    )


def _load_logs(reader: RunReader, task: TaskRecord, attempt: int) -> tuple[list[LogView], str]:
    """Return the ends of the task's logs, or why there are none."""
    logs = []
    try:
        for stream in get_args(Stream)[:2]:
            of = TaskLog(reader.run.name, task.task, stream, attempt or None)
            content = reader.request.context.deployer.read_log_tail(of, _LOG_BYTES)
            lines = make_printable(content.decode("utf-8", "replace")).splitlines()[-_MAX_LINES:]
            query = urlencode({"stream": stream, "attempt": attempt})
            address = f"/runs/{reader.run.name}/logs/{quote(task.task)}?{query}"
            logs.append(LogView(stream, "\n".join(lines), address))
    except ScanflowError as error:
        return [], str(error)
    return [log for log in logs if log.text], ""


def _load_outputs(reader: RunReader, task: TaskRecord) -> tuple[list[OutputView], str]:
    """Return the task's outputs, or why they are not shown."""
    try:
        outputs = reader.read_outputs(task.task)
    except NotFoundError:
        return [], ""
    except (TooLargeError, InvalidError, UnsupportedError) as error:
        return [], str(error)
    return [build_output_view(name, value) for name, value in outputs.items()], ""


def _load_files(reader: RunReader, task: TaskRecord) -> tuple[CellTable | None, list[OutputView]]:
    files = []
    with suppress(NotFoundError, UnsupportedError):
        files = reader.request.context.deployer.files(reader.run.name, task.task)[:_MAX_FILES]
    return build_file_table(reader, files) if files else None, list_file_views(reader, files)
