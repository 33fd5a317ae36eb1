"""The one way to run and serve applications: the port. ``scanflow.testing.deployer`` holds the suite for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.backends.port import Stream
from scanflow.backends.records import Observer, RunRecord

if TYPE_CHECKING:
    from scanflow.backends.port import ServiceClient
    from scanflow.backends.service_change import ServiceChange, Sizing
    from scanflow.backends.service_records import Explanation, ServiceObserver, ServiceRecord
    from scanflow.transport import Answer


class Deployer(Protocol):
    """Runs batch workflows and serves online ones somewhere, and tells of both.

    A run's name may be ``@latest`` everywhere; a service is called by its workflow's name. All methods raise
    ``NotFoundError`` for what is not there, ``UsageError`` for what cannot be done as asked, and ``UnavailableError``
    for what may pass. What changes a service returns when the change is in effect, and tells of its progress on the
    way; when it cannot come into effect it raises, and the service goes on as it was.
    """

    def plan(self, app: Application, workflow: str | None = None, *, parameters: Mapping[str, Any] = ...) -> Plan:
        """Check a workflow and return what running it would do, without doing it."""
        ...

    def run(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] = ...,
        source: Path | None = None,
        observe: Observer = ...,
    ) -> RunRecord:
        """Run a workflow to its end. ``source`` is the file it came from, which ``resume`` and ``spin`` read again."""
        ...

    def resume(self, run: str, *, app: Application | None = None, observe: Observer = ...) -> RunRecord:
        """Go on with a run from where it stands; what finished is kept."""
        ...

    def spin(
        self,
        step: str,
        *,
        run: str,
        app: Application | None = None,
        parameters: Mapping[str, Any] = ...,
        observe: Observer = ...,
    ) -> RunRecord:
        """Run one step again on the inputs it had in a past run."""
        ...

    def stop(self, run: str) -> RunRecord:
        """Ask a run to stop."""
        ...

    def show(self, run: str) -> RunRecord:
        """Return a run with its tasks."""
        ...

    def runs(self, *, limit: int = ...) -> list[RunRecord]:
        """Return the newest runs first, without their tasks."""
        ...

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        """Return what a step left for later ones."""
        ...

    def logs(
        self, run: str, task: str, *, stream: Stream = ..., attempt: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield what a task wrote; with ``follow``, go on until it has ended. ``both`` streams are interleaved."""
        ...

    def deploy(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        sizing: Sizing | None = None,
        port: int | None = None,
        source: Path | None = None,
        key: str | None = None,
        observe: ServiceObserver = ...,
    ) -> ServiceRecord:
        """Serve an online workflow; where it is served already, change it to what it says now, without a gap.

        Args:
            app: The application; everything else of it stays as it is.
            workflow: Which of its workflows; None: the only one.
            sizing: How many instances, and how large. What it leaves out is as the workflow says.
            port: The port of HTTP. None: as the workflow says, else the next one that is free.
            source: The file it came from.
            key: Names this request: repeated with the same key, it is carried out once.
            observe: Is given the progress.
        """
        ...

    def services(self) -> list[ServiceRecord]:
        """Return what is deployed, by name."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service."""
        ...

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Change a service while it serves, and return it once the change is in effect.

        Args:
            name: The service.
            change: What to change; the rest stays as it is.
            key: Names this request: repeated with the same key, it is carried out once.
            observe: Is given the progress.
        """
        ...

    def explain(self, name: str) -> Explanation:
        """Return why a service has as many instances as it has."""
        ...

    def service_logs(
        self, name: str, *, instance: str | None = None, follow: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        """Yield instances' names and what they wrote; with ``follow``, go on until it is deleted."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver = ...) -> None:
        """Drain in-flight requests, then delete the service. Models, and what was recorded, are kept."""
        ...

    def predict(
        self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None, binary: bool = True
    ) -> Answer:
        """Return a service's answer to an array, a list, or a mapping of input names to these.

        Raises:
            InvalidError: the service refuses the input.
            ServiceFailedError: a component of its graph failed on it.
        """
        ...

    def connect(self, name: str) -> ServiceClient:
        """Return a client of a service, to be closed: for its documents, and for requests as they are."""
        ...
