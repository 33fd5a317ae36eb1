"""The server as the built-in agents ask it, over its own HTTP API; and their notes in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent.context import Context
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge import open_knowledge
from scanflow.settings import Settings
from scanflow.transport.server import Server
from scanflow_agents.templates.desk import Desk, ServerDesk, desk_of
from scanflow_agents.templates.marks import read_json
from scanflow_server.context import make_context
from scanflow_server.settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.unit.agents.templates.fakes import FakeDesk, World
from tests.unit.server.answering import answering


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[ServerDesk]:
    home = tmp_path / "home"
    home.mkdir()
    address = f"sqlite:///{tmp_path / 'store.db'}"
    settings = ServerSettings.model_validate({"library": Settings(home=home, slots=2), "database_url": address})
    settings.folder.mkdir()
    made = make_context(settings, clock=lambda: 1_800_000_000.0)
    migrate(made.store)
    with answering(made) as url, closing(Server(url)) as server:
        yield ServerDesk(server)
    made.store.close()


def test_the_servers_desk_is_one_and_a_context_has_it(desk: ServerDesk) -> None:
    context = Context(app="mnist", team="data", agent="checker", clock=lambda: 0.0, services=desk)
    assert desk_of(context) is desk
    assert isinstance(desk, Desk)
    assert isinstance(FakeDesk(), Desk)


def test_points_go_into_the_queue_once_and_come_back_labelled(desk: ServerDesk) -> None:
    items: list[dict[str, Any]] = [
        {"id": f"run/7:{number}", "run": "calm-otter-1", "data": {"at": number}, "guess": 3, "score": 0.5}
        for number in range(2500)
    ]
    assert len(desk.want_labels("mnist", items)) == 2500
    assert {one["state"] for one in desk.want_labels("mnist", items[:10])} == {"wanted"}
    desk.give_label("mnist", "run/7:3", 8, by="ada")
    desk.give_label("mnist", "run/7:3", 8, by="ada")
    assert [(one["id"], one["label"]) for one in desk.labels("mnist", state="given")] == [("run/7:3", 8)]
    assert len(desk.labels("mnist", state="wanted")) == 2499
    assert desk.want_labels("mnist", items[3:4])[0]["state"] == "given"


def test_an_empty_server_has_nothing_and_says_what_is_not_there(desk: ServerDesk) -> None:
    assert (desk.runs(), desk.services(), desk.actions("mnist"), desk.want_labels("mnist", [])) == ([], [], [], [])
    for ask in (lambda: desk.service("serve"), lambda: desk.run("calm-otter-1"), lambda: desk.explain("serve")):
        with pytest.raises((NotFoundError, InvalidError)):
            ask()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # MLflow's own use of its libraries
def test_the_agents_notes_are_found_again_in_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    world = World(tmp_path)
    world.tracker = open_knowledge(tmp_path / "home")
    world.version()
    world.tracker.set_model_alias("mnist_cnn", "champion", 1)
    world.desk.serves("models:/mnist_cnn/1")
    ids = [world.predicted(600), world.predicted(600)]
    call = world.call("tracker", "count_number_of_predictions")
    assert call.kwargs["run_ids"] == ids
    world.detected("calm-otter-1", [f"{ids[0]}:{number}" for number in range(100)], run_ids=ids)
    assert world.fire("checker", "detection_ended") == {
        "detections": [{"run": "calm-otter-1", "drifted": True, "anomalies": 300, "picked": 100, "labelled": 0}],
        "errors": [],
    }
    assert world.fire("checker", "detection_ended") == {"detections": [], "errors": []}
    assert world.passed_on(call) == []
    world.given(list(world.desk.queue))
    retrain = world.intent("planner", "count_number_of_pickeddata")
    parameters = retrain.arguments["parameters"]
    assert isinstance(parameters, dict)
    labels = str(parameters["labels"])
    assert len(read_json(world.tracker, labels, "labels.json")) == 100
    version = world.retrained("bold-fox-2", 0.81, 0.93, labels=labels)
    [swap] = world.passed_on(world.call("planner", "retraining_ended"))
    world.desk.serves(f"models:/mnist_cnn/{version}")
    world.desk.acted(swap)  # type: ignore[arg-type]
    world.desk.now += 62.0
    world.fire("executor", "model_changed")
    assert world.champion() == version
    assert world.tracker.get_model("mnist_cnn", version).tags["scanflow.reference"] == f"runs:/{labels}/labels.json"
    assert world.wants("planner", "count_number_of_pickeddata") == []
