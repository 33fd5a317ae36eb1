"""The deployer that calls a server over HTTP. The server does the work, even after this process ends."""

from __future__ import annotations

import base64
import json
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from scanflow.app.plan import Plan
from scanflow.app.steps import check_parameters
from scanflow.application_loading import refuse_while_loading
from scanflow.backends.backend_port import ServiceClient
from scanflow.backends.definition import digest_functions
from scanflow.backends.log_reader import LogPart
from scanflow.backends.output_files import parse_output_files
from scanflow.backends.run_records import FINAL_STATES, Event, Observer, RunEnded, RunRecord, StepFile
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.deployer.background import build_still_running_error
from scanflow.deployer.deployer_port import LATEST, Deployer, InstanceLogs, RunRequest, TaskLog
from scanflow.deployer.direct_predictions import connect_service
from scanflow.deployer.embedded import reload_application
from scanflow.deployer.functions_by_value import find_application, remember_application
from scanflow.deployer.serialization import encode_application
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError
from scanflow.http.problems import parse_error
from scanflow.modules import use_folder
from scanflow.names import RunName
from scanflow.transport import ServerClient, build_path

if TYPE_CHECKING:
    from scanflow.transport import Message

POLL_S = 0.2
PATIENCE_S = 30.0
"""How long a run may have no driver, after its driver was killed, before it is reported as interrupted."""

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def generate_key() -> str:
    """Return a new idempotency key: a request is executed once however often it is sent."""
    return uuid.uuid4().hex


def _ignore(_: object) -> None:
    pass


class RemoteDeployer(Deployer):
    """A deployer on a server.

    Steps load functions from the files they are in, so both sides see the same files; a program's or a notebook's own
    functions are sent by value. Ctrl-C during ``run`` stops the run, as it does everywhere; a process that is killed
    leaves it running.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        server: ServerClient | None = None,
        keys: Callable[[], str] = generate_key,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a deployer on the server at ``url``, such as ``http://127.0.0.1:46666``.

        Args:
            url: Its address.
            token: What lets this process in.
            server: Takes the place of a connection.
            keys: Gives each wish its name.
            sleep: Waits between looks at a run.
            clock: In seconds.

        Raises:
            InvalidError: the address is none, or the token cannot be sent.
        """
        self._server, self._keys = server or ServerClient(url, token=token), keys
        self._sleep, self._clock = sleep, clock

    # Runs

    def plan(self, request: RunRequest) -> Plan:
        return Plan.model_validate(
            self._server.post(build_path("runs", "plan"), _encode_new_run(request, self._server))
        )

    def run(self, request: RunRequest, *, observe: Observer = _ignore) -> RunRecord:
        (path, body), key = self._encode_run_request(request), self._keys()
        try:
            name = self._submit(path, body, key).name
            remember_application(name, request.app)
            return self._wait_for_run(name, observe)
        except KeyboardInterrupt:
            # The first one stops the run, and its end is waited for; the second is for us. The run may have begun
            # although its name was not heard: asked for with the same key, it is the same one.
            name = self._submit(path, body, key).name
            self.stop(name)
            return self._wait_for_run(name, _ignore)

    def begin(self, request: RunRequest) -> RunRecord:
        record = self._submit(*self._encode_run_request(request), self._keys())
        remember_application(record.name, request.app)
        return record

    def _encode_run_request(self, request: RunRequest) -> tuple[str, dict[str, Any]]:
        """Return the path and body of a request for a run."""
        refuse_while_loading()
        if request.run is None:
            return build_path("runs"), _encode_new_run(request, self._server)
        app = request.app
        if app is None:
            is_name = not request.run.startswith("@")
            app = find_application(request.run if is_name else self.show(request.run).name)
        body = encode_application(app, self._server)
        if request.step is None:
            if app is not None:
                body["functions"] = digest_functions(app.workflow(self.show(request.run).workflow))
            return build_path("runs", request.run, "resume"), body
        body |= {"step": request.step, "parameters": dict(request.parameters)}
        if request.texts:
            body |= self._encode_texts(request)
        return build_path("runs", request.run, "spin"), body

    def _encode_texts(self, request: RunRequest) -> dict[str, Any]:
        """Encode the parameters of a spin, those given as text as values where the run's file says their types."""
        past = self.show(request.run or LATEST)
        app = request.app or reload_application(past)
        if app is None:
            return {"texts": dict(request.texts)}
        step = (request.step or "").partition(".")[0]
        return {"parameters": request.read_parameters(app.workflow(past.workflow), step)}

    def _submit(self, path: str, body: dict[str, Any], key: str) -> RunRecord:
        return RunRecord.model_validate(self._server.post(path, body, key=key))

    def wait(self, run: str, *, timeout_s: float | None = None, observe: Observer = _ignore) -> RunRecord:
        return self._wait_for_run(self.show(run).name, observe, timeout_s)

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        parts = ("runs", run) if task is None else ("runs", run, "tasks", task)
        return RunRecord.model_validate(self._server.post(build_path(*parts, "stop"), key=self._keys()))

    def show(self, run: str) -> RunRecord:
        return RunRecord.model_validate(self._server.get(build_path("runs", run)))

    def runs(self, *, limit: int = 20) -> list[RunRecord]:
        return [RunRecord.model_validate(record) for record in self._server.get(build_path("runs"), limit=limit)]

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        sent = b"".join(self._server.stream(build_path("runs", run, "steps", step, "values")))
        files, app_dir = parse_output_files(sent)
        use_folder(Path(app_dir))  # which has the classes of its values, where both see the same files
        return [task.load() for task in files] if isinstance(files, list) else files.load()

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        return [StepFile.model_validate(file) for file in self._server.get(build_path("runs", run, "files"), step=step)]

    def logs(self, of: TaskLog | InstanceLogs, *, follow: bool = False) -> Iterator[LogPart]:
        on = "true" if follow else None
        if isinstance(of, InstanceLogs):
            return self._read_instance_logs(of, on)
        path = build_path("runs", of.run, "tasks", of.task, "logs")
        blocks = self._server.stream(path, stream=of.stream, attempt=of.attempt, follow=on)
        return (LogPart(of.stream, block) for block in blocks)

    def _read_instance_logs(self, of: InstanceLogs, follow: str | None) -> Iterator[LogPart]:
        yielded: Counter[str] = Counter()
        skipped: dict[str, int] = {}
        rest = b""

        def restart() -> None:
            nonlocal rest
            rest = b""
            skipped.update(yielded)

        path = build_path("services", of.service, "logs")
        for block in self._server.stream(path, reopened=restart, instance=of.instance, follow=follow):
            *lines, rest = (rest + block).split(b"\n")
            for who, text in map(_decode_line, filter(None, lines)):
                before = skipped.get(who, 0)
                fresh, skipped[who] = text[before:], max(0, before - len(text))
                if fresh:
                    yielded[who] += len(fresh)
                    yield LogPart(who, fresh)

    # Services

    def deploy(
        self, deployment: Deployment, *, key: str | None = None, observe: ServiceObserver = _ignore
    ) -> ServiceRecord:
        refuse_while_loading()
        name, sizing = deployment.online.name, deployment.sizing
        body = encode_application(deployment.app, self._server, deployment.source) | {"workflow": name}
        if sizing is not None:
            body["sizing"] = sizing.model_dump(mode="json", exclude_none=True)
        if deployment.port is not None:
            body["port"] = deployment.port
        if deployment.is_copy:
            body["is_copy"] = True
        return self._finish_change(
            name, self._server.post(build_path("services"), body, key=key or self._keys()), observe
        )

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = _ignore
    ) -> ServiceRecord:
        body = change.model_dump(mode="json", exclude_none=True)
        operation = self._server.patch(build_path("services", name), body, key=key or self._keys())
        return self._finish_change(name, operation, observe)

    def delete(self, name: str, *, observe: ServiceObserver = _ignore) -> None:
        operation = self._server.delete(build_path("services", name), key=self._keys())
        self._wait_for_operation(name, operation["operation"], observe)

    def services(self, *, instances: bool = True) -> list[ServiceRecord]:  # noqa: ARG002  the server watches them
        return [ServiceRecord.model_validate(record) for record in self._server.get(build_path("services"))]

    def service(self, name: str) -> ServiceRecord:
        return ServiceRecord.model_validate(self._server.get(build_path("services", name)))

    def connect(self, name: str) -> ServiceClient:
        return connect_service(self.service(name))

    def _wait_for_run(self, name: RunName, observe: Observer, timeout_s: float | None = None) -> RunRecord:
        last: str | None = None
        nobody: float | None = None
        until = math.inf if timeout_s is None else self._clock() + timeout_s
        while True:
            remaining_s = None if timeout_s is None else until - self._clock()
            for message in self._server.events(build_path("runs", name, "events"), after=last, timeout_s=remaining_s):
                nobody, last = None, message.id or last
                if message.event == "problem":  # it could not be driven at all
                    raise _parse_problem(message.data)
                event = _parse_event(message.data)
                if event is not None:
                    observe(event)
                if isinstance(event, RunEnded):
                    return event.record
            # The stream ended before the run: its driver was killed, and another process may go on with it.
            record = self.show(name)
            if record.state in FINAL_STATES:
                return record
            if record.state == "interrupted":
                nobody = self._clock() if nobody is None else nobody
                if self._clock() - nobody > PATIENCE_S:
                    return record
            if self._clock() >= until:
                raise build_still_running_error(name, timeout_s)
            self._sleep(POLL_S)

    def _finish_change(self, name: str, operation: dict[str, Any], observe: ServiceObserver) -> ServiceRecord:
        return ServiceRecord.model_validate(self._wait_for_operation(name, operation["operation"], observe)["result"])

    def _wait_for_operation(self, name: str, operation: str, observe: ServiceObserver) -> dict[str, Any]:
        try:
            done = self._watch_operation(name, operation, observe)
        except NotFoundError as error:
            raise UnavailableError(
                f"The server was restarted during the change of {name!r} and no longer tracks it. Check whether it "
                f"took effect: scanflow services {name}"
            ) from error
        if done["state"] == "succeeded":
            return done
        problem = done.get("problem") or {}
        raise parse_error(int(problem.get("status", 500)), json.dumps(problem).encode(), who="The server")

    def _watch_operation(self, name: str, operation: str, observe: ServiceObserver) -> dict[str, Any]:
        for message in self._server.events(build_path("operations", operation, "events")):
            if message.event == "done":
                done: dict[str, Any] = json.loads(message.data)
                return done
            if message.event == "progress":
                observe(_parse_progress(name, message))
        status: dict[str, Any] = self._server.get(build_path("operations", operation))
        if status["state"] == "running":
            raise UnavailableError(
                f"The server stopped reporting the change of {name!r} before it completed. Check its status: scanflow "
                f"services {name}"
            )
        return status


def _parse_problem(text: str) -> ScanflowError:
    try:
        status = int(json.loads(text)["status"])
    except (ValueError, KeyError, TypeError):
        status = 500
    return parse_error(status, text.encode(), who="The server")


def _parse_event(text: str) -> Event | None:
    try:
        return _EVENTS.validate_json(text)
    except ValidationError:  # a newer server tells of more than we know
        return None


def _parse_progress(name: str, message: Message) -> Progress:
    try:
        content = json.loads(message.data)
    except ValueError:
        content = message.data
    if isinstance(content, dict):
        return Progress(service=str(content.get("service", name)), text=str(content.get("text", "")))
    return Progress(service=name, text=str(content))


def _decode_line(line: bytes) -> tuple[str, bytes]:
    entry = json.loads(line)
    return entry["who"], base64.b64decode(entry["text"])


def _encode_new_run(request: RunRequest, server: ServerClient) -> dict[str, Any]:
    """Encode the request for a new run, with its parameters set on this side: functions and the types of their
    parameters are known here."""
    chosen = replace(request, refresh_cache=False).chosen  # the application is stored, and run again
    for node in chosen.steps:
        if node.target is not None and node.target.call is not None:
            check_parameters(node.target.call, node.parameters, who=f"Step {node.name!r}")
    about: dict[str, Any] = {"workflow": chosen.name, "parameters": request.changed_parameters}
    if functions := digest_functions(chosen):
        about["functions"] = functions
    if request.refresh_cache:
        about["refresh_cache"] = True
    return encode_application(request.application.with_workflow(chosen), server, request.source) | about
