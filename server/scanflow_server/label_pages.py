"""The label queue in a browser: pages on which people label."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scanflow.agent.records import JSON
from scanflow.errors import InvalidError, NotFoundError
from scanflow_server import label_html as html
from scanflow_server.access import TokenHolder
from scanflow_server.bodies import check_text
from scanflow_server.context import ServerContext
from scanflow_server.page_html import HEADERS
from scanflow_server.page_requests import form_of, page_response, see_other
from scanflow_server.routes.labels import LabelBody, give_one
from scanflow_server.store import labels as label_store
from scanflow_server.store.labels import Label

PATH: Final = "/labels"


class LabelPages:
    """The pages below ``/labels``. ``find_caller`` returns who has logged in, or raises that nobody has."""

    def __init__(self, context: ServerContext, find_caller: Callable[[Request], Awaitable[TokenHolder]]) -> None:
        self._context, self._caller = context, find_caller
        self.routes = [
            Route(PATH, self._show, methods=["GET"]),
            Route(PATH, self._label, methods=["POST"]),
            Route(f"{PATH}/picture", self._picture, methods=["GET"]),
        ]

    async def _show(self, request: Request) -> Response:
        caller = await self._caller(request)
        return page_response(await run_in_threadpool(self._shown, dict(request.query_params), caller))

    async def _picture(self, request: Request) -> Response:
        caller = await self._caller(request)

        def find() -> Label:
            with self._context.store.read() as connection:
                return label_store.get(connection, *_key(dict(request.query_params)), own=caller.team)

        found = (await run_in_threadpool(find)).picture
        if found is None:
            raise NotFoundError("It has no picture.")
        return Response(b64decode(found), headers=HEADERS, media_type="image/png")

    async def _label(self, request: Request) -> Response:
        caller, given = await self._caller(request), await form_of(request)
        caller.check("propose", caller.team)
        label = check_text(_value(given))

        def give() -> str:
            at = self._context.clock()
            with self._context.store.write() as connection:
                known = label_store.get(connection, *_key(given), own=caller.team)
                how = LabelBody(label=label, app=known.app, team=known.team, replace=True)
                give_one(connection, known.id, label, how, caller, at=at)
                return _address(_next_wanted(label_store.list_picked_with(connection, known), known.id))

        return see_other(await run_in_threadpool(give))

    def _shown(self, asked: dict[str, str], caller: TokenHolder) -> str:
        with self._context.store.read() as connection:
            left = label_store.count_waiting(connection, own=caller.team)
            if "id" in asked:
                known = label_store.get(connection, *_key(asked), own=caller.team)
            elif first := label_store.list_labels(
                connection, app=asked.get("app"), team=asked.get("team"), own=caller.team, state="wanted", limit=1
            ):
                known = label_store.get(connection, first[0].app, first[0].team, first[0].id)
            else:
                return html.nothing(caller.name)
            together = label_store.list_picked_with(connection, known)
        at = next((at for at, one in enumerate(together) if one.id == known.id), 0)
        before, after = together[at - 1] if at else None, together[at + 1] if at + 1 < len(together) else None
        return html.sample(
            known,
            caller=caller.name,
            position=at + 1,
            labelled=sum(one.state == "given" for one in together),
            total=len(together),
            left=left,
            before=None if before is None else _address(before),
            after=None if after is None else _address(after),
            picture=None if known.picture is None else _address(known, "/picture"),
            choices=_choices(together),
        )


def _value(given: dict[str, str]) -> JSON:
    """Return the label that a form gives: JSON as its value, other text as it is."""
    text = given.get("pick") or given.get("label", "").strip()
    if not text:
        raise InvalidError("There is no label. Write one, or go on to the next sample.")
    try:
        value: JSON = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    if value is None:
        raise InvalidError("null is no label. Go on to the next sample; this one goes on waiting.")
    return value


def _key(asked: dict[str, str]) -> tuple[str, str, str]:
    key = asked.get("app", ""), asked.get("team", ""), asked.get("id", "")
    check_text(key)
    return key


def _address(one: Label | None, below: str = "") -> str:
    return PATH if one is None else f"{PATH}{below}?{urlencode({'app': one.app, 'team': one.team, 'id': one.id})}"


def _next_wanted(together: Sequence[Label], id: str) -> Label | None:
    """Return what waits for a label after that one, or before it; None: nothing does."""
    at = next((at for at, one in enumerate(together) if one.id == id), -1)
    return next((one for one in (*together[at + 1 :], *together[: at + 1]) if one.state == "wanted"), None)


def _choices(together: Sequence[Label]) -> list[JSON]:
    """Return the labels that were given or guessed until now, to choose from. One alone would tell the guess: none."""
    found: dict[str, JSON] = {}
    for one in together:
        for label in (one.label, one.guess):
            if label is not None:
                found.setdefault(json.dumps(label, sort_keys=True), label)
    texts = sorted(found, key=lambda text: (len(text), text))[: html.MOST_CHOICES]
    return [found[text] for text in texts] if len(texts) > 1 else []
