"""A handle of a run in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from scanflow.backends.records import RunRecord

if TYPE_CHECKING:
    from scanflow_client.client import Client


class RunHandle:
    """A run in the background, from ``client.run(app, wait=False)``. It may be awaited: ``record = await handle``."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name

    def wait(self, timeout_s: float | None = None) -> RunRecord:
        """Return the run once it has ended. Ctrl-C ends the wait, and the run goes on.

        Raises:
            StepFailedError: the run failed; with the frames of the step.
            UnavailableError: the run continues after ``timeout_s``.
        """
        return self.client.wait(self.name, timeout_s=timeout_s)

    def show(self) -> RunRecord:
        """Return the run with its tasks, in its current state."""
        return self.client.show(self.name)

    def stop(self) -> RunRecord:
        """Request the run to stop; it can be resumed."""
        return self.client.stop(self.name)

    def output(self, step: str, name: str = "result") -> Any:
        """Return an output of a step, as :meth:`~scanflow_client.client.Client.output` does."""
        return self.client.output(step, name, run=self.name)

    def logs(self, task: str) -> str:
        """Return the output of a task so far."""
        return self.client.logs(task, run=self.name)

    def __await__(self) -> Generator[Any, None, RunRecord]:
        return asyncio.to_thread(self.wait).__await__()

    def _repr_html_(self) -> str:
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"<run {self.name}>"
