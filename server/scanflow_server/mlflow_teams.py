"""A team's requests to MLflow's server, before MLflow's own authorization decides about them.

:mod:`scanflow.knowledge.mlflow.team_access` tells MLflow whose experiments and models are. Here is what MLflow does not
check: whose a folder of files is, where a model version or a trace says that its files lie, and the tag with the owner.
Scanflow's server says the team in a header, which it takes from nobody else; pods say it by their token.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from scanflow.errors import InvalidError, NotFoundError, ScanflowError
from scanflow.http.body_limits import SEND_LESS, read_body
from scanflow.http.security import App, Receive, Scope, Send
from scanflow.knowledge.checks import OWNER
from scanflow.transport.mlflow_api import TEAM_HEADER
from scanflow_server.mlflow_access import (
    MAX_DOCUMENT_BYTES,
    ArtifactAddresses,
    list_artifact_paths,
    names_location,
    sends_document,
)

_HEADER: Final = TEAM_HEADER.encode()
_MAKES_OWNED: Final = ("/experiments/create", "/registered-models/create")
_LOCATION: Final = frozenset(("artifact_location", "artifactLocation"))  # protocol buffers accept both spellings


class TeamRequests:
    """Passes on a team's requests that name nothing of another team, and all requests without a team. ASGI
    middleware."""

    def __init__(self, app: App, *, access: Any, addresses: ArtifactAddresses) -> None:
        """``access``: the module :mod:`scanflow.knowledge.mlflow.team_access`."""
        self._app, self._access, self._addresses = app, access, addresses

    def open_stores(self) -> None:
        """Open MLflow's stores, whose database has to be there."""
        self._access.open_stores()

    def make_experiment(self, app: str, team: str) -> None:
        """Make the experiment of an environment whose steps log by its name: of two that make it at once one fails."""
        self._access.make_experiment(app, team)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        team = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
        if not team:
            await self._app(scope, receive, send)
            return
        try:
            scope, receive = await self._check(scope, receive, team)
        except ScanflowError as error:
            missing = isinstance(error, NotFoundError)
            code = "RESOURCE_DOES_NOT_EXIST" if missing else "INVALID_PARAMETER_VALUE"
            await answer(send, 404 if missing else 422, format_refusal(code, str(error)))
            return
        await self._app(scope, receive, _hide_refusals(send, team))

    async def _check(self, scope: Scope, receive: Receive, team: str) -> tuple[Scope, Receive]:
        """Return a request as MLflow is to get it.

        Raises:
            NotFoundError: it names files that are not the team's.
            InvalidError: it says whose something is, or where files lie, or takes a name that another team has.
        """
        path, method = str(scope["path"]), str(scope["method"])
        if paths := list_artifact_paths(path, Request(scope).query_params.getlist("path")):
            await self._check_places(team, paths)
            # MLflow's own rule takes a folder's name for an experiment's number, and would refuse all others.
            return replace_headers(scope, {_HEADER: None}), receive
        if not sends_document(method, path):
            return scope, receive
        body = await read_body(receive, max_bytes=MAX_DOCUMENT_BYTES, advice=SEND_LESS)
        document = _parse(body)
        _check_owner(document, Request(scope).query_params.getlist("key"), team)
        if path.endswith(_MAKES_OWNED):
            await run_in_threadpool(self._check_name, path, document.get("name"), team)
            body = json.dumps(_add_owner(document, team)).encode()
        elif names_location(method, path):
            places: list[str] = []
            self._addresses.convert_request(body, places.append)
            await self._check_places(team, places)
        return replace_body(scope, body)

    def _check_name(self, path: str, name: Any, team: str) -> None:
        """Refuse a name that another team has: MLflow's client goes on without a word where it already exists."""
        owner = self._access.find_owner("experiments" if "/experiments/" in path else "registered_models", str(name))
        if owner not in {None, team}:
            raise InvalidError(
                f"The name {name!r:.300} is taken. Names of experiments and models are shared by all teams: choose "
                "another."
            )

    async def _check_places(self, team: str, places: list[str]) -> None:
        for place in places:
            if not await run_in_threadpool(self._access.owns_place, team, place):
                raise NotFoundError(f"There are no files of the team {team!r} at {place!r:.200}.")


def load_app(addresses: ArtifactAddresses) -> TeamRequests:
    """Return MLflow's application, with each team confined to its own."""
    access = importlib.import_module("scanflow.knowledge.mlflow.team_access")
    return TeamRequests(access.load_app(), access=access, addresses=addresses)


def set_team(scope: Scope, team: str) -> Scope:
    """Return a request for a team, whatever it said."""
    return replace_headers(scope, {_HEADER: team.encode()})


def replace_headers(scope: Scope, values: dict[bytes, bytes | None]) -> Scope:
    """Return a request with other values of some headers; None: without that header."""
    kept_headers = [pair for pair in scope["headers"] if pair[0].replace(b"_", b"-") not in values]  # WSGI: the same
    return {
        **scope,
        "headers": [*kept_headers, *((name, value) for name, value in values.items() if value is not None)],
    }


def replace_body(scope: Scope, body: bytes) -> tuple[Scope, Receive]:
    """Return a request with another body, and what gives it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return replace_headers(scope, {b"content-length": b"%d" % len(body), b"transfer-encoding": None}), receive


def _parse(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"The body is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidError("The body must be a JSON object.")
    return document


def _check_owner(document: dict[str, Any], keys: list[str], team: str) -> None:
    """Refuse the tag with the owner, in whatever place, unless it says what is so anyway."""
    pairs = [(part.get("key"), part.get("value")) for part in _iterate_objects(document)]
    pairs += [(OWNER, part[OWNER]) for part in _iterate_objects(document) if OWNER in part]
    if OWNER in keys or any(key == OWNER and value != team for key, value in pairs):
        raise InvalidError(
            f"The tag {OWNER!r} says whose something is, and a token of the team {team!r} cannot change that. Leave it "
            "out, or use an admin's token of all teams."
        )


def _iterate_objects(document: Any) -> Iterator[dict[str, Any]]:
    parts = [document]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield part
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)


def _add_owner(document: dict[str, Any], team: str) -> dict[str, Any]:
    """Return a request that makes an experiment or a registered model, with the tag of its owner."""
    if any(document.get(key) for key in _LOCATION):
        raise InvalidError(
            "Leave artifact_location out: the files of a team's experiment are stored where MLflow puts them."
        )
    tags = document.get("tags") or []
    if not isinstance(tags, list):
        raise InvalidError("The tags must be a list of objects with a key and a value.")
    others = [tag for tag in tags if not (isinstance(tag, dict) and tag.get("key") == OWNER)]
    return {**document, "tags": [*others, {"key": OWNER, "value": team}]}


def format_refusal(code: str, message: str) -> bytes:
    return json.dumps({"error_code": code, "message": message}).encode()


def _hide_refusals(send: Send, team: str) -> Send:
    """Return what sends MLflow's answers, where what a team may not see is as if it were not there."""
    text = f"The team {team!r} has nothing by this name: it is not there, or is another team's."
    is_hidden = False

    async def send_answer(message: MutableMapping[str, Any]) -> None:
        nonlocal is_hidden
        if message["type"] == "http.response.start" and message["status"] == 403:
            is_hidden = True
            await answer(send, 404, format_refusal("RESOURCE_DOES_NOT_EXIST", text))
        elif not is_hidden:
            await send(message)

    return send_answer


async def answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
