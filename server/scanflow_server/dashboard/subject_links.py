"""Links from actions and events to the pages of what they are about. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from scanflow.backends.service_records import ServiceRecord
from scanflow_server.dashboard.page_cells import LinkCell

_MODEL: Final = re.compile(r"models:/([^/@]+)[/@]([^/@]+)")
_NAMING: Final = ("workflow", "service", "run", "model", "agent")
"""The keys of an action's arguments and result, and of an event's data, that name a resource."""

_DRIVES: Final = frozenset({"run", "resume", "spin"})
"""What an event of a run that starts calls its ``action``: no action's id."""


def find_address(subject: str, app: str) -> str | None:
    """Return the address of the page of a target or an event's subject, such as ``service/NAME``; None: it has none."""
    kind, _, name = subject.partition("/")
    if not name:
        return None
    if kind == "workflow":
        return f"/runs?{urlencode({'app': app, 'workflow': name})}"
    if kind == "agent":
        return build_agent_address(app, name)
    if kind in {"service", "run", "model"}:
        return f"/{kind}s/{quote(name, safe='')}"
    return build_action_address(name) if kind in {"intent", "action"} else None


def build_agent_address(app: str, agent: str) -> str:
    return f"/agents/{quote(app, safe='')}/{quote(agent, safe='')}"


def build_action_address(id: str) -> str:
    return f"/actions/{quote(id, safe='')}"


def build_model_address(name: str, version: str) -> str:
    """Return the address of a version on the page of its model."""
    return f"/models/{quote(name, safe='')}#v{quote(version, safe='')}"


def link_models(record: ServiceRecord) -> list[LinkCell]:
    """Return links to the versions that a service answers with, or that get copies of its requests: ``cnn/3``."""
    shown = [(uri, " (shadow)" if part.shadow else "") for part in record.revisions for uri in part.models.values()]
    links = [
        LinkCell(f"{uri.removeprefix('models:/')}{more}", build_model_address(*match.groups()))
        for uri, more in shown
        if (match := _MODEL.fullmatch(uri))
    ]
    return list(dict.fromkeys(links))


def link_subject(subject: str, app: str) -> LinkCell | str:
    address = find_address(subject, app)
    return subject if address is None else LinkCell(subject, address)


def list_links(app: str, *documents: Any) -> list[LinkCell]:
    """Return a link to each resource that arguments, results or data of events name, each once."""
    links = (link for document in documents if isinstance(document, Mapping) for link in _iterate_links(app, document))
    return list(dict.fromkeys(links))


def _iterate_links(app: str, document: Mapping[str, Any]) -> Iterator[LinkCell]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _iterate_links(app, value)
        elif not isinstance(value, str) or not value or (key, value) == ("agent", "person"):
            continue
        elif match := _MODEL.fullmatch(value):
            yield LinkCell(f"{match[1]} {match[2]}", build_model_address(match[1], match[2]))
        elif key in _NAMING and (address := find_address(f"{key}/{value}", app)) is not None:
            yield LinkCell(f"{key} {value}", address)
        elif key == "action" and value not in _DRIVES:
            yield LinkCell(f"action {value}", build_action_address(value))
