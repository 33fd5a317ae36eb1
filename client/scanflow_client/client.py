"""``sf.Client``: run and serve applications from a script or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.quantities import parse_memory
from scanflow.app.resources import AffinityMode
from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.log_reader import Stream
from scanflow.backends.run_records import RunRecord, StepFile
from scanflow.backends.service_change import CanaryPolicy, Deployment, ServiceChange, Sizing
from scanflow.backends.task_parameters import pick_output
from scanflow.deployer import EmbeddedDeployer, InstanceLogs, RunRequest
from scanflow.deployer.direct_predictions import get_explanation, predict
from scanflow.deployer.remote_home import get_server_address
from scanflow.errors import StepFailedError, UnsupportedError, UsageError
from scanflow.placement.granularity import compute_granularity
from scanflow.settings import Settings
from scanflow.text.masking import mask_addresses
from scanflow.text.printable import make_printable
from scanflow_client.control_client import raise_no_server
from scanflow_client.declared_inputs import fetch_declared, fit_inputs, list_parts, name_columns
from scanflow_client.formatting.run_text import format_failure
from scanflow_client.listing import Listing
from scanflow_client.measuring_client import MeasuringClient
from scanflow_client.notebook import register
from scanflow_client.program import resolve_application
from scanflow_client.progress import is_notebook, show_run_progress, show_service_changes
from scanflow_client.run_handle import RunHandle
from scanflow_client.task_logs import format_heading, iterate_task_blocks, select_logged_tasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanflow.backends.backend_port import Backend
    from scanflow.backends.environments import EnsuredEnvironment, EnvironmentBackend, EnvironmentDeletion
    from scanflow.backends.service_records import Explanation, ServiceRecord
    from scanflow.images.building import ImageRecord
    from scanflow.transport import PredictionResponse
    from scanflow_client.report import Report


def _refuse_environments(app: Application) -> EnvironmentBackend:
    raise UnsupportedError(
        f"The environment of {app.name!r} is created by its server, at the first run. To create it from here, leave "
        "out the server's address."
    )


class Client(MeasuringClient):
    """Runs and serves workflows, and inspects past runs, services and, on a server, agents and their actions.

    ``Client()`` works inside this process, below ``~/.scanflow`` (or ``$SCANFLOW_HOME``, or ``home=``);
    ``Client.from_environment()`` has the server of ``scanflow up`` do the work, ``Client("http://host:46666")`` any.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        home: Path | str | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, str] | None = None,
        progress: bool | None = None,
    ) -> None:
        """Create a client of the server at ``url``, or without one, of this process.

        Args:
            url: The server's address.
            token: The token to authenticate with. None: ``$SCANFLOW_TOKEN``, else the home's, for a local server.
            home: The home folder, for a client without a server.
            backend: Where it runs and serves, for a client without a server: a name, or a backend such as
                ``scanflow.backends.memory.Memory()``. None: ``$SCANFLOW_BACKEND``, else as the application says.
            backend_options: Options of that backend: ``{"serving": "seldon"}``.
            progress: Print a line for each step; None: in a terminal or a notebook.
        """
        settings = Settings.from_environment()
        self._settings = settings if home is None else settings.model_copy(update={"home": Path(home)})
        self._control = None
        self._environments: Callable[[Application], EnvironmentBackend]
        if url is not None:
            if home is not None or backend is not None or backend_options is not None:
                option = "home" if home is not None else "backend"
                raise UsageError(
                    f"Client({mask_addresses(url)!r}, {option}=...): a server sets its own {option}. Leave out one."
                )
            from scanflow.deployer import RemoteDeployer
            from scanflow.transport import ServerClient

            server = ServerClient(url, token=settings.find_token(url) if token is None else token)
            self._deployer = RemoteDeployer(url, server=server)
            self._environments = _refuse_environments
            super().__init__(lambda: server)
            self._control = self
        elif token is not None:
            raise UsageError("Client(token=...): a token is for a server. Name it: Client('http://...', token=...).")
        else:
            if isinstance(backend, str):
                self._settings, backend = self._settings.model_copy(update={"backend": backend}), None
            if backend_options is not None:
                options = {"backend_options": dict(backend_options)}
                self._settings = self._settings.model_copy(update=options)
            self._deployer = EmbeddedDeployer(self._settings, backend=backend)
            self._environments = self._deployer.environments
            super().__init__(partial(raise_no_server, self._settings.home.expanduser().absolute()))
        interactive = "ipykernel" in sys.modules or sys.stdout.isatty()
        self._progress = interactive if progress is None else progress
        register()

    @classmethod
    def from_environment(cls, *, progress: bool | None = None) -> Self:
        """Return a client of the server that commands use: ``$SCANFLOW_URL``, else the one of ``scanflow up``, whatever
        port it listens on.

        Raises:
            UnavailableError: none is named, and none runs in the home folder.
        """
        return cls(get_server_address(Settings.from_environment()), progress=progress)

    def __repr__(self) -> str:
        if self.url is None:
            return f"<client without a server, of the home {str(self._settings.home.expanduser())!r}>"
        return f"<client of the server {mask_addresses(self.url)}>"

    def run(
        self,
        what: Application | Workflow | str,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        refresh_cache: bool = False,
        wait: bool = True,
    ) -> RunHandle:
        """Run a workflow to its end; :class:`~scanflow.errors.StepFailedError` has the frames of the step that failed.

        The run is kept, and :meth:`resume` continues it. With ``wait=False`` it only starts, and the returned handle
        waits for it, shows it and stops it. A server drives the run even if this program ends; without one, this
        program does, and waits for it before it ends. ``refresh_cache``: cached steps run as well, and their new
        outputs are put into the cache.

        A name, ``client.run("brisk-otter-123")`` or ``"@latest"``, runs nothing: it returns the handle of that run.
        """
        if isinstance(what, str):
            if workflow is not None or parameters is not None or refresh_cache:
                raise UsageError(
                    f"client.run({what!r}) returns an earlier run, which takes no workflow and no parameters. To run "
                    "an application, give the application itself: client.run(app)."
                )
            return RunHandle(self, self._deployer.show(what))
        request = RunRequest(
            resolve_application(what), workflow, parameters=parameters or {}, refresh_cache=refresh_cache
        )
        return self._begin(request, wait=wait)

    def wait(self, run: str = "@latest", *, timeout_s: float | None = None) -> RunHandle:
        """Wait until a run has ended, and return it; UnavailableError: it continues after ``timeout_s``."""
        with show_run_progress(self._choose_stream(), self.link_runs) as observe:
            record = self._deployer.wait(run, timeout_s=timeout_s, observe=observe)
        return RunHandle(self, _require_success(record))

    def resume(
        self, run: str = "@latest", *, app: Application | Workflow | None = None, wait: bool = True
    ) -> RunHandle:
        """Continue a run from its current state; with ``app``, with the steps defined there. ``wait``: as for
        :meth:`run`."""
        return self._begin(RunRequest(None if app is None else resolve_application(app), run=run), wait=wait)

    def spin(
        self,
        step: str,
        *,
        run: str = "@latest",
        app: Application | Workflow | None = None,
        parameters: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> RunHandle:
        """Run one step again on the inputs it had in a past run; ``@latest``: the newest one of the whole workflow.

        ``parameters``: plain values by short names, inputs from other steps by full ones (``train.data``). ``wait``:
        as for :meth:`run`.
        """
        application = None if app is None else resolve_application(app)
        return self._begin(RunRequest(application, parameters=parameters or {}, run=run, step=step), wait=wait)

    def plan(
        self, what: Application | Workflow, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Plan:
        """Check a workflow, and return what it would run and the resources it would take."""
        return self._deployer.plan(RunRequest(resolve_application(what), workflow, parameters=parameters or {}))

    def build(
        self,
        what: Application | Workflow,
        workflow: str | None = None,
        *,
        push: bool = False,
        registry: str | None = None,
        builder: str | None = None,
        again: bool = False,
    ) -> Listing[ImageRecord]:
        """Build the container images of all workflows or of one, on this machine, and return them.

        Args:
            what: The application.
            workflow: The name of one of its workflows.
            push: Push the images that the registry does not have.
            registry: The registry to push to. None: ``$SCANFLOW_KUBERNETES_REGISTRY``.
            builder: ``buildah``, ``podman`` or ``docker``. None: the first that is installed.
            again: Rebuild unchanged images, too, on the newest base image.
        """
        from scanflow.deployer.application_images import build_application
        from scanflow.images.build_settings import ImageSettings

        app = resolve_application(what)
        workflows = app.workflows if workflow is None else [app.workflow(workflow)]
        defaults = ImageSettings.from_environment(options=self._settings.backend_options)
        images = defaults.with_overrides({"registry": registry, "builder": builder})
        say = _print_line if self._progress else lambda _: None
        built = build_application(app, workflows, self._settings, images, push=push, again=again, say=say)
        return Listing(built, "image_text:format_build", target=None)

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        """Request a run, or only one of its tasks (``train.3``) or steps, to stop; it can be resumed."""
        return self._deployer.stop(run, task)

    def show(self, run: str = "@latest") -> RunRecord:
        """Return a run with its tasks."""
        return self._deployer.show(run)

    def runs(self, *, limit: int = 20) -> Listing[RunRecord]:
        """Return the runs, the newest first."""
        records = self._deployer.runs(limit=limit)
        links = self.link_runs(*(record.name for record in records))
        return Listing(records, "run_text:format_runs", links=links)

    def link_runs(self, *names: str) -> dict[str, str]:
        """Return the addresses of the pages of runs in the dashboard, by their names; none without a server."""
        return {} if self.url is None else self._link_pages("runs", *names)

    def output(self, step: str, name: str = "result", *, run: str = "@latest") -> Any:
        """Return the result of a step's function, or one of its named outputs; a list for a fan-out."""
        outputs = self._deployer.outputs(run, step)
        if isinstance(outputs, list):
            return [pick_output(task_outputs, name, step) for task_outputs in outputs]
        return pick_output(outputs, name, step)

    def files(self, step: str | None = None, *, run: str = "@latest") -> Listing[StepFile]:
        """Return the files that the steps of a run left in their output folders, or one step or task.

        UnsupportedError: the backend does not list them.
        """
        return Listing(self._deployer.files(run, step), "run_text:format_listed_files")

    def logs(
        self, task: str | None = None, *, run: str = "@latest", attempt: int | None = None, stream: Stream = "both"
    ) -> str:
        """Return what the command ``logs`` shows: the log of a task, of a step's tasks, or of the whole run.

        Args:
            task: A task (``train.3``) or a step. None: all that have started.
            run: The run's name.
            attempt: The attempt. None: the last.
            stream: ``stdout``, ``stderr``, or both in the order in which they were written, as far as that is known.
        """
        record = self._deployer.show(run)
        tasks = select_logged_tasks(record, task)
        texts = []
        for name in tasks:
            blocks = iterate_task_blocks(self._deployer, record.name, name, stream=stream, attempt=attempt)
            text = make_printable(b"".join(blocks).decode("utf-8", errors="replace"))
            texts.append(f"{format_heading(name)}\n{text}" if len(tasks) > 1 else text)
        return "".join(texts)

    def deploy(
        self,
        what: Application | Workflow,
        workflow: str | None = None,
        *,
        instances: int | None = None,
        cores: float | None = None,
        gpu: int | float | str | None = None,
        affinity: AffinityMode | None = None,
        cut: float | None = None,
        into: int | None = None,
        port: int | None = None,
    ) -> ServiceRecord:
        """Serve an online workflow, or change the running service without downtime. None: as the workflow says.

        ``cores`` are those of one instance, ``cut`` those of all instances together, divided evenly over ``into``
        instances (equation 4.1). ``gpu`` is of one instance, as in ``sf.Resources``. ``port`` is of HTTP; None: the
        next free one.
        """
        instances, cores = compute_granularity(instances, cores, cut=cut, into=into)
        app = resolve_application(what)
        with show_service_changes(self._choose_stream()) as observe:
            sizing = Sizing(instances=instances, cores=cores, gpu=gpu, affinity=affinity)
            return self._deployer.deploy(Deployment(app, workflow, sizing=sizing, port=port), observe=observe)

    def apply(self, app: Application, *, force: bool = False) -> EnsuredEnvironment:
        """Create or update an application's environment on its backend, as runs do.

        ``force``: overwrite others' changes in it.
        """
        from scanflow.app.plain_secrets import check_no_plain_secrets

        check_no_plain_secrets(app)
        return self._environments(app).ensure(app, force=force)

    def clean(self, app: Application) -> EnvironmentDeletion:
        """Delete an application's environment, with its workloads and its data."""
        return self._environments(app).delete(app)

    def services(self) -> Listing[ServiceRecord]:
        """Return the deployed services, by name."""
        records = self._deployer.services()
        links = {} if self.url is None else self._link_pages("services", *(record.name for record in records))
        return Listing(records, "service_text:format_services", links=links)

    def service(self, name: str) -> ServiceRecord:
        """Return one service with its instances and revisions."""
        return self._deployer.service(name)

    def change(self, name: str, change: ServiceChange) -> ServiceRecord:
        """Change a service without downtime; if that fails, it keeps serving as before.

        :meth:`scale`, :meth:`traffic`, :meth:`promote` and :meth:`rollback` are short for it.
        """
        with show_service_changes(self._choose_stream()) as observe:
            return self._deployer.change(name, change, observe=observe)

    def scale(
        self,
        name: str,
        instances: int | None = None,
        *,
        cores: float | None = None,
        memory: str | None = None,
        affinity: AffinityMode | None = None,
        scaling: Scaling | Literal["off"] | None = None,
        cut: float | None = None,
        into: int | None = None,
    ) -> ServiceRecord:
        """Resize a service without downtime: instances, cores and memory of one, affinity. None: unchanged.

        ``cut`` cores are divided evenly over ``into`` instances, as by :meth:`deploy`.
        """
        instances, cores = compute_granularity(instances, cores, cut=cut, into=into)
        size = None if memory is None else parse_memory(memory)
        change = ServiceChange(instances=instances, cores=cores, memory_bytes=size, affinity=affinity, scaling=scaling)
        return self.change(name, change)

    def traffic(
        self,
        name: str,
        model: str,
        *,
        weight: float = 0.0,
        shadow: bool = False,
        node: str | None = None,
        policy: CanaryPolicy | None = None,
    ) -> ServiceRecord:
        """Send a share of the requests, or with ``shadow`` a copy of each, to a model version: ``models:/cnn/3``."""
        return self.change(name, ServiceChange(model=model, node=node, weight=weight, shadow=shadow, policy=policy))

    def promote(self, name: str, model: str | None = None, *, node: str | None = None) -> ServiceRecord:
        """Serve the canary, or the model version ``model``, from now on."""
        change = ServiceChange(promote=True) if model is None else ServiceChange(model=model, node=node)
        return self._change_version(name, change)

    def rollback(self, name: str) -> ServiceRecord:
        """Remove the canary. Without a canary, return to the previous version and its shape.

        If the service served the champion, the version that it serves again becomes the champion.
        """
        return self._change_version(name, ServiceChange(rollback=True))

    def _change_version(self, name: str, change: ServiceChange) -> ServiceRecord:
        from scanflow_client.model_client import change_version

        with show_service_changes(self._choose_stream()) as observe:
            return change_version(self._deployer, name, change, lambda: self._models, observe=observe)[0]

    def explain(self, name: str) -> Explanation:
        """Explain the number of a service's instances."""
        return get_explanation(self._deployer.service(name))

    def service_logs(self, name: str, *, instance: str | None = None) -> str:
        """Return the logs of a service's instances."""
        blocks = (block for _, block in self._deployer.logs(InstanceLogs(name, instance)))
        return b"".join(blocks).decode("utf-8", errors="replace")

    def delete(self, name: str) -> None:
        """Drain in-flight requests, then delete a service. Its models and records are kept."""
        with show_service_changes(self._choose_stream()) as observe:
            self._deployer.delete(name, observe=observe)

    def predict(self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None) -> NDArray[Any]:
        """Return a service's prediction for an array, a list of rows, or a mapping of input names to these.

        The columns of a DataFrame, and of a list of records, are sent by their names, as the model declares them.

        ``dtype`` is the type of the numbers to send, such as ``float32``; None: unchanged.
        """
        outputs = self.ask(name, inputs, node=node, dtype=dtype).outputs
        if len(outputs) != 1:
            raise UsageError(
                f"The service {name!r} returns {', '.join(outputs) or 'nothing'}. Use ask(), which returns all outputs."
            )
        return next(iter(outputs.values()))

    def ask(self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None) -> PredictionResponse:
        """Return all outputs of a prediction, with the instance and revision that made it. See :meth:`predict`."""
        named = name_columns(inputs)
        if dtype is None and (named is not inputs or not all(hasattr(part, "dtype") for part in list_parts(named))):
            named = fit_inputs(inputs, fetch_declared(self._deployer, name, node))
        return predict(self._deployer, name, named, node=node, dtype=dtype)

    def report(self, app: str | None = None) -> Report:
        """Write the report of an application's agents as a page below the home folder.

        ``app`` None: the only one that has agents.
        """
        from scanflow_client.report import save_report

        return save_report(self, app)

    def _begin(self, request: RunRequest, *, wait: bool) -> RunHandle:
        return RunHandle(self, self._run(request) if wait else self._deployer.begin(request))

    def _run(self, request: RunRequest) -> RunRecord:
        with show_run_progress(self._choose_stream(), self.link_runs) as observe:
            return _require_success(self._deployer.run(request, observe=observe))

    def _choose_stream(self) -> TextIO | None:
        return sys.stdout if self._progress else None


def _print_line(line: str) -> None:
    print(make_printable(line), file=sys.stderr)


def _require_success(record: RunRecord) -> RunRecord:
    if record.state == "failed":
        raise StepFailedError("\n".join(format_failure(record, in_notebook=is_notebook(sys.stdout))))
    return record
