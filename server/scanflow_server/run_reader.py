"""Reads what is shown of one run: its record, its definition, what its tasks wrote and left, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from scanflow.backends.log_reader import Stream
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import RunRecord, StepFile, TaskRecord
from scanflow.deployer import TaskLog
from scanflow.deployer.masked_deployer import build_masker
from scanflow.errors import NotFoundError, TooLargeError, UnsupportedError, UsageError, did_you_mean
from scanflow.reports.output_views import OutputView, build_file_view
from scanflow.text.masking import MaskedStream, Masker
from scanflow.text.printable import make_log_printable
from scanflow_server.output_values import show_outputs
from scanflow_server.server_context import ServerContext

MAX_OUTPUT_BYTES: Final = 4 * 2**20
"""How much of a step's outputs is read to be shown."""

MAX_FILE_BYTES: Final = 64 * 2**20
"""A larger file is not searched for secrets, and so is not sent."""

LOG_BYTES, MAX_LINES = 64 * 1024, 500
"""How much of the end of a log is shown."""

_FILE_BLOCK: Final = 64 * 1024


def format_parameter(value: Any) -> str:
    """Format a parameter as JSON; a text as it is, and a reference to an output as what it refers to."""
    if isinstance(value, Mapping) and set(value) == {"$from"}:
        return f"← {value['$from']}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class LogEnd(NamedTuple):
    """The end of a log."""

    text: str
    lines: int | None
    """How many lines it is, where there are more before them; None: it is the whole log."""


class RunReader:
    """Reads one run, each part once and only if it is asked for."""

    def __init__(self, context: ServerContext, run: RunRecord) -> None:
        """``run``: the record of a run that its reader may see."""
        self.run, self._deployer = run, context.deployer

    @cached_property
    def definition(self) -> RunDefinition | None:
        """None: the run is requested, and not entered yet."""
        with suppress(NotFoundError):
            return self._deployer.batch.definition(self.run.name)
        return None

    @cached_property
    def masker(self) -> Masker:
        return Masker() if self.definition is None else build_masker(self.definition)

    @property
    def steps(self) -> list[str]:
        return [] if self.definition is None else [node.name for node in self.definition.workflow.steps]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The parameters of all steps by their full names, as JSON."""
        if self.definition is None:
            return {}
        nodes = [
            node.model_dump(mode="json", include={"name", "parameters"})
            for node in self.definition.workflow.nodes
            if getattr(node, "parameters", None)
        ]
        return {
            f"{node['name']}.{name}": value
            for node in nodes
            for name, value in self.masker.mask(node["parameters"]).items()
        }

    @property
    def changed_parameters(self) -> set[str]:
        """The full names of the parameters that were changed for this run."""
        changed = {} if self.definition is None else self.definition.parameters
        return {name for name in self.parameters if not changed.keys().isdisjoint({name, name.partition(".")[2]})}

    def choose_task(self, name: str) -> TaskRecord | None:
        """Return the task to show: of those of that name or step, or of all without a name, the first that failed, else
        one that runs, else the last that began. None: there are no tasks.

        Raises:
            NotFoundError: there is no task of that name.
        """
        tasks = self.run.tasks
        matches = [task for task in tasks if task.task == name] or [task for task in tasks if name in {"", task.step}]
        if name and not matches:
            raise NotFoundError(
                f"The run {self.run.name!r} has no task {name!r}.{did_you_mean(name, [task.task for task in tasks])}"
            )
        for state in ("failed", "running"):
            if match := next((task for task in matches if task.state == state), None):
                return match
        return max(matches, key=lambda task: task.began or 0.0, default=None)

    def read_log_tail(self, task: str, stream: Stream, attempt: int | None) -> LogEnd:
        """Return the last lines that a task wrote, as :func:`make_log_printable` makes them."""
        content = self._deployer.read_log_tail(TaskLog(self.run.name, task, stream, attempt), LOG_BYTES)
        lines = make_log_printable(content).splitlines()
        shown = lines[-MAX_LINES:]
        is_cut = len(shown) < len(lines) or len(content) >= LOG_BYTES
        return LogEnd("\n".join(shown), len(shown) if is_cut else None)

    def read_outputs(self, task: str) -> Mapping[str, Any]:
        """Return the outputs of a task, or those of a step's tasks by their numbers; see :func:`show_outputs`.

        Raises:
            NotFoundError: it has none.
            TooLargeError: they are too large to be shown.
        """
        files = self._deployer.batch.output_files(self.run.name, task, max_bytes=MAX_OUTPUT_BYTES)
        outputs = self.masker.mask_outputs(show_outputs(files, keep_nan=True))
        return outputs if isinstance(outputs, Mapping) else {str(at): value for at, value in enumerate(outputs)}

    def list_files(self, task: str) -> list[StepFile]:
        """Return the files that a task left; none, where the backend does not list them."""
        with suppress(NotFoundError, UnsupportedError):
            return self._deployer.files(self.run.name, task)
        return []

    def find_file_view(self, file: StepFile) -> OutputView | None:
        """Return what is shown of a file's beginning; None: nothing."""
        with self.locate(file).open("rb") as opened:
            block, is_whole = opened.read(_FILE_BLOCK), not opened.read(1)
        shown = MaskedStream(self.masker).feed(block, last=is_whole).decode("utf-8", "replace")
        return build_file_view(file.name, shown, is_whole=is_whole)

    def read_file(self, task: str, name: str) -> bytes:
        """Return a file that a task left.

        Raises:
            NotFoundError: there is none of that name.
            UsageError: it holds a secret.
            TooLargeError, UnsupportedError: it cannot be sent.
        """
        file = next((file for file in self.list_files(task) if (file.task, file.name) == (task, name)), None)
        if file is None:
            raise NotFoundError(f"The task {task!r} of the run {self.run.name!r} left no file {name!r}.")
        if file.size_bytes > MAX_FILE_BYTES:
            raise TooLargeError(
                f"{name!r} has more than the {MAX_FILE_BYTES / 2**20:g} MiB that a server sends. Copy it from where "
                f"the backend runs: {file.path}"
            )
        content = self.locate(file).read_bytes()
        if self.masker.occurs_in_bytes(content):
            raise UsageError(
                f"{name!r} contains a secret of the application, and a server sends no secrets. Read it on the machine "
                f"with the run's home: {file.path}"
            )
        return content

    def locate(self, file: StepFile) -> Path:
        """Return where a file is on this machine.

        Raises:
            UnsupportedError: it is on another, or not among the runs of its application.
        """
        path, folder = Path(file.path).resolve(), self.run.folder
        if not folder or not path.is_relative_to(Path(folder).resolve().parent) or not path.is_file():
            raise UnsupportedError(f"{file.name!r} is not on the server's machine. Copy it from there: {file.path}")
        return path
