"""What is asked for more than once, or by several at the same time: each is done, and done once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent.agent_records import PrimitiveCall
from scanflow.agent.primitive_context import PrimitiveResult, SavedApplication
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.application_loading import load_application
from scanflow.deployer import RunRequest
from scanflow.errors import InvalidError, NotFoundError
from scanflow_server import run_requests
from scanflow_server.primitives import ApplicationStore, RequestedRuns
from scanflow_server.server_context import ServerContext
from scanflow_server.store import run_store
from tests.applications import keep_application
from tests.unit.server.page_browser import browsing
from tests.unit.server.primitives.primitive_runs import do
from tests.unit.server.server_rows import Api
from tests.waiting import PATIENCE_S

APP = """
import scanflow as sf


@sf.step(in_process=True)
def load(count: int = 3, note: str | None = None) -> list[int]:
    return list(range(count))


script = sf.Executor(name="load", mainfile="counting.py", parameters={"count": 0})
nodes = {"w0": load.bind(count=0), "w1": load.bind(count=0), "w2": script, "w3": script}
app = sf.Application(
    name="counting", team="tests", workflows=[sf.Workflow(name=name, nodes=[node]) for name, node in nodes.items()]
)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(APP, encoding="utf-8")
    return path


@pytest.fixture
def application(context: ServerContext, source: Path) -> Application:
    app = load_application(str(source))[0]
    keep_application(context, app, source=source)
    return ApplicationStore(context).get("counting", "tests").application


class Doing:
    """An engine's way to do things, and everything that it noted."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.applications = ApplicationStore(context)
        self.notes: list[PrimitiveCall] = []

    def __call__(self, primitive: str, *, key: str = "intent/i1", **arguments: Any) -> PrimitiveResult:
        call = PrimitiveCall(primitive=primitive, arguments=arguments)
        fields: dict[str, Any] = {"app": "counting", "team": "tests", "key": key, "note": self.notes.append}
        return do(self.context.deployer, self.applications, call, runs=RequestedRuns(self.context, "tests"), **fields)

    def counts(self, workflow: str, count: int) -> PrimitiveResult:
        return self("upgrade_workflow", workflow=workflow, parameters={"count": count})

    @property
    def counted(self) -> dict[str, Any]:
        app = ApplicationStore(self.context).get("counting", "tests").application
        return {workflow.name: workflow.steps[0].parameters["count"] for workflow in app.workflows}


@pytest.fixture
def doing(context: ServerContext, application: Application) -> Doing:
    assert application.name == "counting"
    return Doing(context)


@pytest.fixture
def past_run(context: ServerContext, application: Application) -> str:
    record = context.deployer.run(RunRequest(application, "w0"))
    assert record.state == "succeeded"
    return record.name


class Meanwhile(ApplicationStore):
    """Somebody else changes another workflow whenever an application was looked at."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._somebody = Doing(context)
        self.times: Iterator[int] = itertools.count(1)
        self.last = 0

    def get(self, app: str, team: str) -> SavedApplication:
        application = super().get(app, team)
        self.last = next(self.times)
        self._somebody.counts("w3", self.last)
        return application


@pytest.mark.parametrize(
    ("primitive", "arguments"),
    [
        ("upgrade_workflow", {"parameters": {"count": 7}}),
        ("upgrade_executor", {"executor": "load", "parameters": {"count": 7}}),
        ("update_workflow_affinity", {"affinity": "any"}),
        ("update_executor_resource", {"executor": "load", "cpu": 2}),
    ],
)
def test_a_change_made_meanwhile_is_not_lost(
    context: ServerContext, doing: Doing, primitive: str, arguments: Mapping[str, Any]
) -> None:
    doing.applications = meanwhile = Meanwhile(context)
    before = ApplicationStore(context).get("counting", "tests").application.workflow("w2")
    doing(primitive, workflow="w2", **arguments)
    after = ApplicationStore(context).get("counting", "tests").application
    assert after.workflow("w2") != before
    assert doing.counted["w3"] == meanwhile.last


def test_changes_by_several_at_the_same_time_are_all_kept(context: ServerContext, doing: Doing) -> None:
    wanted = {f"w{number}": [10 * number + step for step in range(1, 6)] for number in range(4)}

    def change(name: str) -> None:
        for count in wanted[name]:
            Doing(context).counts(name, count)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, wanted, timeout=PATIENCE_S))
    assert doing.counted == {name: counts[-1] for name, counts in wanted.items()}
    assert ApplicationStore(context).get("counting", "tests").revision == 1 + 20


def test_a_change_that_cannot_be_made_keeps_nothing(context: ServerContext, doing: Doing) -> None:
    store = ApplicationStore(context)

    def refuse(application: Application) -> Application:
        raise InvalidError(f"{application.name} is good as it is.")

    with pytest.raises(InvalidError, match="good as it is"):
        store.change("counting", "tests", refuse)
    with pytest.raises(NotFoundError, match="The server has no application 'other' of the team 'tests'"):
        store.change("other", "tests", refuse)
    assert store.change("counting", "tests", lambda app: app).revision == 1
    assert set(doing.counted.values()) == {0}


def test_beginning_a_run_does_not_put_an_older_application_back(
    context: ServerContext, doing: Doing, application: Application, source: Path
) -> None:
    doing.counts("w3", 5)
    RequestedRuns(context, "tests").begin(RunRequest(application, "w0", source=source), key="intent/i1")
    assert doing.counted["w3"] == 5


def test_a_run_is_begun_once_also_when_its_application_has_changed(
    context: ServerContext, doing: Doing, application: Application
) -> None:
    first = doing("run_workflow", workflow="w0", parameters={"count": 2})
    doing.counts("w0", 9)
    assert doing("run_workflow", workflow="w0", parameters={"count": 2}) == first
    keep_application(context, application.replace(workflows=application.workflows[1:]))
    assert doing("run_workflow", workflow="w0", parameters={"count": 2}) == first
    assert len(context.deployer.runs()) == 1
    assert doing("run_workflow", key="intent/i2", workflow="w1").result["run"] != first.result["run"]


@pytest.mark.processes
def test_a_step_of_the_newest_run_is_spun_once(context: ServerContext, doing: Doing, past_run: str) -> None:
    first = doing("run_executor", workflow="w0", executor="load")
    assert first.result["run"] != past_run
    doing.counts("w0", 9)
    assert doing("run_executor", workflow="w0", executor="load") == first
    assert len(context.deployer.runs()) == 2


class KilledError(BaseException):
    """The process is killed at this instant."""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("primitive", "arguments"),
    [("run_workflow", {"workflow": "w0"}), ("run_executor", {"workflow": "w0", "executor": "load"})],
)
def test_a_try_that_was_cut_off_after_its_run_was_begun_has_its_inverse_from_the_next_one(
    context: ServerContext,
    doing: Doing,
    past_run: str,
    monkeypatch: pytest.MonkeyPatch,
    primitive: str,
    arguments: Mapping[str, Any],
) -> None:
    def raise_killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(run_requests, "ensure_entered", raise_killed)
        with pytest.raises(KilledError):
            doing(primitive, **arguments)
    with context.store.read() as connection:
        (begun,) = run_store.list_active(connection)
    assert (begun.name != past_run, doing.notes) == (True, [])
    done = doing(primitive, **arguments)
    assert done.result["run"] == begun.name
    assert doing.notes == [done.inverse] == [PrimitiveCall(primitive="stop_workflow", arguments={"run": begun.name})]


def make_body(application: Application, **more: Any) -> bytes:
    return json.dumps({"application": dump_document(application), "source": None, **more}).encode()


def post(api: Api, path: str, content: bytes = b"{}", key: str = "once") -> tuple[int, Any]:
    headers = {"content-type": "application/json", "idempotency-key": key}
    reply = api.post(path, content=content, headers=headers)
    return reply.status_code, reply.json()


def test_the_runs_of_a_workflow_are_found_however_many_others_there_are(doing: Doing) -> None:
    run = doing("run_workflow", workflow="w0").result["run"]
    doing("run_workflow", key="intent/i2", workflow="w1")
    runs = RequestedRuns(doing.context, "tests").list_newest(app="counting", team="tests", workflow="w0", limit=1)
    assert [record.name for record in runs] == [run]


@pytest.mark.processes
def test_a_spin_of_the_newest_run_sent_twice_is_one(api: Api, past_run: str) -> None:
    first = post(api, "/runs/@latest/spin", b'{"step": "load"}')
    assert (first[0], first[1]["name"] != past_run) == (201, True)
    again = post(api, "/runs/@latest/spin", b'{"step": "load"}')
    assert (again[0], again[1]["name"]) == (201, first[1]["name"])
    assert len(api.get("/runs").json()) == 2
    other = post(api, "/runs/@latest/spin", b'{"step": "load", "parameters": {"count": 1}}')
    assert (other[0], "was used for another request" in other[1]["detail"]) == (422, True)


def test_text_in_a_spin_is_of_the_type_of_the_present_value(api: Api, past_run: str, context: ServerContext) -> None:
    status, spun = post(api, "/runs/@latest/spin", b'{"step": "load", "texts": {"count": "2"}}')
    assert (status, spun["name"] != past_run) == (201, True)
    assert context.deployer.batch.definition(spun["name"]).parameters == {"load.count": 2}
    wrong = post(api, "/runs/@latest/spin", b'{"step": "load", "texts": {"cuont": "2"}}', key="twice")
    assert (wrong[0], "no parameter 'cuont'. Did you mean 'count'" in wrong[1]["detail"]) == (404, True)


@pytest.mark.usefixtures("past_run")
def test_a_wrong_parameter_is_refused_before_anything_runs(api: Api, application: Application) -> None:
    problem = "Step 'load': the parameter 'count' is 'many', which is not int"
    asked = json.loads(make_body(application, workflow="w0"))
    refused = [
        post(api, "/runs", json.dumps({**asked, "parameters": {"count": "many"}}).encode(), key="run"),
        post(api, "/runs/@latest/spin", b'{"step": "load", "texts": {"count": "many"}}', key="spin"),
    ]
    for status, answer in refused:
        assert (status, problem in answer["detail"]) == (422, True), answer
    with browsing(api) as ada:
        form = {"team": "tests", "workflow": "w0"}
        answer = ada.post("/applications/counting/run", **form, parameters="count=many")
        assert (answer.status_code, "which is not int" in answer.text) == (422, True)
        assert len(api.get("/runs").json()) == 1
        begun = ada.post("/applications/counting/run", **form, parameters="count=2\nnote=3").url.path
    name = begun.removeprefix("/runs/")
    assert api.context.deployer.batch.definition(name).parameters == {"count": 2, "note": "3"}


def test_a_run_sent_again_is_reported_also_when_it_could_not_be_begun_any_more(
    api: Api, application: Application, source: Path
) -> None:
    content = make_body(application, workflow="w0")
    first = post(api, "/runs", content)
    source.unlink()
    again = post(api, "/runs", content)
    assert (first[0], again[0], again[1]["name"]) == (201, 201, first[1]["name"])


def test_the_newest_run_that_is_gone_on_with_twice_is_the_same_one(api: Api, application: Application) -> None:
    name = post(api, "/runs", make_body(application, workflow="w0"), key="run")[1]["name"]
    api.post(f"/runs/{name}/stop")
    with api.context.store.write() as connection:  # as its controller would
        run_store.record_end(connection, name, 1, outcome="stopped")
    assert post(api, "/runs/@latest/resume")[1]["name"] == name
    newer = post(api, "/runs", make_body(application, workflow="w1"), key="newer")[1]["name"]
    again = post(api, "/runs/@latest/resume")
    assert (again[0], again[1]["name"], newer != name) == (200, name, True)
