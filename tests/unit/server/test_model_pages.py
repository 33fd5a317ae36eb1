"""The pages of models: versions, why each is in use or not, and a tracker that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scanflow.agent import model_changer
from scanflow.agent.agent_records import Event
from scanflow.errors import UnavailableError, UsageError
from scanflow.http.problems import build_problem
from scanflow.knowledge import MemoryKnowledge, checks
from scanflow.knowledge.version_tags import PROMOTION, format_rejection
from scanflow_server import model_decisions, registered_models
from scanflow_server.background_reads import OPENED_PAUSE_S, BackgroundReads
from scanflow_server.bodies import OperationAccepted
from scanflow_server.dashboard import model_pages
from scanflow_server.routes import service_routes
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, intent_store
from tests.unit.server.answering import a_service
from tests.unit.server.page_browser import Browser, browsing
from tests.unit.server.server_rows import Api, end_change, make_action_row, make_request_row, read_from_store
from tests.unit.server.test_action_pages import EVIDENCE
from tests.waiting import wait_until

COLUMN: dict[str, Any] = {
    "name": "<age>", "test": "ks", "statistic": 0.3, "p": 0.001, "effect": 0.2,
    "reference": {"mean": 1.0, "sd": 0.1}, "current": {"mean": 2.0, "sd": 0.1},
}  # fmt: skip


@pytest.fixture
def knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryKnowledge:
    memory = MemoryKnowledge()
    for module in (model_pages, registered_models):
        monkeypatch.setattr(module, "open_tracker", lambda _context: memory)
    (tmp_path / "weights").write_bytes(b"w")
    for _ in range(3):
        memory.register_model("cnn", tmp_path / "weights", app="mnist", team="tests", tags={"scanflow.run": "owl-1"})
    memory.register_model("other", tmp_path / "weights", app="shop", team="beta")
    return memory


def add_events(context: ServerContext, *more: dict[str, Any]) -> None:
    new = [Event.model_validate({"at": 1.0, "app": "mnist", "subject": "model/cnn", **event}) for event in more]
    with context.store.write() as connection:
        event_store.append(connection, new, team="tests")


def get_read(browser: Browser, path: str) -> str:
    wait_until(lambda: "Reading MLflow" not in browser.get(path), "MLflow is read")
    return browser.get(path)


def test_a_model_shows_why_each_version_is_in_use_or_not(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge
) -> None:
    judged = {"agent": "planner", "version": 2, "champion": 1, "champion_metric": 0.78, "challenger_metric": 0.86}
    add_events(
        context,
        {"type": "drift.found", "subject": "workflow/d", "data": {"run": "fox-1", "columns": [COLUMN]}},
        {"type": "model.judged", "data": {**judged, "metric": "accuracy", "better": True, "evidence": EVIDENCE}},
        {"type": "model.promoted", "data": {"agent": "executor", "version": 2, "before": 1}},
    )
    knowledge.set_model_alias("cnn", "champion", 2)
    knowledge.set_model_tags("cnn", 2, {PROMOTION: "promoted", "scanflow.action": "a1"})
    knowledge.set_model_tags("cnn", 3, {PROMOTION: format_rejection("<worse>")})
    with context.store.write() as connection:
        intent_store.add(
            connection,
            make_action_row("w1", "pending", "approve", arguments={"model": "models:/cnn/3"}, rule="it is better"),
        )
    with browsing(api) as ada:
        listed = get_read(ada, "/models")
        assert '<td data-label="in use">version 2</td>' in listed
        page, text = ada.read("/models/cnn"), ada.get("/models/cnn")
        ids = [attributes.get("id") for tag, attributes in page.tags if tag == "h2"]
        assert [id for id in ids if str(id).startswith("v")] == ["v3", "v2", "v1"]
        assert "&lt;worse&gt;" in text
        assert "Accuracy of the model versions" in text
        assert "78.4 %" in text
        assert "&lt;age&gt;" in text
        assert {"/runs/owl-1", "/runs/fox-1", "/actions/w1", "/mlflow/#/models/cnn/versions/2"} <= page.addresses
        assert "/actions/w1/approve" in [form.action for form in page.forms]
        assert "model models:/cnn/3; rule: it is better" in text


def test_a_model_that_another_program_named_oddly_hides_no_other(
    api: Api, knowledge: MemoryKnowledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("emoji😀", "per%cent%2Fslash", "trailing ", "two\nlines", "it's")
    with monkeypatch.context() as unchecked:
        unchecked.setattr(checks, "check_model_name", str)
        for name in names:
            knowledge.register_model(name, tmp_path / "weights", app="mnist", team="tests")
    with browsing(api) as ada:
        get_read(ada, "/models")
        listed, text = ada.read("/models"), ada.get("/models")
        addresses = [f"/models/{quote(name, safe='')}" for name in names]
        assert {"/models/cnn", "/models/other", *addresses} <= listed.addresses
        assert text.count("cannot be served under this name") == len(names)
        assert "/models/cnn/3/promote" in [form.action for form in ada.read("/models/cnn").forms]
        for address in addresses:
            assert "A model cannot be called" in ada.get(address)
            assert [form.action for form in ada.read(address).forms if "promote" in form.action] == []
            assert "A model cannot be called" in ada.post(f"{address}/1/promote", reason="it is better").text


def test_no_model_names_a_command_that_registers_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_models, "open_tracker", lambda _context: MemoryKnowledge())
    with browsing(api) as ada:
        assert "<code>scanflow demo</code>" in get_read(ada, "/models").partition("No model is registered yet.")[2]


def test_what_is_registered_later_is_read_when_an_event_tells_of_it(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge
) -> None:
    with browsing(api) as ada:
        assert "promoted" not in get_read(ada, "/models/cnn").partition("Version 3")[2]
        knowledge.set_model_tags("cnn", 3, {PROMOTION: "promoted"})
        add_events(context, {"type": "model.promoted", "data": {"agent": "executor", "version": 3}})
        wait_until(lambda: "promoted" in ada.get("/models/cnn").partition("Version 3")[2], "it is read again")


def test_what_is_registered_later_is_read_when_the_page_is_opened_and_the_page_says_how_old_it_is(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge, tmp_path: Path
) -> None:
    now = [100.0]
    context.background_reads = BackgroundReads(context.store_notifier.notify, clock=lambda: now[0])
    with browsing(api) as ada:
        assert 'As MLflow had it at <time datetime="' in get_read(ada, "/models/cnn")
        knowledge.register_model("cnn", tmp_path / "weights", app="mnist", team="tests")
        now[0] += OPENED_PAUSE_S + 1
        before = ada.get("/models/cnn")
        assert ("Version 4" in before, "it is being read again" in before) == (False, True)
        wait_until(lambda: "Version 4" in ada.get("/models/cnn"), "it is read again, though no event tells of it")
        now[0] += OPENED_PAUSE_S + 1
        assert ada.client.get("/models/newer").status_code == 200, "it may be there by now"
        wait_until(lambda: ada.client.get("/models/newer").status_code == 404, "it is not there")


@pytest.mark.usefixtures("knowledge")
def test_another_teams_model_looks_missing(api: Api) -> None:
    with browsing(api, "eve", "viewer", "beta") as eve:
        listed = get_read(eve, "/models")
        assert "/models/other" in listed
        assert "/models/cnn" not in listed
        for name in ("cnn", "none"):
            missing = eve.client.get(f"/models/{name}")
            assert (missing.status_code, "There is no model" in missing.text) == (404, True)


def test_a_tracker_that_does_not_answer_is_said(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_context: object) -> None:
        raise UnavailableError("No MLflow runs behind this server.")

    monkeypatch.setattr(registered_models, "open_tracker", refuse)
    with browsing(api) as ada:
        for path in ("/models", "/models/cnn"):
            assert "No MLflow runs behind this server." in get_read(ada, path)


def test_an_editor_promotes_and_rejects_with_a_reason(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge
) -> None:
    knowledge.set_model_alias("cnn", "champion", 1)
    with browsing(api) as ada, browsing(api, "vic", "viewer") as vic, browsing(api, "eve", "editor", "beta") as eve:
        get_read(ada, "/models/cnn")
        assert "/models/cnn/2/promote" in [form.action for form in ada.read("/models/cnn").forms]
        assert vic.post("/models/cnn/2/promote").status_code == 403
        assert eve.post("/models/cnn/2/promote").status_code == 404
        assert ada.post("/models/cnn/9/promote").status_code == 404
        assert ada.post("/models/cnn/x/promote").status_code == 404
        assert ada.post("/models/cnn/2/promote", reason="x" * 1001).status_code == 422
        assert knowledge.get_model("cnn", "champion").version == 1
        get_read(vic, "/models/cnn")
        assert [form.action for form in vic.read("/models/cnn").forms] == ["/logout"]

        assert ada.post("/models/cnn/2/promote", reason="it is <better>").url.path == "/models/cnn"
        assert knowledge.get_model("cnn", "champion").version == 2
        assert ada.post("/models/cnn/2/reject", reason="no").status_code == 200
        assert knowledge.get_model("cnn", "champion").version == 1
        assert ada.post("/models/cnn/2/promote").status_code == 400, "what was rejected is used for a reason alone"
    with context.store.read() as connection:
        recorded = event_store.list_newest(connection, type=["model.*"], limit=9)
    assert [(event.type, event.data["by"], event.data["why"]) for event in recorded] == [
        ("model.promoted", "ada", "it is <better>"),
        ("model.rejected", "ada", "no"),
    ]


def test_a_version_that_an_agent_wants_is_approved_and_not_put_to_use_beside_it(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = a_service("serve", "ready").model_copy(update={"team": "tests", "app": "mnist"})
    monkeypatch.setattr(model_decisions.OwnModels, "services", lambda _self: [record])
    monkeypatch.setattr(model_changer, "serves", lambda _record, _name: {"m": "models:/cnn/1"})
    with context.store.write() as connection:
        row = make_action_row("w1", "pending", "approve", arguments={"model": "models:/cnn/2"})
        intent_store.add(connection, row)
    with browsing(api) as ada:
        assert ada.post("/models/cnn/2/promote", reason="yes").url.path == "/actions/w1"
    assert read_from_store(context.store, intent_store.find, "w1").action.approved_by == "ada"
    assert "champion" not in knowledge.get_model("cnn", 2).aliases, "the agent names it, once it has watched it"


@pytest.fixture
def running_change(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> str:
    """A change of the service of the model, which has begun when the server is asked for one, and does not end."""
    record = a_service("serve", "ready").model_copy(update={"team": "tests", "app": "mnist"})
    monkeypatch.setattr(model_decisions.OwnModels, "services", lambda _self: [record])
    monkeypatch.setattr(model_changer, "serves", lambda _record, _name: {"m": "models:/cnn/1"})

    def change(*_of: object) -> OperationAccepted:
        with context.store.write() as connection:
            intent_store.add(connection, make_request_row("c1", service="serve", app="mnist", team="tests"))
        return OperationAccepted(operation="c1")

    monkeypatch.setattr(service_routes, "change", change)
    return "c1"


def test_the_change_of_a_service_is_not_waited_for_and_the_registry_follows_it(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge, running_change: str
) -> None:
    knowledge.set_model_alias("cnn", "champion", 1)
    with browsing(api) as ada:
        assert ada.post("/models/cnn/2/promote", reason="yes").url.path == f"/actions/{running_change}"
        assert knowledge.get_model("cnn", "champion").version == 1
        end_change(context.store, running_change)
        context.store_notifier.notify()
        wait_until(lambda: knowledge.get_model("cnn", "champion").version == 2, "the registry names it")


def test_what_goes_wrong_after_the_change_of_a_service_has_begun_is_said_of_its_action(
    api: Api, context: ServerContext, knowledge: MemoryKnowledge, running_change: str
) -> None:
    knowledge.set_model_alias("cnn", "champion", 1)
    with browsing(api) as ada:
        assert ada.post("/models/cnn/2/promote").url.path == f"/actions/{running_change}"
        end_change(
            context.store, running_change, problem=build_problem(UsageError("The version <cannot> be loaded."))[1]
        )
        context.store_notifier.notify()
        note = "the registry still names the version before it: The version &lt;cannot&gt; be loaded."
        wait_until(lambda: note in ada.get(f"/actions/{running_change}"), "it is said")
    assert knowledge.get_model("cnn", "champion").version == 1


@pytest.mark.usefixtures("knowledge")
def test_a_server_that_ends_leaves_what_has_begun_and_says_so(
    api: Api, context: ServerContext, running_change: str
) -> None:
    with browsing(api) as ada:
        assert ada.post("/models/cnn/2/promote").url.path == f"/actions/{running_change}"
        context.shutdown.set()
        context.store_notifier.notify()
        wait_until(lambda: "do the same again" in ada.get(f"/actions/{running_change}"), "it is said")
