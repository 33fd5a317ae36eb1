"""The server as the built-in agents ask it, over its own HTTP API; and their notes in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from scanflow.agent.context import Context
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge import open_knowledge
from scanflow.settings import Settings
from scanflow.transport.server import Server
from scanflow_agents.templates.desk import MOST_LABELS, Desk, ServerDesk, acted_on, desk_of, newest_runs
from scanflow_agents.templates.marks import read_json
from scanflow_server.context import Context as ServerContext
from scanflow_server.context import make_context
from scanflow_server.settings import ServerSettings
from scanflow_server.store import intents, labels
from scanflow_server.store.migrations import migrate
from tests.unit.agents.templates.fakes import FakeDesk, World
from tests.unit.server.answering import answering
from tests.unit.server.keeping import entered, stored


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[ServerContext]:
    """The parts of a server."""
    home = tmp_path / "home"
    home.mkdir()
    address = f"sqlite:///{tmp_path / 'store.db'}"
    settings = ServerSettings.model_validate({"library": Settings(home=home, slots=2), "database_url": address})
    settings.folder.mkdir()
    made = make_context(settings, clock=lambda: 1_800_000_000.0)
    migrate(made.store)
    yield made
    made.store.close()


@pytest.fixture
def desk(parts: ServerContext) -> Iterator[ServerDesk]:
    with answering(parts) as url, closing(Server(url)) as server:
        yield ServerDesk(server)


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


def test_the_same_application_of_another_team_begins_with_no_labels(desk: ServerDesk) -> None:
    desk.want_labels("mnist", [{"id": "p:1"}], team="data")
    desk.give_label("mnist", "p:1", 8, by="ada", team="data")
    assert desk.labels("mnist", state="given", team="others") == []
    assert len(desk.labels("mnist", state="given", team="data")) == 1
    assert desk.want_labels("mnist", [{"id": "p:1"}], team="others")[0]["state"] == "wanted"
    desk.give_label("mnist", "p:1", 9, by="ada", team="others")
    assert [one["label"] for one in desk.labels("mnist", state="given", team="data")] == [8]


def test_the_newest_labels_are_seen_however_many_were_given_before(desk: ServerDesk, parts: ServerContext) -> None:
    def give(start: int, count: int, score: float | None) -> None:
        given = [
            labels.Label(
                id=f"p{number}", app="mnist", state="given", label=7, by="ada", score=score, given=1.0 * number
            )
            for number in range(start, start + count)
        ]
        with parts.store.write() as connection:
            connection.execute(insert(labels.labels), [one.model_dump(mode="json") for one in given])

    give(0, MOST_LABELS, 0.9)
    assert len(desk.labels("mnist", state="given")) == MOST_LABELS
    give(MOST_LABELS, 5, None)
    found = desk.labels("mnist", state="given")
    assert [one["id"] for one in found[:5]] == [f"p{MOST_LABELS + number}" for number in (4, 3, 2, 1, 0)]
    assert len({one["id"] for one in found}) == len(found) == MOST_LABELS + 5


def test_a_server_that_knows_no_parts_of_the_queue_is_asked_no_more_than_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        asked = 0

        def get(self, _path: str, **query: Any) -> list[dict[str, Any]]:
            self.asked += 1
            return [{"id": f"p{number}"} for number in range(query["limit"])]

    monkeypatch.setattr("scanflow_agents.templates.desk.MOST_LABELS", 3)
    old: Any = Old()
    assert [one["id"] for one in ServerDesk(old).labels("mnist", state="given")] == ["p0", "p1", "p2"]
    assert old.asked == 2


def test_labels_that_are_given_while_others_are_read_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def __init__(self) -> None:
            self.given = list(range(7))

        def get(self, _path: str, **query: Any) -> list[dict[str, Any]]:
            start = query["offset"] or 0
            found = [
                {"id": f"p{number}"} for number in sorted(self.given, reverse=True)[start : start + query["limit"]]
            ]
            self.given = [*self.given, len(self.given)]
            return found

    monkeypatch.setattr("scanflow_agents.templates.desk.MOST_LABELS", 3)
    busy: Any = Busy()
    found = [one["id"] for one in ServerDesk(busy).labels("mnist", state="given")]
    assert sorted(found) == [f"p{number}" for number in range(7)]


def test_runs_and_actions_are_asked_for_by_what_they_are_of(desk: ServerDesk, parts: ServerContext) -> None:
    context = Context(app="mnist", team="data", agent="executor", clock=lambda: 0.0, services=desk)
    for app, workflow in [("mnist", "training")] * 2 + [("mnist", "inference"), ("other", "training")] * 75:
        entered(parts, app=app, workflow=workflow)
    assert {(one.app, one.workflow) for one in newest_runs(desk, context, "training")} == {("mnist", "training")}
    assert len(newest_runs(desk, context, "training")) == 2
    assert len(desk.runs(limit=3)) == 3
    of = {"team": "data", "agent": "executor", "strategy": "change"}
    with parts.store.write() as connection:
        intents.add(connection, stored("mine", "succeeded", "act", **of))
        for number in range(150):
            intents.add(connection, stored(f"no-{number}", **of))
            intents.add(connection, stored(f"other-{number}", "succeeded", "act", team="data"))
            intents.add(connection, stored(f"says-{number}", "pending", "suggest", **of))
    assert [one.id for one in acted_on(desk, context, "change")] == ["mine"]
    assert len(desk.actions("mnist")) == 100
    assert desk.actions("mnist", states=["running", "lost"]) == []
    assert len(desk.actions("mnist", target="service/serve", primitive="update_workflow_replica")) == 100


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
