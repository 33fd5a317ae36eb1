"""The page of the label queue: one sample after the other."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from scanflow.agent.agent_records import JSON
from scanflow.errors import InvalidError, NotFoundError
from scanflow_server.bodies import check_text
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.routes.label_routes import LabelBody, record_label
from scanflow_server.store import label_store
from scanflow_server.store.label_store import Label

PATH: Final = "/labels"
_MAX_CHOICES: Final = 12


def load(request: PageRequest) -> PageView:
    caller, query = request.caller, request.query
    command = request.build_command("scanflow labels", app="--app {}", team="--team {}", id="")
    may_label = request.may("propose", caller.team)
    with request.context.store.read() as connection:
        remaining = label_store.count_waiting(connection, own=caller.team)
        if "id" in query:
            sample = label_store.get(connection, *_get_key(query), own=caller.team)
        elif first := label_store.list_labels(
            connection, app=query.get("app"), team=query.get("team"), own=caller.team, state="wanted", limit=1
        ):
            sample = label_store.get(connection, first[0].app, first[0].team, first[0].id)
        else:
            return PageView.make("Labels", command, label=None, may_label=may_label)
        batch = label_store.list_picked_with(connection, sample)
    at = next((at for at, other in enumerate(batch) if other.id == sample.id), 0)
    before, after = batch[at - 1] if at else None, batch[at + 1] if at + 1 < len(batch) else None
    shape = sample.data.get("shape")
    return PageView(
        title="Labels",
        command=command,
        address=_build_url(sample),  # whatever others label meanwhile, what is typed is for the sample that is seen
        values={
            "label": sample,
            "may_label": may_label,
            "position": at + 1,
            "labelled": sum(other.state == "given" for other in batch),
            "total": len(batch),
            "remaining": remaining,
            "before": None if before is None else _build_url(before),
            "after": None if after is None else _build_url(after),
            "picture": None if sample.picture is None else _build_url(sample, "/picture"),
            "size": "×".join(map(str, shape)) if isinstance(shape, list) else "",
            "choices": _list_choices(batch),
            "own": next((vote.label for vote in reversed(sample.votes or []) if vote.voter == caller.name), None),
        },
    )


def get_picture(request: PageRequest) -> bytes:
    """Return the picture of the sample that an address names; NotFoundError: it has none."""
    with request.context.store.read() as connection:
        picture = label_store.get(connection, *_get_key(request.query), own=request.caller.team).picture
    if picture is None:
        raise NotFoundError("The sample has no picture.")
    return b64decode(picture)


def give_label(request: PageRequest, form: Mapping[str, str]) -> str:
    context, caller = request.context, request.caller
    label = check_text(_parse_label(form))
    at = context.clock()
    with context.store.write() as connection:
        sample = label_store.get(connection, *_get_key(form), own=caller.team)
        how = LabelBody(label=label, app=sample.app, team=sample.team, replace=True)
        record_label(connection, sample.id, label, how, caller, at=at)
        return _build_url(_find_next(label_store.list_picked_with(connection, sample), sample.id))


def _parse_label(form: Mapping[str, str]) -> JSON:
    """Return the label of a form: JSON as its value, other text as it is."""
    text = form.get("pick") or form.get("label", "").strip()
    if not text:
        raise InvalidError("The label is empty. Enter one, or go to the next sample.")
    try:
        value: JSON = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    if value is None:
        raise InvalidError("null is not a label. Go to the next sample; this one stays in the queue.")
    return value


def _get_key(query: Mapping[str, str]) -> tuple[str, str, str]:
    key = query.get("app", ""), query.get("team", ""), query.get("id", "")
    check_text(key)
    return key


def _build_url(label: Label | None, below: str = "") -> str:
    return (
        PATH if label is None else f"{PATH}{below}?{urlencode({'app': label.app, 'team': label.team, 'id': label.id})}"
    )


def _find_next(batch: Sequence[Label], id: str) -> Label | None:
    """Return the next sample without a label after that one, or else before it; None: there is none."""
    at = next((at for at, label in enumerate(batch) if label.id == id), -1)
    return next((label for label in (*batch[at + 1 :], *batch[: at + 1]) if label.state == "wanted"), None)


def _list_choices(batch: Sequence[Label]) -> list[JSON]:
    """Return the labels and guesses so far, to choose from; none if there is only one, which would reveal the guess."""
    choices: dict[str, JSON] = {}
    for sample in batch:
        for label in (sample.label, sample.guess):
            if label is not None:
                choices.setdefault(json.dumps(label, sort_keys=True), label)
    texts = sorted(choices, key=lambda text: (len(text), text))[:_MAX_CHOICES]
    return [choices[text] for text in texts] if len(texts) > 1 else []


SERVED: Final = (
    DashboardPage(path=PATH, template="labels", load=load),
    PageAction(path=PATH, perform=give_label, permission="propose", needs_key=False),
)
