"""How each version of a model was served, kept in the registry: one that is away fails no change of a service."""

from __future__ import annotations

from collections.abc import Callable

from scanflow.backends.service_records import Progress, ServiceObserver, Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.backends.service_transitions import Recall
from scanflow.errors import ScanflowError

Remember = Callable[[str, int, Shape], None]
"""Keep a shape with a version of a model."""


def if_there(recall: Recall) -> Recall:
    """Return ``recall``, which finds nothing while the registry is away: the shape known here is as good."""

    def recalled(model: str, version: int) -> Shape | None:
        try:
            return recall(model, version)
        except ScanflowError:
            return None

    return recalled


def keep_shapes(definition: ServiceSpec, remember: Remember, observe: ServiceObserver) -> None:
    """Keep with each model version how it is served, and tell of those with which that failed."""
    if not definition.serving.keep_shape:
        return
    for model in (node.model for revision in definition.revisions for node in revision.nodes if node.model):
        try:
            remember(model.name, model.version, definition.shape)
        except ScanflowError as error:
            text = f"the shape was not kept with models:/{model.name}/{model.version}: {error}"
            observe(Progress(service=definition.workflow, text=text))
