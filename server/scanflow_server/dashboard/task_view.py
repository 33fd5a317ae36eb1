"""What a run's page shows of one task: its state, the end of its log, its outputs and its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote

from scanflow.app.quantities import format_bytes
from scanflow.backends.job_times import is_job
from scanflow.backends.rank_files import RANKS
from scanflow.backends.run_records import StepFile, TaskRecord
from scanflow.errors import ScanflowError
from scanflow.reports.output_views import PICTURES, OutputView, build_output_view, guess_media_type, has_file_view
from scanflow_server.dashboard.dashboard_page import PageRequest
from scanflow_server.dashboard.page_cells import CellTable, LinkCell
from scanflow_server.dashboard.run_downloads import read_attempt
from scanflow_server.run_reader import LogEnd, RunReader

_MAX_ATTEMPTS: Final = 10
_MAX_FILES: Final = 50
_MAX_VIEWS: Final = 6
_MAX_PICTURE_BYTES: Final = 5 * 2**20


class TaskView(NamedTuple):
    task: TaskRecord
    attempt: int
    attempts: Sequence[LinkCell]
    logs: Sequence[tuple[str, LogEnd]]
    """The end of each stream that is not empty."""

    log_problem: str
    outputs: Sequence[OutputView]
    output_problem: str
    pictures: Sequence[LinkCell]
    files: CellTable


def load_task_view(request: PageRequest, reader: RunReader, task: TaskRecord) -> TaskView:
    attempt, files = read_attempt(request) or task.attempts, _list_files(reader, task)
    logs, log_problem = _load_logs(reader, task, attempt)
    outputs, output_problem = _load_outputs(reader, task)
    links = {file: LinkCell(file.name, _locate_file(reader, file)) for file in files}
    rows = [(link, format_bytes(file.size_bytes)) for file, link in links.items()]
    return TaskView(
        task=task,
        attempt=attempt,
        attempts=[
            LinkCell(str(number), request.build_address(task=task.task, attempt=number) + "#task")
            for number in range(max(1, task.attempts - _MAX_ATTEMPTS + 1), task.attempts + 1)
        ],
        logs=logs,
        log_problem=log_problem,
        outputs=[*outputs, *islice(_iterate_file_views(reader, files), _MAX_VIEWS)],
        output_problem=output_problem,
        pictures=[links[file] for file in files if _is_picture(file)][:_MAX_VIEWS],
        files=CellTable(("file", "size"), rows),
    )


def _list_files(reader: RunReader, task: TaskRecord) -> list[StepFile]:
    """Return the files that a task left, without those that a job's launcher and its ranks' shells work with."""
    hidden = f"{RANKS}/" if is_job(reader.run) else ""
    files = (file for file in reader.list_files(task.task) if not (hidden and file.name.startswith(hidden)))
    return list(islice(files, _MAX_FILES))


def _load_logs(reader: RunReader, task: TaskRecord, attempt: int) -> tuple[list[tuple[str, LogEnd]], str]:
    """Return the ends of the task's logs, of a failed one its errors first; or why there are none."""
    try:
        stdout, stderr = (
            (stream, reader.read_log_tail(task.task, stream, attempt or None)) for stream in ("stdout", "stderr")
        )
    except ScanflowError as error:
        return [], str(error)
    return [log for log in ((stderr, stdout) if task.state == "failed" else (stdout, stderr)) if log[1].text], ""


def _load_outputs(reader: RunReader, task: TaskRecord) -> tuple[list[OutputView], str]:
    """Return the task's outputs, or why they are not shown."""
    try:
        outputs = reader.read_outputs(task.task) if task.state == "succeeded" else {}
    except ScanflowError as error:
        return [], str(error)
    return [build_output_view(name, value) for name, value in outputs.items()], ""


def _iterate_file_views(reader: RunReader, files: Sequence[StepFile]) -> Iterator[OutputView]:
    for file in files:
        try:
            view = reader.find_file_view(file) if has_file_view(file.name) else None
        except (ScanflowError, OSError):  # its row in the table of files stays
            continue
        if view is not None:
            yield view


def _is_picture(file: StepFile) -> bool:
    return guess_media_type(file.name) in PICTURES and file.size_bytes <= _MAX_PICTURE_BYTES


def _locate_file(reader: RunReader, file: StepFile) -> str:
    return f"/runs/{reader.run.name}/files/{quote(file.task)}/{quote(file.name)}"
