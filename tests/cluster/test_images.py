"""Images built by the builder of this machine, pushed to a registry, and pulled from there by a node.

``SCANFLOW_KUBERNETES_REGISTRY`` names the registry, which is spoken to in plain HTTP, and which has the base image.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels, derive_namespace
from scanflow.backends.kubernetes.pod_image import BuiltImageFinder, PodImage, PodImages
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.deployer.application_images import build_application
from scanflow.deployer.embedded import open_models
from scanflow.errors import MissingExtraError, UsageError
from scanflow.images.build_settings import ImageSettings
from scanflow.images.builders import PROGRAMS, get_builder
from scanflow.images.building import ImageRecord
from scanflow.instance_messages import ModelFiles
from scanflow.settings import Settings
from tests.cluster.images import mounts
from tests.cluster.pod_programs import run_pod

pytestmark = pytest.mark.cluster
TRAIN = """
import mlflow, numpy, sklearn
from sklearn.linear_model import LinearRegression
rows = numpy.array([[0.0], [1.0]])
model = LinearRegression().fit(rows, [0.0, 2.0])
signature = mlflow.models.infer_signature(rows)
libraries = [f"scikit-learn=={sklearn.__version__}", "cloudpickle", "skops"]  # finding them takes MLflow a minute
about = {"registered_model_name": "doubler", "signature": signature, "pip_requirements": libraries}
with mlflow.start_run():
    mlflow.sklearn.log_model(model, name="d", **about)
"""
PREDICT = """
import numpy as np
from scanflow.instance_messages import ModelFiles
from scanflow_serving.flavors import open_model
model = open_model(ModelFiles(name="doubler", version=1, path="/app/model"), {}, threads=1)
print(model.platform, np.round(np.ravel(model.predict(np.array([[4.0]]))), 6).tolist())
"""
STEP = "import os, where; print(where.AM_I, os.getuid(), os.getcwd(), where.version())"


@pytest.fixture(scope="module")
def images() -> ImageSettings:
    """How images are built for this cluster."""
    registry = os.environ.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    try:
        get_builder()
    except MissingExtraError:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is installed")
    options = " ".join(["--network host", *mounts()])
    return ImageSettings(registry=registry, base=f"{registry}/scanflow/base:latest", insecure=True, options=options)


@pytest.fixture
def app(cluster: Cluster, tmp_path: Path) -> Iterator[sf.Application]:
    """An application with a namespace, and a folder of code."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "where.py").write_text("AM_I = 'in the code'\ndef version():\n    return 0\n")
    app = sf.Application(name=f"images{uuid.uuid4().hex[:6]}", team="tests", app_dir=folder)
    namespace = derive_namespace(app.name, app.team)
    labels = build_labels(app.name, app.team)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    yield app
    cluster.delete("Namespace", namespace)


class NoModels:
    """A registry of models that has those of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, uri: str) -> ModelFiles:  # noqa: ARG002
        return ModelFiles(name="model", version=1, path=str(self._folder))

    def find(self, uri: str) -> ModelFiles:
        return self.fetch(uri)

    def remember(self, name: str, version: int, shape: str) -> None:
        """Keep nothing."""

    def recall(self, name: str, version: int) -> str | None:  # noqa: ARG002
        return None


def build(app: sf.Application, images: ImageSettings, home: Path) -> list[ImageRecord]:
    settings = Settings(home=home)
    return build_application(app, app.workflows, settings, images, push=True, again=False, say=print)


def test_without_a_build_the_base_image_runs_the_code_of_a_config_map(
    cluster: Cluster, app: sf.Application, images: ImageSettings, tmp_path: Path
) -> None:
    step = sf.Executor(name="step", mainfile="where.py")
    workflow = sf.Workflow(name="batch", nodes=[step])
    settings = KubernetesSettings(image=images.base, registry=images.registry)
    pod_images = PodImages.open(
        app, workflow, settings, BuiltImageFinder(settings, tmp_path / "home"), NoModels(tmp_path)
    ).select(step)
    assert pod_images.code is not None
    assert run_pod(cluster, app, pod_images, STEP) == "in the code 10001 /app 0\n"


def test_a_step_with_requirements_runs_in_an_image_that_is_built_once(
    cluster: Cluster, app: sf.Application, images: ImageSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_IMAGES_INSECURE", "1")
    (Path(app.app_dir) / "where.py").write_text(
        "from importlib.metadata import version as of\nAM_I = 'in the image'\ndef version(): return of('humanize')\n"
    )
    step = sf.Executor(name="step", mainfile="where.py", requirements=["humanize==4.9.0"])
    workflow = sf.Workflow(name="batch", nodes=[step])
    app = app.replace(workflows=[workflow])
    settings = KubernetesSettings(image=images.base, registry=images.registry)

    def open_image(home: str) -> PodImage:
        return PodImages.open(
            app, workflow, settings, BuiltImageFinder(settings, tmp_path / home), NoModels(tmp_path)
        ).select(step)

    with pytest.raises(UsageError, match="scanflow build --push"):
        open_image("home")
    (built,) = build(app, images, tmp_path / "home")
    (again,) = build(app, images, tmp_path / "home")
    assert [built.state, again.state] == ["built", "unchanged"]
    assert open_image("home") == open_image("another") == PodImage(built.image, None), "the registry knows it too"
    assert run_pod(cluster, app, open_image("home"), STEP) == "in the image 10001 /app 4.9.0\n"


def test_a_registered_model_gets_what_it_was_saved_with(
    cluster: Cluster, app: sf.Application, images: ImageSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "requirements.txt").write_text("mlflow==3.17.2\nhumanize==4.10.0\n")
    monkeypatch.setattr("scanflow.deployer.application_images.open_models", lambda *_: NoModels(model))
    (Path(app.app_dir) / "where.py").write_text(
        "from importlib.metadata import version as of\nAM_I = 'a service'\ndef version():\n    return of('humanize')\n"
    )
    service = sf.Service(name="service", model="models:/model@champion")
    workflow = sf.Workflow(name="online", type="online", nodes=[service])
    app = app.replace(workflows=[workflow])
    (built,) = build(app, images, tmp_path / "home")
    assert built.nodes == ("service",)
    settings = KubernetesSettings(image=images.base, registry=images.registry)
    pod_images = PodImages.open(
        app, workflow, settings, BuiltImageFinder(settings, tmp_path / "home"), NoModels(model)
    ).select(*workflow.services)
    assert run_pod(cluster, app, pod_images, STEP) == "a service 10001 /app 4.10.0\n"


@pytest.mark.filterwarnings("default")  # the warnings are MLflow's
def test_a_model_that_a_run_registered_needs_no_dockerfile(
    cluster: Cluster, app: sf.Application, images: ImageSettings, tmp_path: Path
) -> None:
    if find_spec("mlflow") is None or find_spec("sklearn") is None:
        pytest.skip("mlflow or scikit-learn is not installed")
    folder, own = Path(app.app_dir), Settings(home=tmp_path / "home")
    (folder / "train.py").write_text(TRAIN)
    train = sf.Workflow(name="training", nodes=[sf.Executor(name="train", mainfile="train.py")])
    serve = sf.Workflow(name="serving", type="online", nodes=[sf.Service(name="doubler", model="models:/doubler/1")])
    app = app.replace(workflows=[train, serve], tracker=sf.Tracker())
    assert EmbeddedDeployer(own).run(RunRequest(app, "training")).state == "succeeded"
    models = open_models(own.home, None)
    # A service's pod fetches its model from the tracker; this one has it beside its code.
    shutil.copytree(models.fetch("models:/doubler/1").path, folder / "model")
    (built,) = build_application(app, [serve], own, images, push=True, again=False, say=print)
    settings = KubernetesSettings(image=images.base, registry=images.registry)
    image = PodImages.open(app, serve, settings, BuiltImageFinder(settings, own.home), models).select(*serve.services)
    assert image == PodImage(built.image, None)
    assert run_pod(cluster, app, image, PREDICT) == "sklearn [8.0]\n"
