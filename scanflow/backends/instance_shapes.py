"""Shapes of model versions, stored in the registry; an unavailable registry does not fail a change of a service."""

from __future__ import annotations

from collections.abc import Callable

from scanflow.backends.service_records import Progress, ServiceObserver, Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.backends.service_transitions import Recall
from scanflow.errors import ScanflowError

Remember = Callable[[str, int, Shape], None]
"""Store a shape with a version of a model."""


def suppress_registry_errors(recall: Recall) -> Recall:
    """Wrap ``recall``: return None while the registry is unavailable, because the shape known here is sufficient."""

    def recall_if_reachable(model: str, version: int) -> Shape | None:
        try:
            return recall(model, version)
        except ScanflowError:
            return None

    return recall_if_reachable


def keep_shapes(definition: ServiceSpec, remember: Remember, observe: ServiceObserver) -> None:
    """Store the shape with each served model version, and report failures to ``observe``."""
    if not definition.serving.keep_shape:
        return
    for model in (node.model for revision in definition.revisions for node in revision.nodes if node.model):
        try:
            remember(model.name, model.version, definition.shape)
        except ScanflowError as error:
            text = f"the shape was not stored with models:/{model.name}/{model.version}: {error}"
            observe(Progress(service=definition.workflow, text=text))
