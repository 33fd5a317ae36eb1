"""What of MLflow's server is reachable through this one, by whom, and how its artifacts are named there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from scanflow.errors import InvalidError
from scanflow.knowledge.knowledge_port import APPLICATION_FILE
from scanflow.knowledge.mlflow.rest_client import is_served
from scanflow_server.token_roles import PERMISSIONS, TokenHolder, explain_refusal

Access = Literal["read", "log"]

_API: Final = re.compile(r"/(?:api|ajax-api)/[23]\.0/mlflow/(?P<resource>[A-Za-z-]+)(?:/.*)?")
_ARTIFACTS: Final = re.compile(
    r"/(?:api|ajax-api)/2\.0/mlflow-artifacts/(?:artifacts|mpu/(?:create|complete|abort)|presigned)(?:/(?P<path>.*))?"
)
_FILES: Final = re.compile(
    r"/(?:model-versions/)?get-artifact"
    r"|/(?:api|ajax-api)/[23]\.0/mlflow/(?:get-trace-artifact|logged-models/[^/]+/artifacts/files)(?:/.*)?"
)
_PAGES: Final = re.compile(r"/|/version|/health|/static-files/.+")
_RESOURCES: Final = frozenset(
    "artifacts datasets experiments get-online-trace-details issues label-schemas logged-models "
    "metrics model-versions registered-models review-queues runs server-info traces unified-traces "
    "upload-artifact".split()
)
"""What people track and register. Not among them is what makes MLflow's server run programs or call other servers:
jobs, assistant, gateway, webhooks, scorers, prompt optimization."""

_READING_POSTS: Final = re.compile(
    r".*/(?:search|search-datasets|get-latest-versions|batchGetInfos|calculate-filter-correlation|traces/metrics"
    r"|presigned-download-url)"
)
_GRAPH_QUERIES: Final = "/graphql"
_TRACES: Final = "/v1/traces"


def classify_request(method: str, path: str) -> Access | None:
    """Return what a request to MLflow does: read, or also write; None: it is not offered.

    Args:
        method: Of HTTP.
        path: MLflow's own, decoded, with a leading slash.
    """
    if any(part in {".", ".."} for part in path.split("/")) or not path.isprintable():
        return None  # on its way it could become another path
    api = _API.fullmatch(path)
    if path == _TRACES:
        return "log" if method == "POST" else None
    if path == _GRAPH_QUERIES:
        return "read" if method in {"GET", "POST"} else None
    is_page = bool(_PAGES.fullmatch(path) or _FILES.fullmatch(path))
    if not (is_page or _ARTIFACTS.fullmatch(path) or (api and api["resource"] in _RESOURCES)):
        return None
    if method in {"GET", "HEAD"} or (method == "POST" and not is_page and _READING_POSTS.fullmatch(path)):
        return "read"
    return None if is_page else "log"


def explain_mlflow_refusal(
    caller: TokenHolder, access: Access, *, by_page: bool, names: tuple[str, ...] = ()
) -> str | None:
    """Return why a caller may not send a request to MLflow; None: it is allowed.

    Args:
        caller: Who sends it.
        access: What it does.
        by_page: The caller is known by the cookie of the pages, which reads and writes nothing.
        names: Texts that may name files: the path, and the values of the query.
    """
    if access == "log" and by_page:
        return "In a browser MLflow's pages are for reading. Change it with MLflow's client, by MLFLOW_TRACKING_TOKEN."
    permissions = PERMISSIONS[caller.role]
    if (by_page or "log" not in permissions) and any(map(_names_application, names)):
        return (
            f"A saved application ({APPLICATION_FILE}) may hold secrets, which are for what runs it: use an editor's "
            "token with MLflow's or Scanflow's client."
        )
    if access == "log" and "log" not in permissions:
        return explain_refusal(caller, "log", caller.team)
    return None


def _names_application(text: str) -> bool:
    """Return whether a text names the file of a saved application."""
    return APPLICATION_FILE in _decode(text).split("/")


def _decode(text: str) -> str:
    """Decode a path until nothing changes, as MLflow does."""
    while (decoded := unquote(text)) != text:
        text = decoded
    return text


def list_artifact_paths(path: str, folders: Sequence[str]) -> list[str]:
    """Return the paths below the store's root that a request for streamed artifacts names.

    Args:
        path: The request's.
        folders: The values of ``path`` in its query, which name the folder to list.
    """
    artifacts = _ARTIFACTS.fullmatch(path)
    if artifacts is None:
        return []
    return [_decode(artifacts["path"])] if artifacts["path"] else [_decode(folder) for folder in folders or [""]]


def holds_files(path: str) -> bool:
    """Return whether the answer at a path is what a step or a person wrote: a browser must not run it as a page."""
    return bool(_FILES.fullmatch(path) or _ARTIFACTS.fullmatch(path))


_LOCATIONS: Final = ("artifact_location", "artifact_uri", "storage_location", "source")
_SERVED: Final = "mlflow-artifacts:"
_TRACE_LOCATIONS: Final = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation")
"""The tag with the place of a trace's files, which MLflow believes whoever sets it."""

MAX_QUERY_BYTES: Final = 2**16
"""The largest body of a request that reads. MLflow parses filters in quadratic time: 1 MiB took it 4.5 s."""

MAX_DOCUMENT_BYTES: Final = 4 * 2**20
"""The largest body of a request that writes and is no file."""


def names_location(method: str, path: str) -> bool:
    """Return whether a request may say where files lie."""
    creates = method == "POST" and path.endswith(("/experiments/create", "/model-versions/create"))
    return creates or (method in {"POST", "PATCH", "PUT"} and "/mlflow/traces" in path)


def sends_document(method: str, path: str) -> bool:
    """Return whether a request writes by a JSON document."""
    is_log = path != _TRACES and classify_request(method, path) == "log"
    return is_log and find_body_limit("log", path) is not None


def find_body_limit(access: Access, path: str) -> int | None:
    """Return how many bytes the body of a request to MLflow may have; None: a file, which is streamed."""
    if _ARTIFACTS.fullmatch(path) or path.endswith("/upload-artifact"):
        return None
    return MAX_QUERY_BYTES if access == "read" else MAX_DOCUMENT_BYTES


class ArtifactAddresses:
    """The addresses of artifacts: folders of this machine in MLflow's database, ``mlflow-artifacts:`` for clients."""

    def __init__(self, root: Path | None) -> None:
        """``root``: the folder of MLflow's artifacts. None: it is elsewhere, and MLflow names them as for clients."""
        self._root = None if root is None else root.as_uri()
        fields, tags = "|".join(_LOCATIONS), "|".join(map(re.escape, _TRACE_LOCATIONS))
        keys = rf'"(?:{fields})"\s*:|"(?:{tags})"\s*(?:,\s*"value"\s*)?:'
        self._stored = re.compile(rf'((?:{keys})\s*"){re.escape(self._root or "")}(?=[/"])'.encode())

    @property
    def are_local(self) -> bool:
        return self._root is not None

    def convert_answer(self, answer: bytes) -> bytes:
        """Return a JSON answer of MLflow in which the folder's address is ``mlflow-artifacts:``."""
        return answer if self._root is None else self._stored.sub(rb"\g<1>" + _SERVED.encode(), answer)

    def convert_request(self, body: bytes, note: Callable[[str], None] = lambda _: None) -> bytes:
        """Return a JSON request that says where files lie, with addresses as MLflow's database has them.

        Args:
            body: The request's.
            note: Gets the path of each place, below the store's root.

        Raises:
            InvalidError: it is not JSON, or a place is not in the tracker's own store.
        """
        try:
            document = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidError(f"The body is not JSON: {error}.") from error
        if not isinstance(document, dict):
            raise InvalidError("The body must be a JSON object.")
        return json.dumps(self._convert_members(document, note)).encode()

    def _convert_members(self, value: Any, note: Callable[[str], None]) -> Any:
        if isinstance(value, list):
            return [self._convert_members(inner, note) for inner in value]
        if not isinstance(value, dict):
            return value
        if (key := value.get("key")) in _TRACE_LOCATIONS:
            return {**value, "value": self._convert(key, value.get("value"), note)}
        return {key: self._convert(key, self._convert_members(inner, note), note) for key, inner in value.items()}

    def _convert(self, key: str, value: Any, note: Callable[[str], None]) -> Any:
        snake = re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()  # protocol buffers accept both spellings
        if snake not in _LOCATIONS and key not in _TRACE_LOCATIONS:
            return value
        if value in (None, "") or not isinstance(value, str):
            return value
        text = value
        if snake == "source" and text.startswith(("models:/", "runs:/")):  # resolved by MLflow to what it has stored
            return value
        served = is_served(text)
        if self._root is not None and served:
            text = f"{self._root}/{text.removeprefix(_SERVED).lstrip('/')}"
        inside = served if self._root is None else text.startswith(f"{self._root}/")
        if not inside or ".." in unquote(text).split("/"):
            remedy = (  # a version has to have a source
                "Log the model to a run of this tracker, and name that: runs:/RUN/NAME"
                if snake == "source"
                else f"Leave {key!r} out: files are then stored there"
            )
            raise InvalidError(f"{str(value)!r:.200} is not in the tracker's own artifact store. {remedy}.")
        note(unquote(text.removeprefix(self._root or _SERVED)).strip("/"))
        return text
