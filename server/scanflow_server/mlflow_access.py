"""What of MLflow's server is reachable through this one, by whom, and how its artifacts are named there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

from starlette.requests import Request

from scanflow.errors import InvalidError
from scanflow.knowledge.mlflow.rest_client import is_served
from scanflow_server.access import PERMISSIONS, TokenHolder, explain_refusal

Access = Literal["read", "log"]

_API: Final = re.compile(r"/(?:api|ajax-api)/[23]\.0/mlflow/(?P<resource>[A-Za-z-]+)(?:/.*)?")
_ARTIFACTS: Final = re.compile(r"/(?:api|ajax-api)/2\.0/mlflow-artifacts/(?:artifacts(?:/.*)?|mpu/.+|presigned/.+)")
_FILES: Final = re.compile(r"/(?:model-versions/)?get-artifact")
_PAGES: Final = re.compile(r"/|/version|/health|/static-files/.+")
_RESOURCES: Final = frozenset(
    "artifacts datasets experiments get-online-trace-details get-trace-artifact issues label-schemas logged-models "
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


def explain_mlflow_refusal(caller: TokenHolder, access: Access, *, by_page: bool) -> str | None:
    """Return why a caller may not send a request to MLflow; None: it is allowed.

    ``by_page``: the caller is known by the cookie of the pages, which reads and writes nothing.
    """
    if access == "log" and by_page:
        return "In a browser MLflow's pages are for reading. Change it with MLflow's client, by MLFLOW_TRACKING_TOKEN."
    permissions = PERMISSIONS[caller.role]
    if access == "log" and "log" not in permissions:
        return explain_refusal(caller, "log", caller.team)
    if "log" not in permissions and caller.team is not None:
        return (
            f"The token {caller.name!r} reads what is the team {caller.team!r}'s alone, and MLflow does not tell teams "
            "apart. Use a viewer's token of all teams, or an editor's of the team."
        )
    return None


def holds_files(path: str) -> bool:
    """Return whether the answer at a path is what a step or a person wrote: a browser must not run it as a page."""
    return bool(
        _FILES.fullmatch(path) or _ARTIFACTS.fullmatch(path) or "/artifacts/files" in path or "get-trace-arti" in path
    )


_LOCATIONS: Final = ("artifact_location", "artifact_uri", "storage_location", "source")
_SERVED: Final = "mlflow-artifacts:"
_MAX_JSON_BYTES: Final = 2**20
"""The largest body that is read whole: one that says where files lie. All others are streamed."""


def names_location(method: str, path: str) -> bool:
    """Return whether a request may say where files lie."""
    return method == "POST" and path.endswith(("/experiments/create", "/model-versions/create"))


async def read_json_body(request: Request) -> bytes:
    """Read the body of a request that says where files lie, which is small.

    Raises:
        InvalidError: it is too large.
    """
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > _MAX_JSON_BYTES:
            raise InvalidError(f"The body has more than {_MAX_JSON_BYTES} bytes. Send less.")
    return bytes(body)


class ArtifactAddresses:
    """The addresses of artifacts: folders of this machine in MLflow's database, ``mlflow-artifacts:`` for clients."""

    def __init__(self, root: Path | None) -> None:
        """``root``: the folder of MLflow's artifacts. None: it is elsewhere, and MLflow names them as for clients."""
        self._root = None if root is None else root.as_uri()
        keys = "|".join(_LOCATIONS)
        self._stored = re.compile(rf'("(?:{keys})"\s*:\s*"){re.escape(self._root or "")}(?=[/"])'.encode())

    @property
    def are_local(self) -> bool:
        return self._root is not None

    def convert_answer(self, answer: bytes) -> bytes:
        """Return a JSON answer of MLflow in which the folder's address is ``mlflow-artifacts:``."""
        return answer if self._root is None else self._stored.sub(rb"\g<1>" + _SERVED.encode(), answer)

    def convert_request(self, body: bytes) -> bytes:
        """Return a JSON request that says where files lie, with addresses as MLflow's database has them.

        Raises:
            InvalidError: it is not JSON, or a place is not in the tracker's own store.
        """
        try:
            document = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidError(f"The body is not JSON: {error}.") from error
        if not isinstance(document, dict):
            raise InvalidError("The body must be a JSON object.")
        return json.dumps({key: self._convert(key, value) for key, value in document.items()}).encode()

    def _convert(self, key: str, value: Any) -> Any:
        snake = re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()  # protocol buffers accept both spellings
        if snake not in _LOCATIONS or value in (None, ""):
            return value
        text = str(value)
        if text.startswith(("models:/", "runs:/")):  # resolved by MLflow to what it has stored
            return value
        served = is_served(text)
        if self._root is not None and served:
            text = f"{self._root}/{text.removeprefix(_SERVED).lstrip('/')}"
        inside = served if self._root is None else text.startswith(f"{self._root}/")
        if not inside or ".." in unquote(text).split("/"):
            raise InvalidError(
                f"{str(value)!r:.200} is not in the tracker's own artifact store. Leave {key!r} out: files are then "
                "stored there."
            )
        return text
