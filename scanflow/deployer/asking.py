"""How every deployer asks a service: at the service's own address, with nobody in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.transport import Answer, Predictions, Reply

__all__ = ["AsksServices"]


class AsksServices(ABC):
    """The part of a :class:`~scanflow.deployer.port.Deployer` that needs nothing but a service's record."""

    @abstractmethod
    def service(self, name: str) -> ServiceRecord:
        """See :meth:`~scanflow.deployer.port.Deployer.service`."""

    def predict(
        self, name: str, inputs: Any, *, node: str | None = None, dtype: str | None = None, binary: bool = True
    ) -> Answer:
        """See :meth:`~scanflow.deployer.port.Deployer.predict`."""
        with self._client(name) as client:
            return client.infer(node or name, inputs, dtype=dtype, binary=binary)

    def metadata(self, name: str, *, node: str | None = None) -> dict[str, Any]:
        """See :meth:`~scanflow.deployer.port.Deployer.metadata`."""
        with self._client(name) as client:
            return client.document(f"/v2/models/{node or name}")

    def send(self, name: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """See :meth:`~scanflow.deployer.port.Deployer.send`."""
        with self._client(name) as client:
            return client.post(path, body, headers)

    def _client(self, name: str) -> Predictions:
        from scanflow.transport import Predictions

        return Predictions(self.service(name).url, name=name)
