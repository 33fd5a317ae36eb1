"""With which variables a notebook logs where steps do."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

import scanflow as sf
from scanflow.errors import UnavailableError
from scanflow.http.home_token import ensure_home_token
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.settings import Settings
from scanflow_client.mlflow_variables import build_mlflow_variables

URL = "http://127.0.0.1:46666/mlflow"


def test_a_notebook_logs_to_the_file_of_the_home_or_through_its_server(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, settings = ensure_home_token(home), Settings(home=home)
    own = build_mlflow_variables(settings, None, None)
    assert own["MLFLOW_TRACKING_URI"] == locate_tracker(home).tracking_uri
    assert "MLFLOW_TRACKING_TOKEN" not in own
    monkeypatch.setattr("scanflow_client.mlflow_variables.find_mlflow_url", lambda _: URL)
    served = build_mlflow_variables(settings, None, None)
    assert (served["MLFLOW_TRACKING_URI"], served["MLFLOW_TRACKING_TOKEN"]) == (URL, token)


@pytest.mark.parametrize("tracker", [{"url": None, "ready": False}, {"url": "sqlite:///f", "ready": True}])
def test_a_server_without_a_tracker_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, tracker: dict[str, object]
) -> None:
    client = sf.Client("http://127.0.0.1:9", token="t")
    monkeypatch.setattr(client, "status", lambda: {"tracker": tracker})
    with pytest.raises(UnavailableError, match="has no tracker"):
        client.use_mlflow()


def test_a_client_sets_them_for_its_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sf.Client("http://127.0.0.1:46666", token="t")
    monkeypatch.setattr(
        client, "status", lambda: {"tracker": {"url": "http://x/mlflow", "ready": True, "proxied": True}}
    )
    app = sf.Application(name="shop", team="data", workflows=[], tracker=sf.Tracker())
    with patch.dict(os.environ):
        assert client.use_mlflow(app) == URL
        assert os.environ["MLFLOW_TRACKING_TOKEN"] == "t"
        assert os.environ["MLFLOW_EXPERIMENT_NAME"] == "scanflow-shop-data"
        assert not {"MLFLOW_RUN_ID", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"} & os.environ.keys()
