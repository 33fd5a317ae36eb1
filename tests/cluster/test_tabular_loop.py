"""The closed loop of ``tutorials/tabular`` on a cluster: agents, steps, instances and the tracker are pods."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.modules import load_module
from tests.cluster import images
from tests.cluster.loops import Loop, list_event_kinds
from tests.loop_events import STORY, in_order

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(900)]

TUTORIAL = images.CHECKOUT / "tutorials" / "tabular"
APP = """
from app import agents, loans

import scanflow as sf

small = sf.Resources(memory="1Gi")  # as many cores as there are: the cluster of the tests has few to give
flows = [
    sf.Workflow(name="{name}", type="online", nodes=[loans], serving=sf.Serving(record=1)),
    sf.drift.detection(model="loans", budget=200, resources=small),
    sf.drift.retraining(model="loans", fit="app.py:fit", data="app.py:data", resources=small),
]
app = sf.Application(name="{name}", team="tests", workflows=flows, agents=agents, tracker=sf.Tracker())
"""


@pytest.fixture
def loop(cluster: Cluster, loop_images: str, tmp_path: Path) -> Iterator[Loop]:
    del loop_images  # in the environment
    folder = tmp_path / "tabular"
    folder.mkdir()
    shutil.copy(TUTORIAL / "app.py", folder)
    name = f"tabular{uuid.uuid4().hex[:6]}"
    (folder / "cluster_app.py").write_text(APP.format(name=name), encoding="utf-8")
    yield Loop(cluster, tmp_path, folder / "cluster_app.py")
    sys.modules.pop("app", None)


def test_the_agents_promote_a_model_that_is_right_about_older_people(loop: Loop) -> None:
    people = load_module(TUTORIAL / "app.py").people

    def right(client: sf.Client, ages: tuple[int, int], seed: int, count: int = 600) -> float:
        """Ask about people, as ``send.py`` does; return the share of right answers."""
        x, y = people(count, ages=ages, seed=seed)
        rows = [slice(at, at + 20) for at in range(0, count, 20)]
        answers = [client.predict(loop.service, {name: x[name].to_numpy()[row] for name in x}) for row in rows]
        return float((np.concatenate(answers) == y).mean())

    with loop.running() as client:
        loop.scanflow("run", "cluster_app.py:training")
        loop.scanflow("deploy", f"cluster_app.py:{loop.service}")
        loop.scanflow("agents", "--start", "cluster_app.py")
        before = right(client, (18, 45), 1)
        assert before > 0.95
        loop.wait_for(client, "drift.none")
        older: list[float] = []

        def send() -> None:
            older.append(right(client, (50, 90), 1 + len(older)))

        send()
        loop.wait_for(client, "model.promoted", again={"drift.none": send, "drift.suspected": send})
        after = right(client, (50, 90), 99)
        events = client.events_so_far(0, app=loop.app.name)
        serving = client.service(loop.service).current
        (promoted,) = [event for event in events if event.type == "model.promoted"]
        why = loop.scanflow("why", str(promoted.data["action"]))
        runs, _ = loop.cluster.find("Workflow", loop.namespace)
        alias = loop.knowledge().get_model("loans", "champion").version

    assert in_order(STORY, list_event_kinds(events)), list_event_kinds(events)
    assert after > older[0] + 0.1, (older, after)
    assert serving is not None
    assert serving.models == {"loans": f"models:/loans/{alias}"}
    assert (alias > 1, serving.id != "r1") == (True, True)
    assert len(runs) >= 4, "a first training, two looks, a second training"
    assert not {run["status"]["phase"] for run in runs} & {"Failed", "Error"}
    for part in ("change_model", "upgrade_workflow", f"models:/loans/{alias}", "succeeded"):
        assert part in why, why
