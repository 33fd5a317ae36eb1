"""The one way to run and serve applications: the port. ``scanflow.testing.deployer`` holds the suite for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.resources import AffinityMode
from scanflow.backends.records import Observer, RunRecord

if TYPE_CHECKING:
    from scanflow.backends.service_records import Explanation, Judgement, ServiceObserver, ServiceRecord
    from scanflow.transport import Answer, Reply

__all__ = ["Deployer"]


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
        """Run one step anew on the inputs it had in a past run."""
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
        self,
        run: str,
        task: str,
        *,
        stream: Literal["stdout", "stderr"] = ...,
        attempt: int | None = None,
        follow: bool = False,
    ) -> Iterator[bytes]:
        """Yield what a task wrote; with ``follow``, go on until it has ended."""
        ...

    def deploy(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        port: int | None = None,
        source: Path | None = None,
        observe: ServiceObserver = ...,
    ) -> ServiceRecord:
        """Serve an online workflow; where it is served already, change it to what it says now, without a gap.

        Args:
            app: The application; everything else of it stays as it is.
            workflow: Which of its workflows; None: the only one.
            instances: How many copies. None: as the workflow says.
            cores: Cores of one instance. None: as the workflow says.
            affinity: Where an instance may run. None: as the workflow says.
            port: The port of HTTP. None: as the workflow says, else the next one that is free.
            source: The file it came from.
            observe: Is told of the progress.
        """
        ...

    def services(self) -> list[ServiceRecord]:
        """Return what is deployed, by name."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one deployed service."""
        ...

    def scale(
        self,
        name: str,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        observe: ServiceObserver = ...,
    ) -> ServiceRecord:
        """Cut a service into other instances while it serves. None: as it is."""
        ...

    def traffic(
        self,
        name: str,
        model: str,
        *,
        node: str | None = None,
        weight: float = 0.0,
        shadow: bool = False,
        judgement: Judgement | None = None,
        observe: ServiceObserver = ...,
    ) -> ServiceRecord:
        """Give a share of the requests, or with ``shadow`` a copy of each, to another version of a model.

        Args:
            name: The service.
            model: The version: ``models:/name/3`` or ``models:/name@alias``.
            node: The node whose model it is; None: the only one with a model.
            weight: Share of the requests, from 0 to 1.
            shadow: Copy the requests, and only count the answers.
            judgement: When it is promoted or taken back without anybody's hand.
            observe: Is told of the progress.
        """
        ...

    def promote(
        self, name: str, model: str | None = None, *, node: str | None = None, observe: ServiceObserver = ...
    ) -> ServiceRecord:
        """Let the version under trial answer everything; with ``model``, swap that version in at once."""
        ...

    def rollback(self, name: str, *, observe: ServiceObserver = ...) -> ServiceRecord:
        """Take back the version under trial; without one, go back to what was served before, and how."""
        ...

    def explain(self, name: str) -> Explanation:
        """Return why a service has as many instances as it has."""
        ...

    def service_logs(
        self, name: str, *, instance: str | None = None, follow: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        """Yield whose words and what a service's instances wrote; with ``follow``, go on until it is deleted."""
        ...

    def delete(self, name: str, *, observe: ServiceObserver = ...) -> None:
        """Answer what is begun, then end a service and forget it. Models, and what was recorded, are kept."""
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

    def metadata(self, name: str, *, node: str | None = None) -> dict[str, Any]:
        """Return what a service, or one node of its graph, says of itself: ``inputs`` and ``outputs`` with their names,
        types and shapes, as far as they are known."""
        ...

    def send(self, name: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Return a service's answer to a request as it is: bytes to and from one of its HTTP paths.

        Raises:
            The same as :meth:`predict`.
        """
        ...
