"""Calls a deployed service directly at its own address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from scanflow.errors import UnavailableError

if TYPE_CHECKING:
    from scanflow.backends.port import ServiceClient
    from scanflow.backends.service_records import Explanation, ServiceRecord
    from scanflow.deployer.port import Deployer
    from scanflow.transport import PredictionResponse


def connect_service(record: ServiceRecord) -> ServiceClient:
    """Return an HTTP client of a service."""
    from scanflow.transport import HttpServiceClient

    return HttpServiceClient(record.url, name=record.name, token=os.environ.get("SCANFLOW_SERVICE_TOKEN"))


def predict(
    where: Deployer, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None, binary: bool = True
) -> PredictionResponse:
    """Return a service's prediction for an array, a list, or a mapping of input names to these.

    Raises:
        InvalidError: the service refuses the input.
        ServiceFailedError: a component of its graph failed on it.
    """
    with where.connect(name) as client:
        answer: PredictionResponse = client.infer(node or name, inputs, dtype=dtype, binary=binary)
        return answer


def get_explanation(record: ServiceRecord) -> Explanation:
    """Return the explanation of a service's number of instances.

    Raises:
        UnavailableError: nothing has decided on their number yet.
    """
    if record.explanation is None:
        raise UnavailableError(
            f"There is no scaling decision for {record.name!r} yet: its supervisor has not evaluated it. Try again in "
            "a moment."
        )
    return record.explanation
