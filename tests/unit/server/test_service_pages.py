"""The pages of services: who sees which, what changes them, and the form that asks one for a prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.backends.log_reader import LogPage, LogPart
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import NotFoundError, ServiceFailedError
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store, event_store, intent_store
from tests.unit.server.page_browser import Browser, browsing
from tests.unit.server.server_rows import Api, make_request_row

HOSTILE = "<script>alert('x')</script>"
CHANGES = ("resize", "traffic", "promote", "rollback", "delete", "predict")


def make_record(name: str, team: str, **changes: Any) -> ServiceRecord:
    current = {
        "id": "r1",
        "models": {"n": "models:/cnn/3"},
        "weight": 0.9,
        "requests": 200,
        "errors": 2,
        "rps": 4.5,
        "p50_s": 0.004,
        "p95_s": 0.02,
        "buckets": [(0.005, 150), (0.1, 199)],
    }
    canary = {"id": "r2", "models": {"n": "models:/cnn/4"}, "weight": 0.1, "role": "canary", "requests": 20}
    instance = {"instance": "1", "state": "ready", "cpus": [0, 2], "rss_bytes": 90 << 20, "error": HOSTILE}
    fields: dict[str, Any] = {
        "name": name,
        "app": "shop",
        "team": team,
        "state": "ready",
        "url": "http://127.0.0.1:1",
        "generation": 1,
        "shape": {"instances": 2, "cores": 1.0, "affinity": "cpu"},
        "ready": 1,
        "previous": True,
        "revisions": [current, canary],
        "instances": [instance],
        "error": f"It failed: {HOSTILE}",
    }
    return ServiceRecord.model_validate({**fields, **changes})


class FakeClient:
    """A client of a service whose model refuses what is above 10."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.inputs: list[dict[str, Any]] = [{"name": "age", "datatype": "INT64", "shape": [-1]}]

    def document(self, _path: str) -> dict[str, Any]:
        return {"inputs": self.inputs}

    def post(self, path: str, body: bytes, _headers: Any) -> Any:
        assert path == "/v2/models/digits/infer"
        (tensor,) = json.loads(body)["inputs"]
        self.sent.append(tensor)
        if tensor["data"][0] > 10:
            raise ServiceFailedError(f"cnn: ValueError: {HOSTILE}")
        output = {"name": HOSTILE, "datatype": "INT64", "shape": [1], "data": [tensor["data"][0] + 1]}
        return SimpleNamespace(content=json.dumps({"outputs": [output]}).encode())

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def client(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client of two services of two teams."""
    records = [make_record("digits", "data"), make_record("concealed", "others")]
    fake = FakeClient()

    def find(name: str) -> ServiceRecord:
        for record in records:
            if record.name == name:
                return record
        raise NotFoundError(f"There is no service {name!r}. List the services: scanflow services")

    class Reader:
        def read(self) -> LogPage:
            text = f"password=hunter2hunter2 {HOSTILE}\n\r1 %\r100 %\n".encode()
            return LogPage((LogPart("1", text),), ended=True)

        def read_tail(self, _n_bytes: int) -> tuple[LogPart, ...]:
            return self.read().parts

        def close(self) -> None: ...

    online = SimpleNamespace(client=lambda _name: fake, logs=lambda _name, _instance: Reader())
    monkeypatch.setattr(context.deployer, "services", lambda **_: records)
    monkeypatch.setattr(context.deployer, "service", find)
    monkeypatch.setattr(type(context.deployer.backend), "online", lambda *_: online)
    return fake


@pytest.fixture
def editor(api: Api, client: FakeClient) -> Iterator[Browser]:
    with browsing(api, "eva", "editor", "data") as browser:
        yield browser


@pytest.fixture
def viewer(api: Api, client: FakeClient) -> Iterator[Browser]:
    with browsing(api, "vic", "viewer", "data") as browser:
        yield browser


def list_intents(context: ServerContext) -> list[dict[str, Any]]:
    with context.store.read() as connection:
        actions = intent_store.list_actions(connection)
    return [{"primitive": action.intent.primitive, **dict(action.intent.arguments)} for action in reversed(actions)]


def test_a_team_sees_its_services_alone_and_what_they_say_is_text(viewer: Browser) -> None:
    page = viewer.get("/services")
    assert "digits" in page
    assert "concealed" not in page
    assert HOSTILE not in page
    for path in ("/services", "/"):
        assert viewer.read(path).links.items() >= {"cnn/3": "/models/cnn#v3", "cnn/4": "/models/cnn#v4"}.items()
    for path in ("", "/logs", "/try"):
        other, missing = (viewer.client.get(f"/services/{name}{path}") for name in ("concealed", "absent"))
        assert other.status_code == missing.status_code == 404
        assert other.text.count("concealed") == missing.text.count("absent") > 0
        assert "others" not in other.text


def test_a_service_s_page_says_what_serves_where_and_how_well(viewer: Browser) -> None:
    page = viewer.read("/services/digits")
    text = viewer.get("/services/digits")
    assert "are those of the last 60 s" in viewer.get("/services")
    shown = "The drawing, requests/s, p50 and p95 show the last 60 s"
    for words in ("1 of 2 instances ready", "CPUs 0,2", "90 MiB", "90%", "1.00%", "20 ms", "cnn/4", shown):
        assert words in text, words
    assert HOSTILE not in text
    assert ('data-label="restarts"' in text, 'data-label="error"' in text) == (False, True), "what is empty is left out"
    assert page.addresses >= {"/models/cnn", "/services/digits/logs?instance=1", "/applications/shop"}


def test_a_restart_of_an_instance_is_among_the_changes_and_marked_on_the_plot(
    viewer: Browser, context: ServerContext
) -> None:
    before = make_record("digits", "data")
    for restarts, now in enumerate((100.0, 101.0)):
        (instance,) = before.instances
        listed = before.model_copy(update={"instances": (instance.model_copy(update={"restarts": restarts}),)})
        context.service_history.observe([listed], now)
    data = {"instance": "7", "restarts": 1, "error": "it was killed by the signal SIGKILL"}
    with context.store.write() as connection:
        event_store.record(
            connection, "service.restarted", "service/digits", at=101.0, app="shop", team="data", data=data
        )
    page = viewer.read("/services/digits")
    assert page.links["instance 7 restarted"] == "/events/1"
    text = viewer.get("/services/digits")
    assert text.count("killed by the signal SIGKILL") == 1
    assert text.count('href="/events/1"') == 3, "in the table, and in both widths of the plot"


def test_who_may_only_look_is_offered_no_change_and_refused_one(viewer: Browser, editor: Browser) -> None:
    offered = {form.action for form in editor.read("/services/digits").forms}
    assert offered >= {f"/services/digits/{change}" for change in CHANGES if change != "predict"}
    assert {form.action for form in viewer.read("/services/digits").forms} == {"/logout"}
    assert "/services/digits/try" not in viewer.read("/services/digits").addresses
    assert viewer.client.get("/services/digits/try").status_code == 403
    for change in CHANGES:
        assert viewer.post(f"/services/digits/{change}", instances="3").status_code == 403, change
        assert editor.post(f"/services/concealed/{change}", instances="3").status_code == 404, change


def test_forms_change_what_differs_and_nothing_else(editor: Browser, context: ServerContext) -> None:
    canary = {"model": "models:/cnn/5", "share": "25 %", "metric": "p95", "ratio": "1.2", "after_requests": "50"}
    editor.post("/services/digits/traffic", **canary)
    size = {"instances": "3", "cores": "1", "affinity": "cpu"}
    assert editor.post("/services/digits/resize", **size).url.path == "/services/digits"
    editor.post("/services/digits/promote")
    editor.post("/services/digits/rollback")
    assert editor.post("/services/digits/delete").url.path == "/services"
    split, resized, promoted, rolled_back, deleted = list_intents(context)
    assert resized == {"primitive": "change", "service": "digits", "instances": 3}
    assert (split["weight"], split["model"]) == (0.25, "models:/cnn/5")
    assert split["policy"] == {"metric": "p95", "ratio": 1.2, "slack": 0.0, "after_requests": 50, "within_s": 600.0}
    assert (promoted["promote"], rolled_back["rollback"]) == (True, True)
    assert deleted["primitive"] == "delete"


@pytest.mark.parametrize(
    ("change", "fields", "says"),
    [
        ("resize", {"instances": "2", "cores": "1", "affinity": "cpu"}, "changes nothing"),
        ("resize", {"instances": "-1"}, "greater than or equal to 0"),
        ("resize", {"cores": "many"}, "a valid number"),
        ("traffic", {"model": "models:/cnn/5", "share": "700"}, "less than or equal to 1"),
        ("traffic", {"model": "", "share": "10"}, "applies to a model version"),
    ],
)
def test_a_form_that_cannot_be_carried_out_is_refused_with_the_reason(
    editor: Browser, context: ServerContext, change: str, fields: dict[str, str], says: str
) -> None:
    response = editor.post(f"/services/digits/{change}", **fields)
    main = response.text.partition("<main")[2]
    assert response.status_code in {400, 422}
    assert says in main, main
    assert list_intents(context) == []


def test_a_prediction_is_shown_and_so_is_the_model_s_error(editor: Browser, client: FakeClient) -> None:
    assert [form.fields.keys() for form in editor.read("/services/digits/try").forms[1:]] == [
        {"session_key", "f0", "token"},
        {"session_key", "rows"},
    ]
    answer = editor.post("/services/digits/predict", f0="4").text
    assert "[5]" in answer
    assert "<main" not in answer, "it is a part of the page"
    assert "[8]" in editor.post("/services/digits/predict", rows='[{"age": 7}]').text
    failed = editor.post("/services/digits/predict", f0="11")
    assert (failed.status_code, "No prediction" in failed.text, "ValueError" in failed.text) == (200, True, True)
    assert "takes a whole number" in editor.post("/services/digits/predict", f0="4.5").text
    assert HOSTILE not in answer + failed.text
    assert [tensor["data"] for tensor in client.sent] == [[4], [7], [11]]
    assert client.sent[0] == {"name": "age", "datatype": "INT64", "shape": [1], "data": [4]}


def test_a_form_has_a_field_of_the_kind_of_each_input_or_one_for_rows(editor: Browser, client: FakeClient) -> None:
    client.inputs = [
        {"name": HOSTILE, "datatype": "FP64", "shape": [-1, 1]},
        {"name": "owns", "datatype": "BOOL", "shape": [-1]},
        {"name": "job", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "str"}},
    ]
    form = editor.read("/services/digits/try").forms[1]
    assert form.fields.keys() == {"session_key", "f0", "f1", "f2", "token"}
    assert HOSTILE not in editor.get("/services/digits/try")
    client.inputs = [{"name": "picture", "datatype": "UINT8", "shape": [-1, 28, 28]}]
    forms = editor.read("/services/digits/try").forms
    assert [form.fields.keys() for form in forms[1:]] == [{"session_key", "rows", "token"}]


def test_logs_show_the_last_state_of_a_bar_and_no_secret_of_the_application(
    viewer: Browser, context: ServerContext
) -> None:
    document = {"name": "shop", "team": "data", "workflows": [{"env": {"DB_PASSWORD": "hunter2hunter2"}}]}
    with context.store.write() as connection:
        application_store.put(connection, name="shop", team="data", document=document, source=None, at=1.0)
    page = viewer.get("/services/digits/logs?instance=1")
    assert "password=" in page
    assert "\n100 %" in page, "of a bar its last state"
    assert "\r" not in page
    assert "\n1 %" not in page
    assert "hunter2" not in page
    assert HOSTILE not in page


def test_a_change_in_progress_is_shown_and_why_one_failed(viewer: Browser, context: ServerContext) -> None:
    problem = {"detail": f"It did not become ready: {HOSTILE}"}
    rows = [
        make_request_row("failed-1", state="failed", app="shop", team="data", problem=problem),
        make_request_row("running-1", app="shop", team="data", progress=("1 of 2 is ready",), drivers=("running-1",)),
    ]
    for row, words in zip(rows, ("It did not become ready", "1 of 2 is ready"), strict=True):
        with context.store.write() as connection:
            intent_store.add(connection, row)
        page = viewer.get("/services/digits")
        assert words in page, words
        assert HOSTILE not in page


def test_a_canary_s_policy_says_what_it_would_decide_by_now(
    viewer: Browser, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record("digits", "data", policy={"metric": "errors", "after_requests": 15})
    monkeypatch.setattr(context.deployer, "service", lambda _: record)
    assert "By now" not in viewer.get("/services/digits"), "when it began is not known"
    revision = {"id": "r2", "role": "canary", "requests": 4}
    before = record.model_copy(
        update={"revisions": (record.revisions[0], record.revisions[1].model_validate(revision))}
    )
    context.service_history.observe([before], context.clock() - 60)
    page = viewer.get("/services/digits")
    assert "By now: promote: errors 0, limit" in page, "16 of its 20 requests are counted"


def test_the_form_of_a_canary_has_the_rule_that_is_in_force(
    editor: Browser, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"metric": "p95", "ratio": 1.2, "slack": 0.5, "after_requests": 5000, "within_s": 60.0}
    monkeypatch.setattr(context.deployer, "service", lambda _: make_record("digits", "data", policy=policy))
    page = editor.get("/services/digits")
    assert "promoted if its p95 is at most 1.2 times that of the current version plus 0.5 after 5,000 requests" in page
    [form] = [form for form in editor.read("/services/digits").forms if form.action == "/services/digits/traffic"]
    filled = {name: value for name, value in form.fields.items() if name != "session_key"}
    editor.post(form.action, **{**filled, "metric": "p95", "share": "20"})
    assert [sent["policy"] for sent in list_intents(context)] == [policy], "it is requested unchanged"
