"""A handle of a run: of one that has ended, that goes on in the background, or of an earlier one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import Any, Protocol, Self

from scanflow.backends.log_reader import Stream
from scanflow.backends.run_records import RunRecord, RunState, StepFile, TaskRecord
from scanflow.names import RunName
from scanflow_client.listing import Listing


class RunsClient(Protocol):
    """What a handle needs of :class:`~scanflow_client.client.Client`, which makes it."""

    def link_runs(self, *names: str) -> Mapping[str, str]: ...

    def wait(self, run: str = ..., *, timeout_s: float | None = None) -> RunHandle: ...

    def show(self, run: str = ...) -> RunRecord: ...

    def stop(self, run: str) -> RunRecord: ...

    def output(self, step: str, name: str = ..., *, run: str = ...) -> Any: ...

    def files(self, step: str | None = None, *, run: str = ...) -> list[StepFile]: ...

    def logs(
        self, task: str | None = None, *, run: str = ..., attempt: int | None = None, stream: Stream = "both"
    ) -> str: ...


class RunHandle:
    """A run: of ``client.run(app)``, ``client.run(app, wait=False)``, or an earlier one: ``client.run("NAME")``.

    What its record has (``state``, ``seconds``, ``error``, ``folder``, ...) is had from the handle too, in its current
    state. A run in the background may be awaited: ``await handle``.
    """

    def __init__(self, client: RunsClient, record: RunRecord) -> None:
        self.client, self._record = client, record

    @property
    def name(self) -> RunName:
        return self._record.name

    @property
    def state(self) -> RunState:
        return self.record.state

    @property
    def tasks(self) -> Listing[TaskRecord]:
        """The run's tasks, in their current states: a step, or an item of a fan-out."""
        return Listing(self.record.tasks, "run_text:format_tasks")

    @property
    def record(self) -> RunRecord:
        """The run's record, in its current state; of one that succeeded, as it was when that was seen."""
        return self._record if self._record.state == "succeeded" else self.show()

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until the run has ended, and return this handle. Ctrl-C ends the wait, and the run goes on.

        Raises:
            StepFailedError: the run failed; with the frames of the step.
            UnavailableError: the run continues after ``timeout_s``.
        """
        self._record = self.client.wait(self.name, timeout_s=timeout_s).record
        return self

    def show(self) -> RunRecord:
        """Return the run with its tasks, in its current state."""
        self._record = self.client.show(self.name)
        return self._record

    def stop(self) -> RunRecord:
        """Request the run to stop; it can be resumed."""
        return self.client.stop(self.name)

    def output(self, step: str, name: str = "result") -> Any:
        """Return an output of a step, as :meth:`~scanflow_client.client.Client.output` does."""
        return self.client.output(step, name, run=self.name)

    def files(self, step: str | None = None) -> list[StepFile]:
        """Return the files that the steps left, or one step, as :meth:`~scanflow_client.client.Client.files` does."""
        return self.client.files(step, run=self.name)

    def logs(self, task: str | None = None, *, attempt: int | None = None, stream: Stream = "both") -> str:
        """Return what the steps wrote so far, as :meth:`~scanflow_client.client.Client.logs` does."""
        return self.client.logs(task, run=self.name, attempt=attempt, stream=stream)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.record, name)

    def __dir__(self) -> list[str]:
        own = (name for name in super().__dir__() if not name.startswith("_"))
        return sorted({*own, *(name for name in dir(self._record) if not name.startswith("_"))})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RunHandle):
            return self.record == other.record
        return self.record == other if isinstance(other, RunRecord) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __await__(self) -> Generator[Any, None, Self]:
        return asyncio.to_thread(self.wait).__await__()

    @property
    def links(self) -> Mapping[str, str]:
        """The address of its page, by its name; none without a server."""
        return self.client.link_runs(self.name)

    def __repr__(self) -> str:
        return f"<run {self.name}>"
