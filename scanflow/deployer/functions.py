"""Sends functions of a program or notebook to a server by value, since they are in no file; the server signs them.

A server keeps their bytes without loading them; they are loaded where the step runs. See docs/decisions/026.
"""

from __future__ import annotations

import base64
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor, Target
from scanflow.errors import InvalidError
from scanflow.http.body_limits import MAX_DEFINITION_BYTES
from scanflow.installation import DISTRIBUTION

if TYPE_CHECKING:
    from scanflow.transport import ServerClient

MAX_BYTES = MAX_DEFINITION_BYTES * 3 // 4 - 2**16
"""The largest pickled function, in bytes: it is sent in base64, which takes a third more."""

_INSTEAD = "put it into a file (in a notebook, begin its cell with: %%writefile steps.py) and import it from there."


def read_versions() -> dict[str, str]:
    """Return the versions that both sides must share: pickles of another version may fail to load."""
    python = f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"
    return {"python": python, "cloudpickle": version("cloudpickle"), "scanflow": version(DISTRIBUTION)}


def check_versions(theirs: Mapping[str, str]) -> None:
    """Reject functions that were pickled by other versions.

    Raises:
        InvalidError: says which, and what to do.
    """
    for name, own in read_versions().items():
        if (other := theirs.get(name)) != own:
            raise InvalidError(
                f"A function of a program or notebook cannot be received by value: the client has {name} {other}, the "
                f"server has {own}. Use {own} in the client, too; or {_INSTEAD}"
            )


def upload_functions(app: Application, server: ServerClient) -> Application:
    """Upload an application's functions that are in no file, and return an application that refers to the uploads.

    Raises:
        InvalidError: one cannot be sent; or the server has other versions of what makes and reads them.
    """
    uploaded: dict[str, str] = {}

    def upload(target: Target, step: str) -> str:
        if target not in uploaded:
            body = {"pickled": base64.b64encode(_pickle(target.call, step)).decode(), **read_versions()}
            uploaded[target] = server.post("/functions", body)["name"]
        return uploaded[target]

    def replace_function(node: Any) -> Any:
        target = node.target if isinstance(node, Executor) else None
        module, _, name = (target or "").partition(":")
        if target is None or target.call is None or module != "__main__":
            return node
        return node.replace(function=Target(f"{upload(target, node.name)}:{name}", target.call))

    return app.replace(
        workflows=tuple(
            workflow.replace(nodes=tuple(map(replace_function, workflow.nodes))) for workflow in app.workflows
        )
    )


def _pickle(function: Callable[..., Any] | None, step: str) -> bytes:
    import pickle

    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(getattr(function, "function", function))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidError(
            f"The step {step!r} is a function of the running program or notebook and cannot be sent by value: {error}. "
            f"Create that object inside the function; or {_INSTEAD}"
        ) from error
    if len(content) > MAX_BYTES:
        raise InvalidError(
            f"The step {step!r} is a function of the running program or notebook and takes {len(content) / 2**20:.1f} "
            f"MiB, more than the limit of {MAX_BYTES / 2**20:.1f} MiB: it uses a large global variable. Load its data "
            "inside the function, or give it a file's path as a parameter."
        )
    return content
