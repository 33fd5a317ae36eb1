"""What every deployer does with services: one half of ``DeployerContract``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scanflow.app.application import Application
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceRecord
from scanflow.deployer import Deployer, InstanceLogs, RunRequest
from scanflow.deployer.service_client import predict
from scanflow.errors import NotFoundError, ServiceFailedError, UsageError
from scanflow.transport import Answer

SERVICE = "contract-multiply"

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
    name="contract", team="tests", workflows=[sf.Workflow(name="{service}", type="online", nodes=[multiply])]
)
"""


class ServicesContract:
    """The promises about services. They need NumPy, and a port of this machine."""

    def test_a_service_is_deployed_changed_scaled_and_deleted(self, deployer: Deployer, tmp_path: Path) -> None:
        source = _application(tmp_path, by=2)
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
            with pytest.raises(NotFoundError, match=f"Did you mean '{SERVICE}'"):
                deployer.service("contract-multiplied")
        finally:
            deployer.delete(served.name)
        assert deployer.services() == []
        with pytest.raises(NotFoundError):
            predict(deployer, served.name, [1])

    def _responds_and_is_listed(self, deployer: Deployer, served: ServiceRecord) -> None:
        assert (served.name, served.state, served.app, served.team) == (SERVICE, "ready", "contract", "tests")
        assert [one.state for one in served.instances] == ["ready"]
        assert _only(predict(deployer, SERVICE, [[1, 2, 3]])) == [[2, 4, 6]]
        assert [record.name for record in deployer.services()] == [SERVICE]
        assert deployer.service(SERVICE).url == served.url
        with deployer.connect(SERVICE) as client:
            assert client.document(f"/v2/models/{SERVICE}")["name"] == SERVICE
        for binary in (True, False):
            rows = {"x": [0.5, 1.5]}
            (array,) = predict(deployer, SERVICE, rows, dtype="float32", binary=binary).outputs.values()
            assert (array.dtype.name, array.tolist()) == ("float32", [1.0, 3.0])
        with pytest.raises(ServiceFailedError, match=f"The service '{SERVICE}' answered 500: .*thirteen is unlucky"):
            predict(deployer, SERVICE, [13])
        assert _only(predict(deployer, SERVICE, [4])) == [8]
        for instance in (None, served.instances[0].instance):
            written = b"".join(block for _, block in deployer.logs(InstanceLogs(SERVICE, instance)))
            assert b"multiplying by 2" in written

    def _is_changed_and_scaled(self, deployer: Deployer, served: ServiceRecord, folder: Path) -> None:
        source = _application(folder, by=3)
        changed = deployer.deploy(Deployment(_load(source), source=source))
        assert (changed.url, changed.previous) == (served.url, True)
        assert _only(predict(deployer, SERVICE, [1])) == [3]
        deployer.change(SERVICE, ServiceChange(rollback=True))
        assert _only(predict(deployer, SERVICE, [1])) == [2]
        seen: list[Progress] = []
        scaled = deployer.change(SERVICE, ServiceChange(instances=2), observe=seen.append)
        assert scaled.shape.instances == 2
        assert [one.state for one in scaled.instances] == ["ready", "ready"]
        assert {one.service for one in seen} == {SERVICE}
        again = deployer.change(SERVICE, ServiceChange(affinity="any", cores=0.5), key="smaller")
        assert deployer.change(SERVICE, ServiceChange(affinity="any", cores=0.5), key="smaller") == again
        assert deployer.change(SERVICE, ServiceChange(instances=1)).shape.instances == 1
        assert _only(predict(deployer, SERVICE, [1])) == [2]

    def test_what_cannot_be_deployed_or_run_is_reported_before_anything_starts(
        self, deployer: Deployer, tmp_path: Path
    ) -> None:
        source = _application(tmp_path, by=2)
        (tmp_path / "contract_model.py").unlink()
        with pytest.raises(UsageError, match=r"contract_model\.py"):
            deployer.deploy(Deployment(_load(source), source=source))
        assert deployer.services() == []
        runs = deployer.runs()
        with pytest.raises(UsageError, match="Deploy it: scanflow deploy"):
            deployer.run(RunRequest(_load(source), SERVICE))
        assert deployer.runs() == runs


def _only(answer: Answer) -> object:
    (array,) = answer.outputs.values()
    return array.tolist()


def _application(folder: Path, *, by: int) -> Path:
    (folder / "contract_model.py").write_text(MODEL, encoding="utf-8")
    path = folder / f"contract_serving_{by}.py"  # a process loads a file once
    path.write_text(APP.format(by=by, service=SERVICE), encoding="utf-8")
    return path


def _load(source: Path) -> Application:
    from scanflow.loading import load_application

    return load_application(str(source))[0]
