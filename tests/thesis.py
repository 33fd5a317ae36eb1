"""The thesis' listing 5.1 as printed, but for addresses and paths, with steps that tell what they were given."""

from __future__ import annotations

from pathlib import Path

import scanflow as sf
from scanflow.client import ScanflowClient

LISTINGS = Path(__file__).parent / "unit" / "agent" / "listings"
"""Listings 5.4 to 5.6, each a text of that name."""

LOAD = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--app_name")
parser.add_argument("--team_name")
given = parser.parse_args()
data = pathlib.Path(os.environ["SCANFLOW_OUTPUT_DIR"], "mnist/data/mnist")
data.mkdir(parents=True)
for name in ("train_images", "train_labels", "test_images", "test_labels"):
    (data / f"{name}.npy").write_text(given.app_name)
"""
MODELING = """
import argparse, pathlib
parser = argparse.ArgumentParser()
for name in ("model_name", "epochs", "x_train_path", "y_train_path", "x_test_path", "y_test_path"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
import scanflow
paths = [value for name, value in vars(given).items() if name.endswith("_path")]
scanflow.output("read", [pathlib.Path(path).read_text() for path in paths])
scanflow.output("epochs", int(given.epochs))
"""


def listing_5_1(
    app_dir: str,
    requirements: str | None = None,
    *,
    app_name: str = "mnist",
    team_name: str = "data",
    client: ScanflowClient | None = None,
) -> sf.Application:
    """Describe the application."""
    client = client or ScanflowClient(scanflow_server_uri="http://127.0.0.1:46666", verbose=False)

    # define application
    executor1 = client.ScanflowExecutor(
        name="load-data", mainfile="loaddata.py", parameters={"app_name": app_name, "team_name": "data"}
    )
    executor2 = client.ScanflowExecutor(
        name="modeling-cnn1",
        mainfile="modeling.py",
        parameters={
            "model_name": "mnist_cnn",
            "epochs": 1,
            "x_train_path": "/workflow/load-data/mnist/data/mnist/train_images.npy",
            "y_train_path": "/workflow/load-data/mnist/data/mnist/train_labels.npy",
            "x_test_path": "/workflow/load-data/mnist/data/mnist/test_images.npy",
            "y_test_path": "/workflow/load-data/mnist/data/mnist/test_labels.npy",
        },
        requirements=requirements,
    )
    dependency1 = client.ScanflowDependency(dependee="load-data", depender="modeling-cnn1")
    workflow1 = client.ScanflowWorkflow(
        name="mnist-wf", nodes=[executor1, executor2], edges=[dependency1], type="batch", output_dir="/workflow"
    )
    app = client.ScanflowApplication(app_name=app_name, app_dir=app_dir, team_name=team_name, workflows=[workflow1])
    # build application
    return client.build_ScanflowApplication(app=app, trackerPort=46668)


def write_steps(folder: Path) -> None:
    """Write the files that the listing names."""
    (folder / "loaddata.py").write_text(LOAD)
    (folder / "modeling.py").write_text(MODELING)
