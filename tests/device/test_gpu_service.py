"""A service on a real GPU: a model of PyTorch computes there, and lives on after its memory or a kernel fails."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.device.machine import read_inventory
from tests.serving import read_instance
from tests.waiting import wait_until

_DEVICES = read_inventory().devices
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(not _DEVICES, reason="no device: not run"),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
    pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed"),
]

NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.eye(2))
        self.register_buffer("table", torch.zeros(4))

    def forward(self, values):
        if values[0, 0] < 0:  # more memory than any GPU has
            torch.empty(2**40, dtype=torch.uint8, device=values.device)
        if values[0, 0] == 6:  # 6 GiB
            torch.ones(6 * 2**30, dtype=torch.uint8, device=values.device)
        if values[0, 0] > 1000:  # a kernel that reads beyond its table
            self.table[values.long()].sum().item()
        return values @ self.weights + float(values.is_cuda)
"""
APP = """
import scanflow as sf

node = sf.Service(name="model", model="models:/network/1", resources=sf.Resources(gpu=1))
served = sf.Workflow(name="served", type="online", nodes=[node], serving=sf.Serving(grpc_port=0))
app = sf.Application(name="shop", workflows=[served])
"""


def register_network(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import numpy as np
    from mlflow.models import infer_signature
    from mlflow.pytorch import log_model

    (folder / "network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(folder))
    from network import Network  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    (home / "tracker").mkdir(parents=True)
    mlflow.set_tracking_uri(f"sqlite:///{home}/tracker/mlflow.db")
    mlflow.create_experiment("networks", artifact_location=str(home / "tracker" / "artifacts"))
    mlflow.set_experiment("networks")
    values = np.zeros((1, 2), dtype=np.float32)
    log_model(
        Network(),
        name="network",
        registered_model_name="network",
        code_paths=[str(folder / "network.py")],
        signature=infer_signature(values, values),
        pip_requirements=["torch"],
        serialization_format="pickle",
    )


def predict(cli: Cli, *row: float) -> str:
    answer = cli("predict", "served", "--data", json.dumps([row]))
    return answer.stdout + answer.stderr


def test_a_model_of_pytorch_computes_on_the_gpu_that_its_instance_was_given(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_network(tmp_path, home, monkeypatch)
    (tmp_path / "app.py").write_text(APP)
    deployed = cli("deploy", "app.py")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    assert "2.0" in predict(cli, 1.0, 2.0)
    assert "3.0" in predict(cli, 1.0, 2.0)  # one more than what it was sent, as it was on a GPU
    first = read_instance(cli, "served")
    assert first["devices"][0]["uuid"] == _DEVICES[0].uuid
    wait_until(lambda: "used " in cli("services", "served").stdout, "its memory is read back")
    print(cli("services", "served").stdout)

    full = predict(cli, -1.0, 0.0)
    print(full)
    assert "out of memory" in full
    assert "2.0" in predict(cli, 1.0, 2.0)
    assert read_instance(cli, "served")["pid"] == first["pid"]

    broken = predict(cli, 2000.0, 0.0)
    print(broken)
    assert "cannot use its GPU any more" in broken
    wait_until(
        lambda: (now := read_instance(cli, "served"))["pid"] != first["pid"] and now["state"] == "ready",
        "it is replaced",
    )
    assert "2.0" in predict(cli, 1.0, 2.0)


def test_a_share_of_a_gpu_bounds_what_pytorch_takes_and_a_swap_shares_it(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_network(tmp_path, home, monkeypatch)
    (tmp_path / "app.py").write_text(APP.replace("gpu=1", "gpu=0.5, gpu_memory='4Gi'"))
    deployed = cli("deploy", "app.py")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    first = read_instance(cli, "served")
    assert first["devices"][0]["memory_bytes"] == 4 * 2**30

    full = predict(cli, 6.0, 0.0)
    print(full)
    assert "out of memory" in full, "refused by PyTorch, before who watches the share sees it"
    assert "2.0" in predict(cli, 1.0, 2.0)
    assert (read_instance(cli, "served")["pid"], read_instance(cli, "served")["restarts"]) == (first["pid"], 0)

    again = cli("deploy", "app.py")
    assert again.returncode == 0, again.stdout + again.stderr
    second = read_instance(cli, "served")
    assert (second["pid"] != first["pid"], second["devices"][0]["uuid"]) == (True, first["devices"][0]["uuid"])
    assert "2.0" in predict(cli, 1.0, 2.0)
