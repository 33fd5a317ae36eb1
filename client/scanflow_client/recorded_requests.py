"""Recent requests to a service, read from its recorded predictions, to be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanflow.errors import NotFoundError
from scanflow_client.predict_io import PredictRequest

if TYPE_CHECKING:
    from scanflow.knowledge.knowledge_port import KnowledgeBase

MAX_FILES = 10
MAX_REQUESTS = 64


def read_recorded_requests(knowledge: KnowledgeBase, app: str, team: str, service: str) -> list[PredictRequest]:
    """Return up to 64 requests of one row each, spread over the newest recorded predictions.

    Raises:
        NotFoundError: no prediction is recorded.
    """
    from scanflow.drift.prediction_data import arrays_of
    from scanflow.drift.read import INPUT

    query = f"tags.`scanflow.kind` = 'predictions' and tags.`scanflow.service` = '{service}'"
    requests: list[PredictRequest] = []
    for run in knowledge.search_runs(app, team, query, limit=MAX_FILES):
        arrays = arrays_of(knowledge, run.run_id)
        inputs = {name.removeprefix(INPUT): values for name, values in arrays.items() if name.startswith(INPUT)}
        count = min((len(values) for values in inputs.values()), default=0)
        requests += [
            PredictRequest(inputs={name: values[row : row + 1] for name, values in inputs.items()})
            for row in range(count)
        ]
    if not requests:
        raise NotFoundError(
            f"No predictions of {service!r} are recorded, so there is no request to send. Record some, with "
            "serving=sf.Serving(record=0.1), or give a request: --data or --npy."
        )
    step = max(1, len(requests) // MAX_REQUESTS)
    return requests[::step][:MAX_REQUESTS]
