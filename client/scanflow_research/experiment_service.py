"""The service of an experiment, in a temporary home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scanflow.app.application import Application
from scanflow.app.service import Service
from scanflow.app.serving import Serving
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import NotFoundError
from scanflow.installation import explain_install
from scanflow.settings import Settings

if TYPE_CHECKING:
    from scanflow.load.load_process import LoadResult

PROGRAMS = Path(__file__).parent / "programs"
WARM_UP_S = 1.0


def find_serving_problem() -> str | None:
    """Return why no service can be measured here; None: it can."""
    missing = [name for name in ("httptools", "uvicorn") if find_spec(name) is None]
    return f"services need {', '.join(missing)}. {explain_install('serving')}" if missing else None


@contextmanager
def open_deployer() -> Iterator[EmbeddedDeployer]:
    """Provide a deployer on this machine with a temporary home; its services are deleted at the end."""
    with TemporaryDirectory(prefix="scanflow-reproduce-") as folder:
        deployer = EmbeddedDeployer(Settings(home=Path(folder), backend="local"))
        try:
            yield deployer
        finally:
            for record in deployer.services(instances=False):
                with suppress(NotFoundError):
                    deployer.delete(record.name)


def build_application(services: dict[str, str], **serving: Any) -> Application:
    """Return an application with an online workflow for each service: ``{"network": "network.py:ImageClassifier"}``."""
    workflows = [
        Workflow(
            name=name,
            type="online",
            nodes=[Service(name=name, implementation=implementation)],
            serving=Serving(grpc_port=0, record=0.0, keep_shape=False, **serving),
        )
        for name, implementation in services.items()
    ]
    return Application(name="reproduce", app_dir=PROGRAMS, workflows=workflows)


@dataclass(frozen=True, kw_only=True)
class MeasuredService:
    """A service that is deployed, resized and loaded."""

    deployer: EmbeddedDeployer
    app: Application
    name: str

    def deploy(self, **sizing: Any) -> None:
        """Deploy the service, or resize it: instances, cores and threads."""
        if any(record.name == self.name for record in self.deployer.services(instances=False)):
            self.deployer.change(self.name, ServiceChange(**sizing))
            return
        self.deployer.deploy(Deployment(self.app, self.name, sizing=ServiceChange(**sizing)))

    def send(
        self,
        inputs: Any,
        *,
        connections: int,
        seconds: float | None = None,
        arrivals: Sequence[float] | None = None,
        tally: str | None = None,
    ) -> LoadResult:
        """Send the same request repeatedly: in a closed loop for some seconds, or at these times."""
        from scanflow.load.load_process import LoadGenerator
        from scanflow_client.predict_io import PredictRequest, to_http
        from scanflow_client.service_load import build_load_plan

        request = to_http(self.deployer, self.name, PredictRequest(inputs=inputs), node=None, dtype=None, seldon=False)
        record = self.deployer.service(self.name)
        plan = build_load_plan(record, request, connections=connections, timeout_s=120.0, queue_s=600.0)
        plan = replace(plan, duration_s=seconds, tally=tally)
        with LoadGenerator(plan, arrivals) as load:
            return load.read_result()

    def warm_up(self, inputs: Any, *, connections: int) -> None:
        """Send requests that are not measured."""
        self.send(inputs, connections=connections, seconds=WARM_UP_S)
