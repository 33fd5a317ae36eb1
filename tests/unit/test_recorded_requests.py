"""What callers sent lately, read back from recorded predictions and sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scanflow.errors import NotFoundError, UsageError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow_client.cli.command_tree import app
from scanflow_client.predict_io import HttpRequest
from scanflow_client.recorded_requests import MAX_REQUESTS, read_recorded_requests
from scanflow_client.service_load import select_alike


def record(tracker: MemoryKnowledge, folder: Path, rows: int, *, service: str = "serve") -> None:
    """Keep a file of predictions as a service's recorder does."""
    folder.mkdir()
    inputs = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    columns: dict[str, Any] = {"time": np.zeros(rows), "input:x": inputs, "output:y": inputs}
    np.savez(folder / "1-1-1.npz", **columns)
    tags = {"scanflow.kind": "predictions", "scanflow.service": service}
    tracker.log_run("shop", "default", name="predictions", tags=tags, artifacts=folder)


def test_rows_that_were_recorded_are_requests_of_their_own(tmp_path: Path) -> None:
    tracker = MemoryKnowledge()
    record(tracker, tmp_path / "a", 3)
    record(tracker, tmp_path / "b", 200, service="another")
    requests = read_recorded_requests(tracker, "shop", "default", "serve")
    assert [request.inputs["x"].tolist() for request in requests] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert len(read_recorded_requests(tracker, "shop", "default", "another")) == MAX_REQUESTS


def test_a_service_that_records_nothing_says_how_to_have_it_recorded(tmp_path: Path) -> None:
    tracker = MemoryKnowledge()
    tracker.prepare("shop", "default")
    with pytest.raises(NotFoundError, match=r"No predictions of 'serve' .*sf\.Serving\(record=0\.1\)"):
        read_recorded_requests(tracker, "shop", "default", "serve")


def test_of_several_requests_those_of_the_commonest_shape_are_sent() -> None:
    long, short = {"inference-header-content-length": "200"}, {"inference-header-content-length": "90"}
    requests = [HttpRequest("/a", b"1", short), HttpRequest("/a", b"2", long), HttpRequest("/a", b"3", short)]
    assert [request.body for request in select_alike(requests)] == [b"1", b"3"]


def test_recorded_and_given_inputs_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n"
        "node = sf.Service(name='a', implementation='a.py:A')\n"
        "app = sf.Application(name='shop', workflows=[sf.Workflow(name='serve', type='online', nodes=[node])])\n"
    )
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match="--live sends recorded requests"):
        CliRunner().invoke(app, ["tune", f"{tmp_path}/app.py", "--live", "--data", "[[1]]"], catch_exceptions=False)
