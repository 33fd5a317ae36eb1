"""``sf.Client``: run and serve applications from a script or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.outputs import pick_output
from scanflow.backends.records import Observer, RunRecord
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.errors import StepFailedError, UsageError
from scanflow.settings import Settings
from scanflow_client.words import failure_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanflow.backends.service_records import Explanation, Judgement, ServiceObserver, ServiceRecord
    from scanflow.transport import Answer

__all__ = ["Client"]


class Client:
    """Runs and serves workflows, and looks at past runs and at services.

    ``Client()`` works inside this process, below ``~/.scanflow`` (or ``$SCANFLOW_HOME``, or ``home=``);
    ``Client("http://127.0.0.1:46666")`` has a server do the work, such as the one of ``scanflow up``. A run that fails
    raises :class:`~scanflow.errors.StepFailedError`; the run is kept, and ``resume`` goes on with it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        home: Path | str | None = None,
        progress: bool | None = None,
    ) -> None:
        """Make a client of the server at ``url``, or without one of this process itself.

        Args:
            url: The server's address.
            token: What lets this client in; None: ``$SCANFLOW_TOKEN``, where that is set.
            home: The home folder, for a client without a server.
            progress: Print a line a step; None: where a person is looking.

        Raises:
            UsageError: the address is none, or what is given does not belong together.
        """
        settings = Settings.from_environment()
        self._deployer: Deployer
        if url is not None:
            if home is not None:
                raise UsageError(f"Client({url!r}, home=...): a server has a home folder of its own. Leave out one.")
            from scanflow.deployer import RemoteDeployer

            self._deployer = RemoteDeployer(url, settings.secret if token is None else token)
        elif token is not None:
            raise UsageError("Client(token=...): a token is for a server. Name it: Client('http://...', token=...).")
        else:
            own = settings if home is None else settings.model_copy(update={"home": Path(home)})
            self._deployer = EmbeddedDeployer(own)
        self._progress = _somebody_looks() if progress is None else progress

    def run(
        self, what: Application | Workflow, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> RunRecord:
        """Run a workflow to its end.

        Raises:
            StepFailedError: a step failed; the message has its own frames and the root cause.
            UsageError: the application cannot be run as it is.
        """
        app = _application(what)
        with self._observer() as observe:
            return _checked(self._deployer.run(app, workflow, parameters=parameters or {}, observe=observe))

    def resume(self, run: str = "@latest", *, app: Application | Workflow | None = None) -> RunRecord:
        """Go on with a run from where it stands. Hand in ``app`` to go on with changed steps."""
        with self._observer() as observe:
            application = None if app is None else _application(app)
            return _checked(self._deployer.resume(run, app=application, observe=observe))

    def spin(
        self,
        step: str,
        *,
        run: str = "@latest",
        app: Application | Workflow | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> RunRecord:
        """Run one step anew on the inputs it had in a past run."""
        with self._observer() as observe:
            application = None if app is None else _application(app)
            done = self._deployer.spin(step, run=run, app=application, parameters=parameters or {}, observe=observe)
            return _checked(done)

    def plan(
        self, what: Application | Workflow, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Plan:
        """Check a workflow, and return what running it would do and take."""
        return self._deployer.plan(_application(what), workflow, parameters=parameters or {})

    def stop(self, run: str) -> RunRecord:
        """Ask a run to stop; it can be resumed."""
        return self._deployer.stop(run)

    def show(self, run: str = "@latest") -> RunRecord:
        """Return a run with its tasks."""
        return self._deployer.show(run)

    def runs(self, *, limit: int = 20) -> list[RunRecord]:
        """Return the newest runs first."""
        return self._deployer.runs(limit=limit)

    def output(self, step: str, name: str = "result", *, run: str = "@latest") -> Any:
        """Return what a step left: the value its function returned, or an output it named; a list for a fan-out.

        Raises:
            NotFoundError: the step did not finish in that run, or left no such output.
        """
        found = self._deployer.outputs(run, step)
        if isinstance(found, list):
            return [pick_output(outputs, name, step) for outputs in found]
        return pick_output(found, name, step)

    def logs(self, task: str, *, run: str = "@latest", attempt: int | None = None) -> str:
        """Return what a task printed: its standard output, then its standard error."""
        return b"".join(self._log_blocks(task, run, attempt)).decode("utf-8", errors="replace")

    def deploy(
        self,
        what: Application | Workflow,
        workflow: str | None = None,
        *,
        instances: int | None = None,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
        port: int | None = None,
    ) -> ServiceRecord:
        """Serve an online workflow; where it is served already, change it without a gap. None: as the workflow says.

        Raises:
            UsageError: it cannot be served as it is.
        """
        app = _application(what)
        with self._changes() as observe:
            return self._deployer.deploy(
                app, workflow, instances=instances, cores=cores, affinity=affinity, port=port, observe=observe
            )

    def services(self) -> list[ServiceRecord]:
        """Return what is deployed, by name."""
        return self._deployer.services()

    def service(self, name: str) -> ServiceRecord:
        """Return one service with its instances and revisions."""
        return self._deployer.service(name)

    def scale(
        self,
        name: str,
        instances: int | None = None,
        *,
        cores: float | None = None,
        affinity: AffinityMode | None = None,
    ) -> ServiceRecord:
        """Cut a service into other instances while it serves. None: as it is."""
        with self._changes() as observe:
            return self._deployer.scale(name, instances=instances, cores=cores, affinity=affinity, observe=observe)

    def traffic(
        self,
        name: str,
        model: str,
        *,
        weight: float = 0.0,
        shadow: bool = False,
        node: str | None = None,
        judgement: Judgement | None = None,
    ) -> ServiceRecord:
        """Put a version of a model, such as ``models:/cnn/3``, on trial: a share of the requests, or a copy of each."""
        with self._changes() as observe:
            return self._deployer.traffic(
                name, model, node=node, weight=weight, shadow=shadow, judgement=judgement, observe=observe
            )

    def promote(self, name: str, model: str | None = None, *, node: str | None = None) -> ServiceRecord:
        """Let the version on trial answer everything, or swap ``model`` in at once."""
        with self._changes() as observe:
            return self._deployer.promote(name, model, node=node, observe=observe)

    def rollback(self, name: str) -> ServiceRecord:
        """Take back the version on trial; without one, return to what was served before, cut as it was then."""
        with self._changes() as observe:
            return self._deployer.rollback(name, observe=observe)

    def explain(self, name: str) -> Explanation:
        """Return why a service has as many instances as it has."""
        return self._deployer.explain(name)

    def service_logs(self, name: str, *, instance: str | None = None) -> str:
        """Return what a service's instances wrote."""
        blocks = (block for _, block in self._deployer.service_logs(name, instance=instance))
        return b"".join(blocks).decode("utf-8", errors="replace")

    def delete(self, name: str) -> None:
        """Answer what is begun, then end a service and forget it."""
        with self._changes() as observe:
            self._deployer.delete(name, observe=observe)

    def predict(self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None) -> NDArray[Any]:
        """Return a service's answer to an array, a list of rows, or a mapping of input names to these.

        ``dtype`` is what numbers are sent as, such as ``float32``; None: as they are.

        Raises:
            InvalidError: the service refuses the input.
            ServiceFailedError: a component of its graph failed on it.
            UsageError: the answer has several outputs; :meth:`ask` returns all of them.
        """
        outputs = self.ask(name, inputs, node=node, dtype=dtype).outputs
        if len(outputs) != 1:
            raise UsageError(
                f"The service {name!r} answers with {', '.join(outputs) or 'nothing'}. Ask for all: ask()."
            )
        return next(iter(outputs.values()))

    def ask(self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None) -> Answer:
        """Return all outputs of an answer, and who gave it. See :meth:`predict`."""
        return self._deployer.predict(name, inputs, node=node, dtype=dtype)

    def _log_blocks(self, task: str, run: str, attempt: int | None) -> Iterator[bytes]:
        yield from self._deployer.logs(run, task, stream="stdout", attempt=attempt)
        yield from self._deployer.logs(run, task, stream="stderr", attempt=attempt)

    def _observer(self) -> _Observing:
        return _Observing(show=self._progress)

    def _changes(self) -> AbstractContextManager[ServiceObserver]:
        if not self._progress:
            return nullcontext(lambda _change: None)
        from scanflow_client.progress import changes_on

        return changes_on(sys.stdout)


class _Observing:
    """The progress display while a call runs, or nothing."""

    def __init__(self, *, show: bool) -> None:
        self._show = show

    def __enter__(self) -> Observer:
        if not self._show:
            return lambda _event: None
        from scanflow_client.progress import progress_for

        self._display = progress_for(sys.stdout)
        return self._display.__enter__()

    def __exit__(self, *details: Any) -> None:
        if self._show:
            self._display.__exit__(*details)


def _application(what: Application | Workflow) -> Application:
    if isinstance(what, Application):
        # A relative folder is relative to where the script or notebook runs.
        return what.replace(app_dir=str(Path(what.app_dir).absolute()))
    return Application(name=what.name, workflows=[what], app_dir=str(Path.cwd()))


def _checked(record: RunRecord) -> RunRecord:
    if record.state == "failed":
        raise StepFailedError("\n".join(failure_block(record)))
    return record


def _somebody_looks() -> bool:
    return "ipykernel" in sys.modules or sys.stdout.isatty()
