"""Services of an application behind a real Gateway: changed under load, and answered for by their backup."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import ScanflowError
from scanflow.knowledge.model_cache import ModelCache
from scanflow.settings import Settings
from tests.cluster.echoes import TEAM, Echoes, echoes, gateway_address, seconds_until
from tests.cluster.online import doubles
from tests.cluster.repeated import repeat_step

pytestmark = pytest.mark.cluster

MODEL = """
class Multiply:
    def __init__(self, by=2):
        self.by = by

    def predict(self, X):
        return X * self.by
"""


class Shop:
    """An application with a service and its backup, and a server's loop that looks after them."""

    def __init__(self, folder: Path, here: Echoes) -> None:
        self.folder, self.here = folder, here
        (folder / "multiply.py").write_text(MODEL, encoding="utf-8")
        settings = Settings(home=folder / "home")
        self.backend = Kubernetes(settings, lambda _: ModelCache(folder / "models", lambda: pytest.fail("No model.")))
        self.deployer = EmbeddedDeployer(settings, backend=self.backend)
        self.name, self.spare = here.app, f"{here.app}-spare"

    def deploy(self, name: str, by: int) -> str:
        """Serve one of the two, and return its address."""
        online = [self._workflow(self.name, by), self._workflow(self.spare, 10)]
        app = sf.Application(name=self.here.app, team=TEAM, app_dir=str(self.folder), workflows=online)
        return self.deployer.deploy(Deployment(app, name)).url

    def _workflow(self, name: str, by: int) -> sf.Workflow:
        node = sf.Service(name="multiply", implementation="multiply.py:Multiply", parameters={"by": by})
        return sf.Workflow(name=name, type="online", nodes=[node], serving=sf.Serving())

    def answer(self) -> Any:
        with self.deployer.connect(self.name) as client:
            (output,) = client.infer(self.name, [1]).outputs.values()
        return output.tolist()

    @contextmanager
    def load(self) -> Iterator[list[tuple[float, str]]]:
        """Ask all the time, by a connection that is kept; give when and what each answer or failure was."""
        seen: list[tuple[float, str]] = []
        with self.deployer.connect(self.name) as client:

            def ask() -> None:
                try:
                    (output,) = client.infer(self.name, [1]).outputs.values()
                    seen.append((time.monotonic(), str(output.tolist())))
                except ScanflowError as error:
                    seen.append((time.monotonic(), repr(error)))

            with repeat_step(ask, 0.005):
                yield seen

    @contextmanager
    def run_controller(self) -> Iterator[None]:
        """Do what the server's controller of services does."""

        def look() -> None:
            for name in (self.name, self.spare):  # the cluster may have services of others
                self.deployer.reconcile(self.deployer.service(name))

        with repeat_step(look, 1.0):
            yield


@pytest.fixture
def shop(tmp_path: Path, cluster: Cluster, base_image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with echoes(cluster, "shop") as here:
        monkeypatch.setenv("SCANFLOW_KUBERNETES_IMAGE", base_image)
        monkeypatch.setenv("SCANFLOW_KUBERNETES_TIMEOUT_S", "120")
        monkeypatch.setenv("SCANFLOW_KUBERNETES_GATEWAY", here.gateway)
        monkeypatch.setenv("SCANFLOW_KUBERNETES_GATEWAY_URL", f"http://{gateway_address(cluster)}")
        shop = Shop(tmp_path, here)
        yield shop
        for name in (shop.name, shop.spare):
            shop.deployer.delete(name)
        shop.backend.cluster.close()


def test_a_service_behind_a_gateway_is_changed_without_a_failure_and_its_backup_answers_for_it(shop: Shop) -> None:
    shop.deploy(shop.spare, 2)
    url = shop.deploy(shop.name, 2)
    assert url.endswith(f"/{shop.here.namespace}/{shop.name}")
    seconds_until(lambda: doubles(shop.answer), "the Gateway has heard of it", patience_s=20)
    with shop.load() as seen:
        shop.deploy(shop.name, 3)
        seconds_until(lambda: _latest(seen) == "[3]", "the new one answers", patience_s=20)
        assert shop.deployer.change(shop.name, ServiceChange(backup=shop.spare)).backup == shop.spare
    assert {what for _, what in seen} == {"[2]", "[3]"}
    print(f"\nchanged: 0 of {len(seen)} failed")
    deployment = next(
        name["metadata"]["name"]
        for name in shop.here.cluster.find("Deployment", shop.here.namespace)[0]
        if name["metadata"]["labels"].get("scanflow.dev/service") == shop.name
    )
    with shop.load() as seen, shop.run_controller():
        began = time.monotonic()
        _scale(shop, deployment, 0)
        seconds_until(lambda: _latest(seen) == "[10]", "the backup answers", patience_s=60)
        last = max((at for at, what in seen if what == "[3]"), default=began)
        first = min(at for at, what in seen if what == "[10]")
        assert shop.deployer.service(shop.name).state == "backup"
        _scale(shop, deployment, 1)
        back = seconds_until(lambda: _latest(seen) == "[3]", "it answers again", patience_s=60)
        seconds_until(lambda: shop.deployer.service(shop.name).state == "ready", "that is noted", patience_s=20)
    failed = [what for _, what in seen if not what.startswith("[")]
    print(f"backup {first - last:.1f} s after the last answer, {len(failed)} of {len(seen)} failed; back: {back:.1f} s")


def _latest(seen: list[tuple[float, str]]) -> str | None:
    return seen[-1][1] if seen else None


def _scale(shop: Shop, deployment: str, count: int) -> None:
    shop.here.cluster.patch("Deployment", deployment, shop.here.namespace, {"spec": {"replicas": count}})
