"""An inference graph of the user's objects, called in this thread. Edges are data flow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.app.application import Application
from scanflow.app.inference import list_outputs_of_graph
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.application_loading import load_function
from scanflow.errors import NotFoundError, ServiceFailedError, UnsupportedError, UsageError, did_you_mean

_METHODS = {
    "MODEL": "predict",
    "TRANSFORMER": "transform_input",
    "OUTPUT_TRANSFORMER": "transform_output",
    "ROUTER": "route",
    "COMBINER": "aggregate",
}
_ALL = -1
"""The value that a ROUTER returns to take all of its branches."""


def check_files(app: Application, workflow: Workflow) -> None:
    """Check that the files of an online workflow exist and have its classes.

    Raises:
        NotFoundError: one is missing.
    """
    places = AppFiles(app, workflow)
    for service in workflow.services:
        places.find_component_file(service)


class InferenceGraph:
    def __init__(
        self, app: Application, workflow: Workflow, models: Mapping[str, Any], versions: Mapping[str, str]
    ) -> None:
        """Create the nodes.

        Args:
            app: The application.
            workflow: The online workflow.
            models: Objects by the address of a model version.
            versions: The model version of each node that has one.

        Raises:
            UsageError: a node cannot be created; the message says why.
        """
        self.versions = dict(versions)
        self._order = [workflow.by_name[name] for level in workflow.levels for name in level]
        self._parents, self._names = workflow.parents, [service.name for service in workflow.services]
        places = AppFiles(app, workflow)
        self._calls = {service.name: _call(service, places, models, versions) for service in workflow.services}

    def predict(self, value: Any, node: str | None = None) -> Any:
        """Return the graph's answer, or that of one node.

        Raises:
            ServiceFailedError: a node raised, or no branch or several answered.
        """
        if node is not None:
            if node not in self._calls:
                raise NotFoundError(f"There is no model {node!r}.{did_you_mean(node, self._calls)}")
            return self._calls[node](value)
        results: dict[str, Any] = {}
        branches: dict[str, int] = {}
        for service in self._order:
            parents = sorted(self._parents[service.name], key=self._names.index)
            active = [
                parent
                for parent in parents
                if parent in results and self._is_branch_taken(parent, service.name, branches)
            ]
            if parents and not active:
                continue
            inputs = [results[parent] for parent in active] or [value]
            result = self._calls[service.name](inputs if getattr(service, "role", "") == "COMBINER" else inputs[0])
            if getattr(service, "role", "") == "ROUTER":
                branches[service.name], result = self._branch(service.name, result), inputs[0]
            results[service.name] = result
        leaf_results = [results[name] for name in list_outputs_of_graph(self._parents) if name in results]
        if len(leaf_results) != 1:
            raise ServiceFailedError(f"The graph has {len(leaf_results)} answers. Join them with a COMBINER.")
        return leaf_results[0]

    def _list_children(self, name: str) -> list[str]:
        return [child for child in self._names if name in self._parents[child]]

    def _is_branch_taken(self, parent: str, child: str, branches: Mapping[str, int]) -> bool:
        branch = branches.get(parent, _ALL)
        return branch == _ALL or self._list_children(parent)[branch] == child

    def _branch(self, router: str, result: Any) -> int:
        children = self._list_children(router)
        number = children.index(result) if isinstance(result, str) and result in children else int(result)
        if not _ALL <= number < len(children):
            raise ServiceFailedError(f"The node {router!r} chose {result!r:.80}, which is not one of its branches.")
        return number


def _call(
    service: Service, places: AppFiles, models: Mapping[str, Any], versions: Mapping[str, str]
) -> Callable[[Any], Any]:
    name, method = service.name, _METHODS[service.role]
    address = versions.get(name)
    try:
        if address is not None:
            subject = models[address]
        else:
            component = load_function(service.implementation or "", places.find_component_file(service))
            subject = component(**service.parameters)
            if callable(load := getattr(subject, "load", None)):
                load()
        call: Callable[..., Any] = getattr(subject, method)
    except KeyError:
        raise UnsupportedError(
            f"The backend 'memory' has no model registry. Give it the model: Memory(models={{{address!r}: ...}})."
        ) from None
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"The node {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    wide = len(inspect.signature(call).parameters) > 1

    def call_node(value: Any) -> Any:
        try:
            return call(value, []) if wide else call(value)
        except Exception as error:
            raise ServiceFailedError(f"The node {name!r} raised {type(error).__name__}: {error}") from error

    return call_node
