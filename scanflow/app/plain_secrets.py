"""Finds plain values under names of secrets in applications that are to be stored, and references to variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scanflow.app.application import Application
from scanflow.app.secrets import iterate_secrets
from scanflow.errors import InvalidError
from scanflow.text.masking import SECRET_KEY, STARS, mask_addresses
from scanflow.text.secret_names import takes_secret

_REFERENCE = re.compile(r"(env|file|k8s):.+", re.DOTALL)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")
_MODE = re.compile(r"[a-z]{1,10}")
"""What ``auth="basic"`` is: the name of a way, and no credential."""

_OPTION = re.compile(r"(--?[A-Za-z][\w.\-]*)(?:=(.*))?", re.DOTALL)


def check_no_plain_secrets(app: Application, *, workflow: str | None = None) -> None:
    """Refuse an application that is to be stored if it has a plain value under a name of a secret.

    Args:
        app: The application.
        workflow: The one whose definition is stored, with the tracker. None: all of the application is.

    Raises:
        InvalidError: names the value's place, and says what to write.
    """
    document = app.model_dump(mode="json", exclude_defaults=True)
    elsewhere = () if workflow is None else _list_places_beside(app, workflow)
    for path, name in iterate_plain_secrets(document):
        if path.startswith(elsewhere):
            continue
        where = f"Application {app.name!r}: {path}"
        if any(part.get("kind") == "mpi" for part in _iterate_nodes(document) if path.startswith(part["path"])):
            advice = "Arguments of MPI programs are readable by every user of the machines: give it the path of a file."
        else:
            variable = re.sub(r"\W+", "_", name).strip("_").upper() or "NAME"
            advice = (
                f"Write sf.secret('env:{variable}') in its place, and set that variable where the server runs; or "
                "file:PATH, or on Kubernetes k8s:SECRET/KEY."
            )
        raise InvalidError(
            f"{where} is a plain value under the name of a secret, and would be stored with the application. {advice}"
        )


def _list_places_beside(app: Application, workflow: str) -> tuple[str, ...]:
    """Return the prefixes of the places that the definition of one workflow leaves out."""
    others = (f"workflows.{index}." for index, other in enumerate(app.workflows) if other.name != workflow)
    return "agents.", "notify.", *others


def iterate_plain_secrets(document: Any, path: str = "", *, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the places of plain values under names of secrets, as ``workflows.0.nodes.1.env.API_KEY``, and the names.

    ``name``: that of the value, or of the mapping that it is in, if that is a secret's.
    """
    if isinstance(document, Mapping):
        if set(document) in ({SECRET_KEY}, {"$from"}):
            return
        for key, inner in document.items():
            inner_name = str(key) if _is_secret_name(str(key), inner) else name
            yield from iterate_plain_secrets(inner, f"{path}.{key}" if path else str(key), name=inner_name)
    elif isinstance(document, list | tuple):
        option = ""
        for index, inner in enumerate(document):
            place, match = f"{path}.{index}", _OPTION.fullmatch(inner) if isinstance(inner, str) else None
            if match is not None:
                option = "" if match[2] is not None else match[1]
                if match[2] is not None and _is_plain(match[1], match[2]):
                    yield place, match[1].lstrip("-")
                continue
            own = option.lstrip("-") if option and _is_secret_name(option, inner) else name
            yield from iterate_plain_secrets(inner, place, name=own)
            option = ""
    elif name and _is_plain(name, document):
        yield path, name


def _is_secret_name(name: str, value: Any) -> bool:
    if name in {"token", "tokens"} and isinstance(value, list | tuple):
        return False  # words of a text
    return takes_secret(name, value if isinstance(value, str) else "text")


def _is_plain(name: str, value: Any) -> bool:
    """Return whether a value under a secret's name is the secret itself."""
    if value is None or isinstance(value, bool):
        return False
    if not isinstance(value, str):
        return takes_secret(name, str(value)) and "tokens" not in name.lower()
    if not value.strip() or value == STARS or _REFERENCE.fullmatch(value) or not takes_secret(name, value):
        return False
    if _ADDRESS.fullmatch(value) and mask_addresses(value) == value:
        return False  # where a secret is had from
    return not (name.lower().rpartition("_")[2] == "auth" and _MODE.fullmatch(value))


def _iterate_nodes(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for number, workflow in enumerate(document.get("workflows", ())):
        for index, node in enumerate(workflow.get("nodes", ())):
            yield {"path": f"workflows.{number}.nodes.{index}.", "kind": node.get("kind")}


def list_inherited_sources(app: Application) -> list[str]:
    """Return the references of an application to variables, ``env:NAME``, which its processes inherit."""
    texts = [text for webhook in app.notify for text in (webhook.url, webhook.secret)]
    texts += [workflow.serving.auth for workflow in app.workflows if workflow.serving is not None]
    texts += [] if app.tracker is None else [app.tracker.uri]
    texts += [secret.source for secret in iterate_secrets(app)]
    return sorted({text for text in texts if text is not None and text.startswith("env:")})
