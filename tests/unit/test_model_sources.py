"""Models whose files lie outside of the tracker's own store are not loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scanflow.errors import InvalidError
from scanflow.knowledge.mlflow.model_sources import check_model_source
from scanflow.knowledge.mlflow.rest_client import Client
from scanflow.transport.mlflow_api import MlflowApiError


def client(first: str | None, **models: str) -> Client:
    """A tracker whose first experiment is there, with the files of its logged models elsewhere."""

    def get_experiment(experiment_id: str) -> Any:
        if first is None or experiment_id != "0":
            raise MlflowApiError("RESOURCE_DOES_NOT_EXIST", "No.")
        return SimpleNamespace(artifact_location=first)

    def get_logged_model(name: str) -> Any:
        return SimpleNamespace(artifact_location=models[name])

    return cast("Client", SimpleNamespace(get_experiment=get_experiment, get_logged_model=get_logged_model))


def check(tracker: Client, location: str, root: Path | None = None) -> str:
    return check_model_source(tracker, location, model="The version 1 of the model 'net'", root=root)


def test_what_lies_in_the_store_is_loaded(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "artifacts"
    inside = (root / "1" / "model").as_uri()
    assert check(client(None), inside, root) == inside
    assert check(client(f"{root.as_uri()}/0"), inside) == inside
    assert check(client(f"{root.as_uri()}/0", m1=inside), "models:/m1") == inside
    assert check(client("s3://bucket/files/0"), "s3://bucket/files/1/model") == "s3://bucket/files/1/model"
    assert check(client("mlflow-artifacts:/0"), "mlflow-artifacts:/1/model") == "mlflow-artifacts:/1/model"


@pytest.mark.parametrize(
    "location",
    [
        "file:///tmp/evil", "/tmp/evil", "s3://theirs/model", "s3://bucket/files-of-another/model",
        "s3://bucket/files/../theirs", "mlflow-artifacts://theirs/model", "mlflow-artifacts:/../theirs",
        "http://theirs/model", "models:/m1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", ["s3://bucket/files/0", "mlflow-artifacts:/0", "file:///srv/files/0", None])
def test_what_lies_elsewhere_is_not(location: str, first: str | None, home: Path) -> None:
    with pytest.raises(
        InvalidError, match=r"The version 1 of the model 'net' is not loaded: .* SCANFLOW_MODEL_SOURCES"
    ):
        check(client(first, m1="file:///tmp/evil"), location)


def test_a_link_in_the_store_does_not_lead_out_of_it(tmp_path: Path, home: Path) -> None:
    root, evil = tmp_path / "artifacts", tmp_path / "evil"
    evil.mkdir()
    root.mkdir()
    (root / "1").symlink_to(evil)
    for location in ((root / "1").as_uri(), f"{root.as_uri()}/../evil"):
        with pytest.raises(InvalidError, match="not loaded"):
            check(client(f"{root.as_uri()}/0"), location, root)


def test_a_setting_names_places_that_are_trusted(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_MODEL_SOURCES", f"s3://models/, {tmp_path.as_uri()}")
    assert check(client(None), "s3://models/net/1") == "s3://models/net/1"
    assert check(client(None), str(tmp_path / "net")) == str(tmp_path / "net")
    with pytest.raises(InvalidError, match="not loaded"):
        check(client(None), "s3://models-of-another/net")
