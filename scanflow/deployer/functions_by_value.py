"""Functions that no file holds, by value: named by their content, and loaded where their step runs.

A server keeps their bytes, signed, without loading them. See docs/decisions/026.
"""

from __future__ import annotations

import base64
import math
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor, Target
from scanflow.app.steps import Step, is_found_by_name
from scanflow.app.workflow import Workflow
from scanflow.backends.function_store import compute_name, is_saved_function
from scanflow.errors import InvalidError, UsageError
from scanflow.http.body_limits import MAX_DEFINITION_BYTES
from scanflow.installation import DISTRIBUTION
from scanflow.modules import is_renamed
from scanflow.names import build_slug

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


def save_functions(workflow: Workflow, save: Callable[[bytes], str], *, max_bytes: float = math.inf) -> Workflow:
    """Return a workflow whose functions are what they were when they were bound, wherever a step calls them.

    One that its name leads to stays that name: a step loads it from its file. All others (those of the running program
    or notebook, lambdas, closures, partials, methods of an object, and those whose name was defined again since) are
    pickled, and named by what ``save`` returns for their content.

    Raises:
        InvalidError: one cannot be pickled, or takes more than ``max_bytes``.
    """
    saved: dict[int, str] = {}
    return workflow.replace(nodes=tuple(_save_function(node, save, max_bytes, saved) for node in workflow.nodes))


def _save_function(node: Any, save: Callable[[bytes], str], max_bytes: float, saved: dict[int, str]) -> Any:
    """See :func:`save_functions`; ``saved``: those of earlier nodes, by the identity of their functions."""
    target = node.target if isinstance(node, Executor) else None
    if target is None or target.call is None:
        return node
    function = getattr(target.call, "function", target.call)
    if is_found_by_name(function):
        return node
    name = target.rpartition(":")[2]
    name = name if all(map(str.isidentifier, name.split("."))) else build_slug(name.rpartition(".")[2]) or "function"
    if id(function) not in saved:
        saved[id(function)] = save(_pickle_within(function, node.name, max_bytes))
    named = Target(f"{saved[id(function)]}:{name}", target.call)
    return node.model_copy(update={"function": named})  # a thousand steps: nothing else changes that is to be checked


def upload_functions(app: Application, server: ServerClient) -> Application:
    """Upload an application's functions that are in no file, and return an application that refers to the uploads.

    Raises:
        InvalidError: one cannot be sent; or the server has other versions of what makes and reads them.
    """

    @cache
    def upload(pickled: bytes) -> str:
        body = {"pickled": base64.b64encode(pickled).decode(), **read_versions()}
        return str(server.post("/functions", body)["name"])

    def upload_all(workflow: Workflow) -> Workflow:
        try:
            return save_functions(workflow, upload, max_bytes=MAX_BYTES)
        except InvalidError as error:
            raise InvalidError(f"{error} Or {_INSTEAD}") from error.__cause__

    return app.replace(workflows=tuple(map(upload_all, app.workflows)))


begun_runs: dict[str, tuple[Application, frozenset[tuple[str, str]]]] = {}
"""By a run's name its application, and the workflows' steps whose functions were those of their names then."""


def remember_application(run: str, app: Application | None) -> None:
    """Remember the application of a run that this process has begun, for :func:`find_application`."""
    if app is not None:
        begun_runs[run] = (
            app,
            frozenset(
                (workflow.name, node.name)
                for workflow in app.workflows
                for node in workflow.nodes
                if (live := _find_live_function(node)) is not None and live.function is _get_bound_function(node)
            ),
        )


def find_application(run: str) -> Application | None:
    """Return the application of a run that this process began, with the functions that its program or notebook has
    under their names now: one that was mended in its cell is the one to run. One whose name had another function when
    the run began stays what its step was bound with. None: another process began it."""
    if run not in begun_runs:
        return None
    app, followed = begun_runs[run]

    def replace_function(workflow: Workflow, node: Any) -> Any:
        live = _find_live_function(node) if (workflow.name, node.name) in followed else None
        return node if live is None else node.replace(function=Target(str(node.target), live))

    return app.replace(
        workflows=tuple(
            workflow.replace(nodes=tuple(replace_function(workflow, node) for node in workflow.nodes))
            for workflow in app.workflows
        )
    )


def _find_live_function(node: Any) -> Step[Any, Any] | None:
    """Return the step that the running program or notebook has now under the name of a node's function."""
    target = node.target if isinstance(node, Executor) else None
    module, _, name = (target or "").rpartition(":")
    return _find_live_step(name) if target is not None and target.call is not None and module == "__main__" else None


def _get_bound_function(node: Any) -> Any:
    return getattr(node.target.call, "function", node.target.call)


def check_live_functions(workflow: Workflow) -> None:
    """Check that a run which another process began would not call another function than the one of that name here.

    Raises:
        UsageError: names the step, and what to write.
    """
    for node in workflow.nodes:
        target = node.target if isinstance(node, Executor) else None
        if target is None or target.call is not None or not is_saved_function(target.partition(":")[0]):
            continue
        live = _find_live_step(target.partition(":")[2])
        if live is not None and not target.startswith(compute_name(_pickle(live.function, node.name))):
            raise UsageError(
                f"Another process started this run, with another function {live.__name__!r} than this program has. To "
                "continue with the function of this program, give the application: client.resume(run, app=app)"
            )


def _find_live_step(name: str) -> Step[Any, Any] | None:
    """Return the step that the running program or notebook has under a name now."""
    value: Any = sys.modules.get("__main__")
    for part in name.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, Step) else None


def _pickle_within(function: Callable[..., Any], step: str, max_bytes: float) -> bytes:
    if len(content := _pickle(function, step)) > max_bytes:
        raise InvalidError(
            f"The step {step!r} is a function of the running program or notebook and takes "
            f"{len(content) / 2**20:.1f} MiB, more than the limit of {max_bytes / 2**20:.1f} MiB: it uses a large "
            "global variable. Load its data inside the function, or give it a file's path as a parameter."
        )
    return content


def _pickle(function: Callable[..., Any], step: str) -> bytes:
    import cloudpickle

    from scanflow.backends.pickles import dump_function

    own = [module for module in list(sys.modules.values()) if is_renamed(module)]
    try:
        for module in own:  # nothing is imported by that name elsewhere
            cloudpickle.register_pickle_by_value(module)
        content = dump_function(function)
    except Exception as error:  # a class of the user's may refuse in its own way
        raise InvalidError(
            f"The step {step!r} is a function that no name leads to (of the running program or notebook, a lambda, a "
            f"closure, or defined again), and it cannot be pickled: {error}. Create that object inside the function."
        ) from error
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    return content
