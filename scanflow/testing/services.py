"""The contract of deployers for services: one half of ``DeployerContract``.

What is compared is what was promised: a record also says what was measured, which is never twice the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scanflow.app.application import Application
from scanflow.app.scaling import Scaling
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceRecord
from scanflow.deployer import Deployer, InstanceLogs, RunRequest
from scanflow.deployer.direct_predictions import predict
from scanflow.errors import NotFoundError, ServiceFailedError, UsageError
from scanflow.transport import PredictionResponse

MODEL = """
import os
import numpy as np


class Multiply:
    def __init__(self, by=2):
        self.by = by
        print("multiplying by", by, flush=True)

    def predict(self, X):
        if np.any(X == 13):
            raise RuntimeError("thirteen is unlucky")
        return X * self.by
"""

APP = """
import scanflow as sf

multiply = sf.Service(name="multiply", implementation="contract_model.py:Multiply", parameters={{"by": {by}}})
app = sf.Application(
    name="contract", team="{team}", workflows=[sf.Workflow(name="{service}", type="online", nodes=[multiply])]
)
"""


class ServicesContract:
    """The contract for services. It needs NumPy, and a port of this machine."""

    service = "contract-multiply"
    """The service's name: a unique one if several suites share a cluster."""

    team = "tests"

    def test_a_service_is_deployed_changed_scaled_and_deleted(self, deployer: Deployer, tmp_path: Path) -> None:
        source = self._application(tmp_path, by=2)
        served = deployer.deploy(Deployment(_load(source), source=source))
        try:
            self._responds_and_is_listed(deployer, served)
            self._is_changed_and_scaled(deployer, served, tmp_path)
            calls: list[Callable[[str], object]] = [
                deployer.delete,
                lambda name: deployer.change(name, ServiceChange(rollback=True)),
                lambda name: list(deployer.logs(InstanceLogs(name))),
                lambda name: predict(deployer, served.name, [1], node=name),
            ]
            for call in calls:
                with pytest.raises(NotFoundError, match="nope"):
                    call("nope")
            with pytest.raises(NotFoundError, match=f"Did you mean '{self.service}'"):
                deployer.service(f"{self.service}d")
        finally:
            deployer.delete(served.name)
        assert self._list_names(deployer) == []
        with pytest.raises(NotFoundError):
            predict(deployer, served.name, [1])

    def _responds_and_is_listed(self, deployer: Deployer, served: ServiceRecord) -> None:
        assert (served.name, served.state, served.app, served.team) == (self.service, "ready", "contract", self.team)
        assert [instance.state for instance in served.instances] == ["ready"]
        assert _only(predict(deployer, self.service, [[1, 2, 3]])) == [[2, 4, 6]]
        assert self._list_names(deployer) == [self.service]
        assert deployer.service(self.service).url == served.url
        with deployer.connect(self.service) as client:
            assert client.document(f"/v2/models/{self.service}")["name"] == self.service
        for binary in (True, False):
            rows = {"x": [0.5, 1.5]}
            (array,) = predict(deployer, self.service, rows, dtype="float32", binary=binary).outputs.values()
            assert (array.dtype.name, array.tolist()) == ("float32", [1.0, 3.0])
        failed = f"The service '{self.service}' answered 500: .*thirteen is unlucky"
        with pytest.raises(ServiceFailedError, match=failed):
            predict(deployer, self.service, [13])
        assert _only(predict(deployer, self.service, [4])) == [8]
        for instance in (None, served.instances[0].instance):
            written = b"".join(block for _, block in deployer.logs(InstanceLogs(self.service, instance)))
            assert b"multiplying by 2" in written

    def _is_changed_and_scaled(self, deployer: Deployer, served: ServiceRecord, folder: Path) -> None:
        source = self._application(folder, by=3)
        changed = deployer.deploy(Deployment(_load(source), source=source))
        assert (changed.url, changed.previous) == (served.url, True)
        assert _only(predict(deployer, self.service, [1])) == [3]
        deployer.change(self.service, ServiceChange(rollback=True))
        assert _only(predict(deployer, self.service, [1])) == [2]
        seen: list[Progress] = []
        scaled = deployer.change(self.service, ServiceChange(instances=2), observe=seen.append)
        assert scaled.shape.instances == 2
        assert [instance.state for instance in scaled.instances] == ["ready", "ready"]
        assert {progress.service for progress in seen} == {self.service}
        smaller = ServiceChange(affinity="any", cores=0.25)
        first, again = (deployer.change(self.service, smaller, key="smaller") for _ in range(2))
        assert first.shape.cores == 0.25
        assert (again.generation, again.settled, again.shape) == (first.generation, first.settled, first.shape)
        assert [instance.instance for instance in again.instances] == [
            instance.instance for instance in first.instances
        ]
        assert deployer.change(self.service, ServiceChange(instances=1)).shape.instances == 1
        with pytest.raises(UsageError, match="goes by the GPUs of the instances"):
            deployer.change(self.service, ServiceChange(scaling=Scaling(metric="gpu", target=0.5)))
        assert deployer.service(self.service).scaling is None
        assert _only(predict(deployer, self.service, [1])) == [2]

    def test_what_cannot_be_deployed_or_run_is_reported_before_anything_starts(
        self, deployer: Deployer, tmp_path: Path
    ) -> None:
        source = self._application(tmp_path, by=2)
        (tmp_path / "contract_model.py").unlink()
        with pytest.raises(UsageError, match=r"contract_model\.py"):
            deployer.deploy(Deployment(_load(source), source=source))
        assert self._list_names(deployer) == []
        runs = [run.name for run in deployer.runs()]
        with pytest.raises(UsageError, match="Deploy it: scanflow deploy"):
            deployer.run(RunRequest(_load(source), self.service))
        assert [run.name for run in deployer.runs()] == runs

    def _list_names(self, deployer: Deployer) -> list[str]:
        return [record.name for record in deployer.services() if record.team == self.team]

    def _application(self, folder: Path, *, by: int) -> Path:
        (folder / "contract_model.py").write_text(MODEL, encoding="utf-8")
        path = folder / f"contract_serving_{by}.py"  # a process loads a file once
        path.write_text(APP.format(by=by, service=self.service, team=self.team), encoding="utf-8")
        return path


def _only(answer: PredictionResponse) -> object:
    (array,) = answer.outputs.values()
    return array.tolist()


def _load(source: Path) -> Application:
    from scanflow.application_loading import load_application

    return load_application(str(source))[0]
