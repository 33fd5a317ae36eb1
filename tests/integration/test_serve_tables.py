"""A service is its model, asked with tables: files as people write them, records, DataFrames. MLflow is the oracle."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scanflow as sf
from scanflow.backends.service_change import Deployment
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import InvalidError
from scanflow.knowledge import open_knowledge
from scanflow.settings import Settings
from scanflow.transport import PredictionResponse
from scanflow_client.client import Client
from scanflow_client.predict_io import read_request, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("mlflow") is None or find_spec("sklearn") is None, reason="mlflow or sklearn missing"),
]
ROWS = 200


def make_rows() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "age": generator.integers(18, 90, ROWS),
            "income": np.round(generator.normal(3000, 900, ROWS), 2),
            "code": [f"{number:03d}" for number in generator.integers(0, 9, ROWS)],
        }
    )


def save_points(folder: Path) -> Any:
    """Save a pipeline that needs its columns by name, text among them; return MLflow's own answer to the rows."""
    from mlflow.models import infer_signature
    from mlflow.pyfunc import load_model
    from mlflow.sklearn import save_model
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows = make_rows()
    encoded = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["code"]), remainder="passthrough")
    target = rows["age"] * 3 + rows["income"] / 100 + rows["code"].astype(int)
    model = make_pipeline(encoded, LinearRegression()).fit(rows, target)
    save_model(model, folder, signature=infer_signature(rows, model.predict(rows)), pip_requirements=[])
    return load_model(str(folder)).predict(rows)


def test_a_table_is_answered_as_mlflow_answers_it_however_it_is_sent(home: Path, tmp_path: Path) -> None:
    tracker = sf.Tracker(uri=f"sqlite:///{tmp_path}/other.db")
    knowledge = open_knowledge(home, tracker.uri)
    expected = save_points(tmp_path / "model")
    knowledge.register_model("points", tmp_path / "model", app="shop", team="default")
    service = sf.Service(name="points", model="models:/points/1")
    workflow = sf.Workflow(name="points", type="online", nodes=[service])
    app = sf.Application(name="shop", app_dir=tmp_path, workflows=[workflow], tracker=tracker)
    deployer, rows = EmbeddedDeployer(Settings(home=home)), make_rows()
    turned = rows[rows.columns[::-1]]
    deployer.deploy(Deployment(app))
    try:
        client = Client(progress=False)
        columns = {name: list(turned[name]) for name in turned.columns}
        records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for table in (turned, records, columns):
            np.testing.assert_allclose(client.predict("points", table), expected)

        turned.to_csv(tmp_path / "a.csv", index=False, sep=";", decimal=",", encoding="utf-16")
        turned.to_csv(tmp_path / "b.tsv.gz", index=False, sep="\t")
        turned.astype({"age": float}).to_parquet(tmp_path / "c.parquet")
        turned.to_json(tmp_path / "d.json", orient="records")
        for file in sorted(tmp_path.glob("[abcd].*")):
            request = read_request(file=str(file), data=None, npy=None, stdin=io.BytesIO())
            answer = send(deployer, "points", request, node=None, dtype=None, seldon=False)
            assert isinstance(answer, PredictionResponse)
            np.testing.assert_allclose(next(iter(answer.outputs.values())), expected, err_msg=file.name)

        wrong = json.dumps([{"agee": 30, "income": 1.5, "code": "001"}])
        request = read_request(file=None, data=wrong, npy=None, stdin=io.BytesIO())
        with pytest.raises(InvalidError, match=r"has no input 'agee'\. Did you mean 'age'"):
            send(deployer, "points", request, node=None, dtype=None, seldon=False)
        with pytest.raises(InvalidError, match="has no input 'foreign'"):
            client.predict("points", rows.rename(columns={"age": "foreign"}))
    finally:
        deployer.delete("points")
