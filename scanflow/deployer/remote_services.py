"""The remote deployer's services: every change is an operation on the server, watched from here."""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.backends.service_change import ServiceChange, Sizing
from scanflow.backends.service_records import Explanation, Progress, ServiceObserver, ServiceRecord
from scanflow.deployer.checks import online_workflow, refuse_while_loading
from scanflow.deployer.serialization import packed
from scanflow.deployer.service_client import ServiceCalls
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.problems import error_of
from scanflow.transport import ServerClient, path_of

if TYPE_CHECKING:
    from scanflow.transport import Message


def new_key() -> str:
    """Return the name of one wish, so that it is acted on once however often it is sent."""
    return uuid.uuid4().hex


def _unseen(_: object) -> None:
    """Look at no progress."""


class RemoteServices(ServiceCalls):
    def __init__(self, server: ServerClient, *, keys: Callable[[], str] = new_key) -> None:
        self._server = server
        self._keys = keys

    def deploy(
        self,
        app: Application,
        workflow: str | None = None,
        *,
        sizing: Sizing | None = None,
        port: int | None = None,
        source: Path | None = None,
        key: str | None = None,
        observe: ServiceObserver = _unseen,
    ) -> ServiceRecord:
        refuse_while_loading()
        name = online_workflow(app, workflow).name
        body = packed(app, source) | {"workflow": name}
        if sizing is not None:
            body["sizing"] = sizing.model_dump(mode="json", exclude_none=True)
        if port is not None:
            body["port"] = port
        begun = self._server.post(path_of("services"), body, key=key or self._keys())
        return self._changed(name, begun, observe)

    def services(self) -> list[ServiceRecord]:
        return [ServiceRecord.model_validate(one) for one in self._server.get(path_of("services"))]

    def service(self, name: str) -> ServiceRecord:
        return ServiceRecord.model_validate(self._server.get(path_of("services", name)))

    def change(
        self, name: str, change: ServiceChange, *, key: str | None = None, observe: ServiceObserver = _unseen
    ) -> ServiceRecord:
        body = change.model_dump(mode="json", exclude_none=True)
        begun = self._server.patch(path_of("services", name), body, key=key or self._keys())
        return self._changed(name, begun, observe)

    def explain(self, name: str) -> Explanation:
        return Explanation.model_validate(self._server.get(path_of("services", name, "explain")))

    def service_logs(
        self, name: str, *, instance: str | None = None, follow: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        told: Counter[str] = Counter()
        known: dict[str, int] = {}
        rest = b""

        def restart() -> None:
            nonlocal rest
            rest = b""
            known.update(told)

        path = path_of("services", name, "logs")
        for block in self._server.stream(path, reopened=restart, instance=instance, follow="true" if follow else None):
            *lines, rest = (rest + block).split(b"\n")
            for who, text in map(_written, filter(None, lines)):
                before = known.get(who, 0)
                fresh, known[who] = text[before:], max(0, before - len(text))
                if fresh:
                    told[who] += len(fresh)
                    yield who, fresh

    def delete(self, name: str, *, observe: ServiceObserver = _unseen) -> None:
        begun = self._server.delete(path_of("services", name), key=self._keys())
        self._ended(name, begun["operation"], observe)

    def _changed(self, name: str, begun: dict[str, Any], observe: ServiceObserver) -> ServiceRecord:
        return ServiceRecord.model_validate(self._ended(name, begun["operation"], observe)["result"])

    def _ended(self, name: str, operation: str, observe: ServiceObserver) -> dict[str, Any]:
        try:
            done = self._watched(name, operation, observe)
        except NotFoundError as error:
            raise UnavailableError(
                f"The server no longer knows of the change of {name!r} that was begun; it was restarted meanwhile. "
                f"See whether it came into effect: scanflow services {name}"
            ) from error
        if done["state"] == "succeeded":
            return done
        problem = done.get("problem") or {}
        raise error_of(int(problem.get("status", 500)), json.dumps(problem).encode(), who="The server")

    def _watched(self, name: str, operation: str, observe: ServiceObserver) -> dict[str, Any]:
        for message in self._server.events(path_of("operations", operation, "events")):
            if message.event == "done":
                done: dict[str, Any] = json.loads(message.data)
                return done
            if message.event == "progress":
                observe(_progress(name, message))
        found: dict[str, Any] = self._server.get(path_of("operations", operation))
        if found["state"] == "running":
            raise UnavailableError(
                f"The server stopped telling of the change of {name!r} before it had ended. "
                f"See how it went: scanflow services {name}"
            )
        return found


def _progress(name: str, message: Message) -> Progress:
    try:
        found = json.loads(message.data)
    except ValueError:
        found = message.data
    if isinstance(found, dict):
        return Progress(service=str(found.get("service", name)), text=str(found.get("text", "")))
    return Progress(service=name, text=str(found))


def _written(line: bytes) -> tuple[str, bytes]:
    found = json.loads(line)
    return found["who"], base64.b64decode(found["text"])
