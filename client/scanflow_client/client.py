"""``sf.Client``: run applications from a script or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.records import Observer, RunRecord
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.errors import NotFoundError, StepFailedError, UnsupportedError, did_you_mean
from scanflow.settings import Settings
from scanflow_client.words import failure_block

__all__ = ["Client"]


class Client:
    """Runs workflows on this machine and looks at past runs.

    ``Client()`` works inside this process, below ``~/.scanflow`` (or ``$SCANFLOW_HOME``, or ``home=``). A run that
    fails raises :class:`~scanflow.errors.StepFailedError`; the run is kept, and ``resume`` goes on with it.
    """

    def __init__(self, url: str | None = None, *, home: Path | str | None = None, progress: bool | None = None) -> None:
        """Make a client. ``progress``: print a line a step; None: where a person is looking."""
        if url is not None:
            raise UnsupportedError(
                f"Client({url!r}): this version works inside its own process and cannot reach a server. Write Client()."
            )
        settings = Settings.from_environment()
        if home is not None:
            settings = settings.model_copy(update={"home": Path(home)})
        self._deployer: Deployer = EmbeddedDeployer(settings)
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
            return [_pick(outputs, name, step) for outputs in found]
        return _pick(found, name, step)

    def logs(self, task: str, *, run: str = "@latest", attempt: int | None = None) -> str:
        """Return what a task printed: its standard output, then its standard error."""
        return b"".join(self._log_blocks(task, run, attempt)).decode("utf-8", errors="replace")

    def _log_blocks(self, task: str, run: str, attempt: int | None) -> Iterator[bytes]:
        yield from self._deployer.logs(run, task, stream="stdout", attempt=attempt)
        yield from self._deployer.logs(run, task, stream="stderr", attempt=attempt)

    def _observer(self) -> _Observing:
        return _Observing(show=self._progress)


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


def _pick(outputs: Mapping[str, Any], name: str, step: str) -> Any:
    if name not in outputs:
        raise NotFoundError(f"The step {step!r} left no output {name!r}.{did_you_mean(name, outputs)}")
    return outputs[name]


def _somebody_looks() -> bool:
    return "ipykernel" in sys.modules or sys.stdout.isatty()
