"""The deployer that asks a server over HTTP. The work is done there, and goes on when this process ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.backends.port import Stream
from scanflow.backends.records import Event, Observer, RunEnded, RunRecord
from scanflow.deployer.checks import refuse_while_loading
from scanflow.deployer.remote_services import RemoteServices, new_key
from scanflow.deployer.serialization import packed, with_changes
from scanflow.errors import ScanflowError
from scanflow.names import RunName
from scanflow.problems import error_of
from scanflow.transport import ServerClient, path_of

AGAIN_S = 0.2
PATIENCE_S = 30.0
"""How long a run may be nobody's, after whoever drove it was killed, before it is told to be interrupted."""

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


class RemoteDeployer(RemoteServices):
    """A :class:`~scanflow.deployer.port.Deployer` on a server.

    Functions are loaded by the server from the files they are in, so both see the same files. Ctrl-C during ``run``
    stops the run, as it does everywhere; a process that is killed leaves it running.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        server: ServerClient | None = None,
        keys: Callable[[], str] = new_key,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask the server at ``url``, such as ``http://127.0.0.1:46666``. ``server`` takes the place of a connection.

        Raises:
            InvalidError: the address is none, or the token cannot be sent.
        """
        super().__init__(server or ServerClient(url, token=token), keys=keys)
        self._sleep, self._clock = sleep, clock

    def plan(
        self, app: Application, workflow: str | None = None, *, parameters: Mapping[str, Any] | None = None
    ) -> Plan:
        body = _described(app, workflow, parameters or {}, None)
        return Plan.model_validate(self._server.post(path_of("runs", "plan"), body))

    def run(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        source: Path | None = None,
        observe: Observer = lambda _: None,
    ) -> RunRecord:
        refuse_while_loading()
        body = _described(app, workflow, parameters or {}, source)
        return self._driven(self._server.post(path_of("runs"), body, key=self._keys()), observe)

    def resume(self, run: str, *, app: Application | None = None, observe: Observer = lambda _: None) -> RunRecord:
        begun = self._server.post(path_of("runs", run, "resume"), packed(app), key=self._keys())
        return self._driven(begun, observe)

    def spin(
        self,
        step: str,
        *,
        run: str = "@latest",
        app: Application | None = None,
        parameters: Mapping[str, Any] | None = None,
        observe: Observer = lambda _: None,
    ) -> RunRecord:
        body = packed(app) | {"step": step, "parameters": dict(parameters or {})}
        return self._driven(self._server.post(path_of("runs", run, "spin"), body, key=self._keys()), observe)

    def stop(self, run: str) -> RunRecord:
        return RunRecord.model_validate(self._server.post(path_of("runs", run, "stop"), key=self._keys()))

    def show(self, run: str) -> RunRecord:
        return RunRecord.model_validate(self._server.get(path_of("runs", run)))

    def runs(self, *, limit: int = 20) -> list[RunRecord]:
        return [RunRecord.model_validate(one) for one in self._server.get(path_of("runs"), limit=limit)]

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        found: dict[str, Any] | list[dict[str, Any]] = self._server.get(path_of("runs", run, "steps", step, "outputs"))
        return found

    def logs(
        self, run: str, task: str, *, stream: Stream = "stdout", attempt: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        return self._server.stream(
            path_of("runs", run, "tasks", task, "logs"),
            stream=stream,
            attempt=attempt,
            follow="true" if follow else None,
        )

    def _driven(self, begun: Any, observe: Observer) -> RunRecord:
        name = RunRecord.model_validate(begun).name
        try:
            return self._ended_run(name, observe)
        except KeyboardInterrupt:
            # The first one stops the run, and its end is waited for; the second is for us.
            self.stop(name)
            return self._ended_run(name, lambda _: None)

    def _ended_run(self, name: RunName, observe: Observer) -> RunRecord:
        last: str | None = None
        nobody: float | None = None
        while True:
            for message in self._server.events(path_of("runs", name, "events"), after=last):
                nobody, last = None, message.id or last
                if message.event == "problem":  # it could not be driven at all
                    raise _problem(message.data)
                event = _event(message.data)
                if event is not None:
                    observe(event)
                if isinstance(event, RunEnded):
                    return event.record
            # A stream without its end: whoever drove the run was killed, and somebody goes on with it, or nobody does.
            record = self.show(name)
            if record.state in {"succeeded", "failed", "stopped"}:
                return record
            if record.state == "interrupted":
                nobody = self._clock() if nobody is None else nobody
                if self._clock() - nobody > PATIENCE_S:
                    return record
            self._sleep(AGAIN_S)


def _problem(text: str) -> ScanflowError:
    try:
        status = int(json.loads(text)["status"])
    except (ValueError, KeyError, TypeError):
        status = 500
    return error_of(status, text.encode(), who="The server")


def _event(text: str) -> Event | None:
    try:
        return _EVENTS.validate_json(text)
    except ValidationError:  # a newer server tells of more than we know
        return None


def _described(
    app: Application, workflow: str | None, parameters: Mapping[str, Any], source: Path | None
) -> dict[str, Any]:
    changed, name = with_changes(app, workflow, parameters)
    return packed(changed, source) | {"workflow": name, "parameters": dict(parameters)}
