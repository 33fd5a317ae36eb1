"""Calls to a deployed service: made at its own address, with nothing in between."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scanflow.backends.port import ServiceClient
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.transport import Answer


class ServiceCalls(ABC):
    """The part of a :class:`~scanflow.deployer.port.Deployer` that needs nothing but a service's record."""

    @abstractmethod
    def service(self, name: str) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.service`."""

    def connect(self, name: str) -> ServiceClient:
        from scanflow.transport import HttpServiceClient

        return HttpServiceClient(self.service(name).url, name=name, token=os.environ.get("SCANFLOW_SERVICE_TOKEN"))

    def predict(
        self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None, binary: bool = True
    ) -> Answer:
        with self.connect(name) as client:
            answer: Answer = client.infer(node or name, inputs, dtype=dtype, binary=binary)
            return answer
