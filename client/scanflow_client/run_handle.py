"""A run that goes on while the program that began it does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from scanflow.backends.records import RunRecord

if TYPE_CHECKING:
    from scanflow_client.client import Client


class RunHandle:
    """What ``client.run(app, wait=False)`` returns. It may be awaited: ``record = await handle``."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """Return the run once it has ended. Ctrl-C ends the wait, and the run goes on.

        Raises:
            StepFailedError: it failed; with the frames of the step.
            UnavailableError: it goes on after ``timeout_s``.
        """
        return self.client.wait(self.name, timeout_s=timeout_s)

    def show(self) -> RunRecord:
        """Return the run with its tasks, as it stands."""
        return self.client.show(self.name)

    def stop(self) -> RunRecord:
        """Ask the run to stop; it can be resumed."""
        return self.client.stop(self.name)

    def output(self, step: str, name: str = "result") -> Any:
        """See :meth:`~scanflow_client.client.Client.output`."""
        return self.client.output(step, name, run=self.name)

    def logs(self, task: str) -> str:
        """Return what a task printed so far."""
        return self.client.logs(task, run=self.name)

    def __await__(self) -> Generator[Any, None, RunRecord]:
        return asyncio.to_thread(self.wait).__await__()

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"<run {self.name}>"
