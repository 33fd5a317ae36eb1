"""Backends whose services ask for no client certificate refuse ``Serving.clients``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.online.checks import check_workflow
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.memory.online import MemoryOnline
from scanflow.backends.shapes import compute_shape
from scanflow.errors import UnsupportedError


def check_kubernetes(app: sf.Application, workflow: sf.Workflow) -> None:
    check_workflow(app, workflow, compute_shape(workflow), KubernetesSettings())


def check_memory(app: sf.Application, workflow: sf.Workflow) -> None:
    MemoryOnline({}, clock=lambda: 0.0).check(app, workflow)


@pytest.mark.parametrize("check", [check_kubernetes, check_memory])
def test_clients_are_refused_by_name(tmp_path: Path, check: Callable[[sf.Application, sf.Workflow], None]) -> None:
    (tmp_path / "a.py").write_text("class M:\n    pass\n")
    node = sf.Service(name="m", implementation="a.py:M")
    closed = sf.Workflow(name="o", type="online", nodes=[node], serving=sf.Serving(clients=["CN=ada"]))
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[closed])
    with pytest.raises(UnsupportedError, match=r"does not support serving.clients: .* Remove it"):
        check(app, closed)
