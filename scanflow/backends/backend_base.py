"""A backend without any feature, which says so: the base of those that have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, NoReturn

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import HostedProgram, Lease, OnlineBackend, RunBackend
from scanflow.errors import UnsupportedError

if TYPE_CHECKING:
    from scanflow.backends.agent_hosting import AgentBackend
    from scanflow.backends.environments import EnvironmentBackend, ObjectChange
    from scanflow.backends.findings import Finding


class BackendBase:
    """See :class:`~scanflow.backends.backend_port.Backend`. What is not overridden raises ``UnsupportedError``;
    objects, an own tracker and findings there are none."""

    name: ClassVar[str]
    """Its name in errors: that of its entry point."""

    def batch(self) -> RunBackend:
        self._refuse("cannot run batch workflows. Name one that can: --backend local")

    def online(self, tracker: str | None = None) -> OnlineBackend:  # noqa: ARG002
        self._refuse("cannot serve online workflows. Name one that can: --backend local")

    def mpi(self) -> RunBackend:
        self._refuse("cannot run MPI jobs. Name one that can: --backend local")

    def agents(self, *, ended: Callable[[], None]) -> AgentBackend:  # noqa: ARG002
        self._refuse("cannot host agents. Name one that can: --backend local")

    def lease(self, name: str, *, holder: str, duration_s: float) -> Lease:  # noqa: ARG002
        self._refuse("has no leases: it has one server at a time anyway. Unset SCANFLOW_SERVER_LEASE")

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:  # noqa: ARG002
        return []

    def environments(self) -> EnvironmentBackend:
        self._refuse("has no environments: a run needs no preparation. Name a cluster: --backend kubernetes")

    def tracker(self, app: Application) -> str | None:  # noqa: ARG002
        return None

    def program(
        self,
        command: Sequence[str],  # noqa: ARG002
        environment: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[HostedProgram]:
        self._refuse("does not host programs: start them on this machine.")

    def doctor(self, *, thorough: bool = False) -> list[Finding]:  # noqa: ARG002
        return []

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(f"The backend {self.name!r} {what}")
