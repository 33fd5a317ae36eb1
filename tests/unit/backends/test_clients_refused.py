"""Backends whose services ask for no client certificate refuse ``Serving.clients``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.online.service_checks import check_workflow
from scanflow.backends.kubernetes.online.traffic import check_clients
from scanflow.backends.memory.memory_online import MemoryOnline
from scanflow.backends.shapes import compute_shape
from scanflow.errors import UnsupportedError


def check_memory(app: sf.Application, workflow: sf.Workflow) -> None:
    MemoryOnline({}, clock=lambda: 0.0).check(app, workflow)


GATEWAY = {"gateway": "infra/public", "gateway_domain": "models.example"}


def make_closed(tmp_path: Path, **fields: Any) -> tuple[sf.Application, sf.Workflow]:
    (tmp_path / "a.py").write_text("class M:\n    pass\n")
    scaling, backup = fields.get("scaling"), fields.get("backup")
    node = sf.Service(name="m", implementation="a.py:M", scaling=scaling)
    serving = sf.Serving(clients=["CN=ada"], **({} if backup is None else {"backup": backup}))
    closed = sf.Workflow(name="o", type="online", nodes=[node], serving=serving)
    spare = sf.Workflow(name="spare", type="online", nodes=[sf.Service(name="s", implementation="a.py:M")])
    return sf.Application(name="shop", app_dir=tmp_path, workflows=[closed, spare]), closed


def test_memory_refuses_clients_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"does not support serving.clients: .* Remove it"):
        check_memory(*make_closed(tmp_path))


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({}, {}, "SCANFLOW_KUBERNETES_GATEWAY=NAMESPACE/NAME"),
        ({"gateway": "infra/public"}, {}, "SCANFLOW_KUBERNETES_GATEWAY_DOMAIN=serving.example"),
        ({**GATEWAY, "serving": "seldon"}, {}, "SCANFLOW_KUBERNETES_SERVING=deployment"),
        (GATEWAY, {"scaling": sf.Scaling(metric="cpu", target=0.5, min=0, max=2)}, "Write min=1"),
        (GATEWAY, {"backup": "spare"}, "Remove the backup"),
        (GATEWAY, {}, None),
    ],
)
def test_a_cluster_refuses_clients_where_none_could_be_requested(
    tmp_path: Path, settings: dict[str, Any], fields: dict[str, Any], words: str | None
) -> None:
    app, closed = make_closed(tmp_path, **fields)
    with nullcontext() if words is None else pytest.raises(UnsupportedError, match=f"serving.clients here: .*{words}"):
        check_workflow(app, closed, compute_shape(closed), KubernetesSettings.model_validate(settings))


@pytest.mark.parametrize(
    ("controller", "refused"), [("traefik.io/gateway-controller", False), ("example.org/it", True)]
)
def test_gateways_of_others_are_refused(controller: str, refused: bool) -> None:
    kind = {"metadata": {"name": "edge"}, "spec": {"controllerName": controller}}
    with pytest.raises(UnsupportedError, match=r"'edge' are of 'example\.org/it'") if refused else nullcontext():
        check_clients(kind)
