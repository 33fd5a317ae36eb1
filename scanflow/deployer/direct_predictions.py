"""Calls a deployed service directly at its own address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from scanflow.errors import UnavailableError

if TYPE_CHECKING:
    from scanflow.backends.backend_port import ServiceClient
    from scanflow.backends.service_records import Explanation, ServiceRecord
    from scanflow.deployer.deployer_port import Deployer
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
        UnavailableError: it does not answer; where it is scaled to 0 instances, it says so.
    """
    with where.connect(name) as client:
        try:
            answer: PredictionResponse = client.infer(node or name, inputs, dtype=dtype, binary=binary)
        except UnavailableError as error:
            record = where.service(name)
            if record.shape.instances or record.ready:
                raise
            raise UnavailableError(
                f"The service {name!r} has no instance: it is scaled to 0. Start one: scanflow scale {name} 1"
            ) from error
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
