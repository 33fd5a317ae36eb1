"""What notebooks show of applications, runs, services and reports: small, escaped, and of the page's own colours."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from IPython.lib.pretty import pretty

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.agent_records import ActionExplanation, AgentView, Event, PrimitiveCall, SensorReport
from scanflow.agent.model_changer import ModelChange
from scanflow.agent.replay import Trace
from scanflow.app.plan import plan_workflow
from scanflow.backends.job_times import JobTimes
from scanflow.backends.run_records import RunEnded, RunRecord
from scanflow.backends.service_records import Explanation, InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.errors import MissingExtraError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from scanflow.reports.model_history import VersionHistory
from scanflow.text.failures import Failure
from scanflow_client.agent_replay import Replay
from scanflow_client.control_status import ControlStatus
from scanflow_client.formatting.screen_html import MAX_ROWS, render_screen
from scanflow_client.formatting.text import format_age
from scanflow_client.formatting.text_table import Screen, Table, format_lines
from scanflow_client.listing import Listing
from scanflow_client.notebook import DRAWINGS, LISTS, MAX_GRAPHS, SCREENS, resolve_screen
from scanflow_client.notebook_progress import RunTable
from scanflow_client.report import Report
from scanflow_client.run_handle import RunHandle
from tests.notebooks import build_run, build_task, render_bundle
from tests.unit.test_agents_command_line import action

EVIL = "<script>alert('&')</script>\x1b]0;title\x07"
ALLOWED = set("a div iframe pre span strong style table tbody td th thead tr".split())


class Page(HTMLParser):
    """A page as a browser reads it: every element closed, none that does anything, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= {"class", "href", "rel", "sandbox", "srcdoc", "style", "target", "title"}
        self.attributes |= dict(attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            assert "background" not in data, "a notebook may be light or dark"
        elif data.strip():
            self.words.append(data)


def remove_drawings(page: str) -> str:
    return re.sub(r'<div class="drawing">.*?</div>', "", page, flags=re.DOTALL)


def list_texts(thing: Any) -> list[str]:
    page = remove_drawings(render_bundle(thing)["text/html"])
    assert len(page) < 30_000
    return Page(page).words


class OneRun(sf.Client):
    """A client of a server that knows one run."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__("http://h", token="hunter2-hunter2")
        self._record = record

    def show(self, run: str = "@latest") -> RunRecord:  # noqa: ARG002  what a handle calls
        return self._record


def make_application() -> sf.Application:
    step = sf.Executor(name="train", mainfile="train.py", parameters={"password": "hunter2", "x": "hunter3"})
    served = sf.Service(name="cnn", implementation="cnn.py:CNN", parameters={"key": "hunter4"}, instances=3)
    agent = sf.Agent(name="watch", template="checker", modules=["watch.py"])
    flows = [sf.Workflow(name="w", nodes=[step]), sf.Workflow(name="serve", type="online", nodes=[served])]
    return sf.Application(name="shop", team="data", workflows=flows, agents=[agent])


def test_an_application_shows_what_it_is_made_of() -> None:
    app = make_application()
    lines = list_texts(app)
    assert lines[0] == "Application shop of team data"
    assert lines[4:] == ["batch", "w", "train", "online", "serve", "cnn", "agent", "watch", "checker, watch.py"]
    assert list_texts(app.workflows[0])[0] == "Workflow w, batch: 1 node"
    assert list_texts(app.workflows[1])[-4:] == ["cnn", "cnn.py:CNN", "the request", "model"]
    assert list_texts(app.workflows[1].services[0])[:3] == ["Service cnn", "field", "value"]


def test_no_value_of_a_parameter_is_shown_of_a_definition() -> None:
    app = make_application()
    for thing in (app, *app.workflows, *(node for flow in app.workflows for node in flow.nodes)):
        shown = render_bundle(thing)
        assert "hunter" not in shown["text/plain"] + shown["text/html"]
    assert "hunter2" not in repr(app)
    assert "'password': '***'" in repr(app)


def test_a_run_shows_its_steps_its_failure_and_other_peoples_text_escaped() -> None:
    failure = Failure(summary="exit 1", cause=f"ValueError: {EVIL}")
    done = build_task("load", "succeeded", attempts=1, seconds=1.25)
    failed = build_run(
        "failed", done, build_task("train", "failed", attempts=2, failure=failure), seconds=2.0, error=EVIL
    )
    lines = list_texts(failed)
    assert lines[0] == "✗"
    assert lines[1].startswith(" tall-fox-1  shop:w  failed in 2.00 s, 19")
    assert lines[8:11] == ["load", "✓", " succeeded"]
    assert any("ValueError: <script>alert('&')</script>" in line for line in lines), "text, and no element"
    assert lines[-1].endswith("Continue from here: client.resume('tall-fox-1', app=app)")
    many = list_texts(build_run("running", *(build_task(f"train{n}", "pending") for n in range(1000))))
    assert f"and {1000 - MAX_ROWS} more" in many


@pytest.fixture
def madrid(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Madrid")
    monkeypatch.setenv("COLUMNS", "200")  # no time is broken into lines
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("madrid")
def test_a_notebook_is_read_later_so_that_times_are_not_ages() -> None:
    agent = AgentView(
        name="a", app="shop", team="t", state="running", url="", started=1.0,
        sensors=(SensorReport(name="s", trigger={"kind": "every"}, last=86401.0, next=172801.0),),
    )  # fmt: skip
    for thing in (build_run("failed"), [build_run("failed")], agent):
        for text in (render_bundle(thing)["text/plain"], " ".join(list_texts(thing))):
            assert "1970-01-01 01:00:01 CET" in text
            assert not re.search(r" ago| in \d+ ?[smhd]", text)
    days = re.findall(r"1970-01-(0[23]) 01:00:01 CET", render_bundle(agent)["text/plain"])
    assert days == ["02", "02", "03"], "when a sensor was called, and when it is called next"
    assert format_age(1.0).endswith(" d ago"), "in a terminal"


def compare_tables() -> Any:
    from scanflow.drift.table import DataTable
    from scanflow.drift.two_sample import compare

    reference, current = (DataTable.from_data({EVIL: [float(n + by) for n in range(60)]}) for by in (0, 50))
    return compare(reference, current, level=0.1, permutations=99)


def make_status(**fields: Any) -> ControlStatus:
    agent = AgentView(name=EVIL, app="shop", team="t", state="silent", url="", error=EVIL, started=1.0)
    agents = [agent.model_dump(mode="json")]
    return ControlStatus(
        {"version": "1", "home": "", "started": 1.0, "pid": 0, "agents": agents, "counts": {}, **fields}, url="http://h"
    )


def test_the_status_of_a_server_is_what_the_command_prints_and_a_dictionary() -> None:
    status = make_status(database="sqlite:///h", tracker={"url": "http://h/mlflow", "ready": True}, counts={"runs": 2})
    first, *lines = render_bundle(status)["text/plain"].splitlines()
    assert first.startswith("✓ server   http://h, started 19")
    assert lines[:3] == ["✓ tracker  http://h/mlflow", "  database sqlite:///h", "  runs: 2"]
    assert lines[3].split() == ["agent", "application", "state", "since", "restarts"]
    assert "agent" in list_texts(status)
    assert (status["version"], status == dict(status)) == ("1", True)


def make_examples() -> list[Any]:
    """Return a value of each type that a notebook shows, with other people's text wherever it may stand."""
    act = action(EVIL, reverted_by=EVIL)
    sensor = SensorReport(name=EVIL, trigger={"kind": EVIL})
    failed = build_task("train", "failed", attempts=2, failure=Failure(summary=EVIL, cause=EVIL))
    instance = InstanceRecord(instance=EVIL, state="failed", error=EVIL)
    revision = RevisionRecord(id=EVIL, models={EVIL: EVIL}, requests=90, p95_s=0.0123)
    placed = plan_job(
        sf.MPIWorkload(name="mpi", mainfile="mpi", n_tasks=2, n_nodes=1, profile="cpu"),
        [ClusterNode(name=EVIL, cores=2)],
    )
    record = build_run("failed", build_task("load", "succeeded"), failed, seconds=2.0, error=EVIL)
    return [
        act,
        ActionExplanation(lines=[EVIL, f"  {EVIL}"], action=act),
        AgentView(name=EVIL, app=EVIL, team="t", state="silent", url=EVIL, error=EVIL, sensors=(sensor,)),
        Event(at=1.0, type=EVIL, app=EVIL, subject=EVIL, data={EVIL: EVIL}),
        sf.Agent(name="watch", template="planner", modules=[f"{EVIL}.py"]),
        make_application(),
        make_application().workflows[0],
        sf.Executor(name="train", mainfile=f"{EVIL}.py", parameters={EVIL: EVIL}),
        sf.Strategy(name="many", when="count", if_=lambda n: n != EVIL, then=do.run_workflow("w", text=EVIL)),
        plan_workflow(make_application().workflows[0], machine_cores=1.0, machine_memory_bytes=2**30),
        JobTimes(
            run=EVIL, job=EVIL, state="running", ranks=2, nodes=(EVIL,), submitted=1.0, began=2.0, ended=None, now=3.0
        ),
        record,
        failed,
        RunHandle(OneRun(record), record),
        Explanation(
            service=EVIL, at=1.0, metric=EVIL, sample=1.0, target=2.0, up=3.0, down=1.0, instances=1, wanted=1,
            formula=EVIL, decision=EVIL,
        ),
        instance,
        revision,
        ServiceRecord(
            name=EVIL, app="shop", team="t", state="degraded", url=EVIL, generation=1, shape=Shape(instances=1),
            ready=1, instances=(instance,), revisions=(revision,), error=EVIL,
        ),
        compare_tables(),
        placed,
        VersionHistory(model=EVIL, version=1, created=1.0, verdict=EVIL, reason=EVIL, by=EVIL, services=(EVIL,)),
        Replay(app=EVIL, agent=EVIL, trace=Trace(), entries=[], strategies=(EVIL,), moments=()),
        sf.Client("http://127.0.0.1:1", token="hunter2-hunter2"),
        make_status(database=EVIL, tracker={"url": None, "ready": False}, counts={EVIL: 1}),
        ModelChange(model=EVIL, version=2, done="promoted", services=(EVIL,)),
        Listing([build_run("succeeded")], "run_text:format_runs"),
    ]  # fmt: skip


ELSEWHERE = {"scanflow_client.load_report:LoadReport", "scanflow_client.tuning_report:TuningReport"}
"""Types that the tests of loads and of searches show."""


def test_each_type_that_is_shown_has_an_example() -> None:
    shown = {
        next(name for name in SCREENS if isinstance(thing, resolve_name(name)) and name != "scanflow.app.model:Model")
        if not isinstance(thing, sf.Executor)
        else "scanflow.app.model:Model"
        for thing in make_examples()
    }
    assert shown == set(SCREENS) - ELSEWHERE


def test_text_and_html_say_the_same_and_nothing_of_other_people_is_more_than_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # else cells are wrapped
    for thing in make_examples():
        shown, name = render_bundle(thing), type(thing).__name__
        plain = "".join(shown["text/plain"].split())
        assert [words for words in list_texts(thing) if "".join(words.split()) not in plain] == [], name
        assert "<script" not in shown["text/html"], name
        assert "\x1b" not in shown["text/plain"] + remove_drawings(shown["text/html"]), name


def test_a_run_leads_to_its_page() -> None:
    record = build_run("succeeded")
    assert Page(render_bundle(RunHandle(OneRun(record), record))["text/html"]).attributes["href"] == (
        "http://h/runs/tall-fox-1"
    )


def test_each_type_exists_and_so_does_what_formats_it() -> None:
    for name, function in SCREENS.items():
        assert isinstance(resolve_name(name), type), name
        assert callable(resolve_screen(function) if isinstance(function, str) else function)
    for name, drawing in DRAWINGS.items():
        assert name in SCREENS
        assert callable(resolve_screen(drawing))


def test_a_plain_list_or_tuple_of_records_is_a_table_and_others_are_as_ever() -> None:
    runs = [build_run("succeeded"), build_run("failed")]
    for listed in (runs, tuple(runs)):
        assert render_bundle(listed)["text/plain"] == render_bundle(Listing(runs, "run_text:format_runs"))["text/plain"]
        assert list_texts(listed)[:3] == ["run", "workflow", "state"]
    handles = [RunHandle(OneRun(record), record) for record in runs[:1]]
    assert Page(render_bundle(handles)["text/html"]).attributes["href"] == "http://h/runs/tall-fox-1"
    for other in ([*runs, 1], [1, 2], [], (), {"a": runs[0]}):
        assert render_bundle(other) == {"text/plain": pretty(other)}
    for name, function in LISTS.items():
        assert callable(resolve_screen(function))
        assert name in SCREENS


def test_a_list_shows_its_table_and_so_does_a_part_of_it() -> None:
    runs = Listing(
        [build_run("succeeded"), build_run("failed")], "run_text:format_runs", links={"tall-fox-1": "http://h/runs/1"}
    )
    assert runs == [build_run("succeeded"), build_run("failed")]
    assert (type(runs[1]), type(runs[1:])) == (RunRecord, Listing)
    assert render_bundle(runs[1:])["text/plain"].splitlines()[1].split()[:4] == ["tall-fox-1", "shop:w", "✗", "failed"]
    assert Page(render_bundle(runs[1:])["text/html"]).attributes["href"] == "http://h/runs/1"
    assert list_texts(runs[:0]) == ["There is no run yet. Start one: scanflow run app.py"]
    assert render_bundle(Listing([1, 2]))["text/plain"] == "[1, 2]"


def test_a_name_is_a_link_only_where_it_stands_alone() -> None:
    links = {"fox-1": "http://h/a", "fox": "http://h/b"}
    words = "fox-1 fox-12 fox, redfox: fox-1/outputs fox.csv"
    page = render_screen([words], links=links)
    shown = re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', page)
    assert shown == [("http://h/a", "fox-1"), ("http://h/b", "fox"), ("http://h/a", "fox-1"), ("http://h/b", "fox")]
    assert "".join(Page(page).words) == words


def test_a_list_becomes_a_data_frame() -> None:
    actions = Listing([action("a1"), action("a2", "refused")], "agent_text:format_actions")
    frame = actions.to_pandas()
    assert list(frame["state"]) == ["pending", "refused"]
    assert list(frame["intent.agent"]) == ["tracker", "tracker"]
    assert list(frame["intent.arguments"]) == [each.intent.arguments for each in actions]
    assert list(Listing([{"a": 1, "password": "hunter2"}]).to_pandas().loc[0]) == [1, "***"]
    assert list(Listing(["a"]).to_pandas()["value"]) == ["a"]
    assert Listing([build_run("succeeded", build_task("t", "failed"))]).to_pandas().loc[0, "tasks"][0].task == "t"


def test_columns_have_the_types_of_their_fields_also_where_some_are_absent() -> None:
    runs = [build_run("succeeded", seconds=2.0), build_run("running")]
    frame = Listing(runs).to_pandas()
    assert str(frame["created"].dtype).endswith("UTC]")
    assert next(iter(frame["created"])).timestamp() == runs[0].created
    assert (str(frame["seconds"].dtype), frame["seconds"].isna().tolist()) == ("float64", [False, True])
    frame = Listing([{"at": None, "pid": 7, "held": True, 1: "a"}, {"at": 2, "pid": None, "more": 2**70}]).to_pandas()
    assert [str(frame[name].dtype) for name in ("pid", "held", "more")] == ["Int64", "boolean", "float64"]
    assert frame.isna().sum().tolist() == [1, 1, 1, 1, 1]
    assert str(Listing([{"at": 1_795_906_000.1}]).to_pandas()["at"][0]) == "2026-11-28 22:46:40.100000+00:00"
    assert str(frame["at"][1]) == "1970-01-01 00:00:02+00:00"


def test_a_record_that_some_items_do_not_have_is_columns_of_its_fields_only() -> None:
    undone = action("a2").model_copy(update={"inverse": PrimitiveCall(primitive="rollback", arguments={})})
    frame = Listing([action("a1"), undone]).to_pandas()
    assert "inverse" not in frame
    assert frame["inverse.primitive"].isna().tolist() == [True, False]


def test_without_pandas_a_list_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pandas, which is not installed\. Install it:"):
        Listing([1]).to_pandas()


def test_a_client_says_where_it_is_connected_and_no_token(tmp_path: Path) -> None:
    assert repr(sf.Client(home=tmp_path)) == f"<client without a server, of the home {str(tmp_path)!r}>"
    remote = sf.Client("http://127.0.0.1:1", token="hunter2-hunter2")
    assert list_texts(remote) == ["<client of the server http://127.0.0.1:1>"]
    assert remote.link_runs("tall-fox-1") == {"tall-fox-1": "http://127.0.0.1:1/runs/tall-fox-1"}
    assert "hunter2" not in "".join(render_bundle(remote).values())


def test_a_report_is_a_frame_that_runs_nothing_and_holds_the_page(tmp_path: Path) -> None:
    page = "<!doctype html><p title=\"a&b\">'it'</p><script>alert(1)</script>"
    (tmp_path / "shop.html").write_text(page)
    report = Report(tmp_path / "shop.html")
    frame = Page(render_bundle(report)["text/html"])
    assert frame.attributes["srcdoc"] == page
    assert (frame.attributes["sandbox"], frame.attributes["title"]) == (None, "shop"), "nothing is allowed in it"
    assert str(report) == str(tmp_path / "shop.html")


@pytest.mark.parametrize("text", ["<b>", '"', "'", "&lt;", "a\nb" * 500])
def test_a_cell_and_a_line_hold_any_text_on_one_line(text: str) -> None:
    head, header, cell, note = Page(render_screen([text, Table((text,), [(text,)]), text])).words
    assert head == note
    assert header == cell
    assert all("\n" not in words and len(words) <= 400 for words in (head, cell))


def test_lines_in_columns_are_a_block_and_the_first_of_them_is_no_heading() -> None:
    assert "<strong>" not in render_screen(["at 1  sample", "at 2  decision"])
    assert "<pre>at 1  sample\nat 2  decision</pre>" in render_screen(["at 1  sample", "at 2  decision"])
    assert "<strong>a  b</strong>" in render_screen(["a  b", Table(("c",), [("d",)])])
    assert "<strong>a</strong>" in render_screen(["a", "b"])


def test_a_wide_table_scrolls_in_its_own_box_and_breaks_inside_no_word() -> None:
    page = render_screen([Table(("c",), [("d",)])])
    assert '<div class="table"><table>' in page
    assert ".scanflow-output .table{overflow-x:auto;white-space:normal}" in page
    assert "overflow-wrap:break-word;word-break:normal" in page


def test_a_task_of_a_fan_out_is_named_and_not_counted() -> None:
    assert list_texts((build_task("square.3", "succeeded"),))[6] == "square.3"


def test_a_run_of_a_list_has_no_steps_and_says_where_they_are() -> None:
    shown = render_bundle(build_run("failed"))["text/plain"]
    assert shown.splitlines()[1:] == ["Outputs: /outputs", "See why: scanflow show tall-fox-1"]


def test_files_that_are_not_there_are_said_to_be_so() -> None:
    assert list_texts(Listing([], "run_text:format_listed_files")) == [
        "The steps left no files in their output folders."
    ]


def test_credentials_in_addresses_are_masked_wherever_they_stand() -> None:
    address = "http://ada:hunter2hunter2@host/db"
    screen: Screen = [f"at {address}", Table(("url",), [(address,)]), f"  {address}"]
    assert "hunter2" not in render_screen(screen)
    assert "hunter2" not in "\n".join(format_lines(screen))


def test_a_workflow_of_several_nodes_is_drawn_and_so_are_an_applications_workflows() -> None:
    a, b = (sf.Executor(name=name, mainfile=f"{name}.py") for name in "ab")
    several, alone = sf.Workflow(name="several", nodes=[a, b], edges=a >> b), sf.Workflow(name="alone", nodes=[a])
    app = sf.Application(name="shop", workflows=[several, alone])
    assert [render_bundle(thing)["text/html"].count("<svg") for thing in (several, alone, app)] == [1, 0, 2]
    assert "several (batch)" in render_bundle(app)["text/html"]
    many = [several.replace(name=f"w{number}") for number in range(MAX_GRAPHS + 1)]
    assert render_bundle(app.replace(workflows=many))["text/html"].count("<svg") == 1 + MAX_GRAPHS


def test_a_run_of_several_steps_is_drawn_with_their_states() -> None:
    ended = build_run(
        "failed", build_task("load", "succeeded"), build_task("train", "failed", failure=Failure(summary=EVIL))
    )
    shown = render_bundle(ended)["text/html"]
    assert shown.count("<svg") == 1
    assert "<script" not in shown
    assert "<svg" not in render_bundle(build_run("failed", build_task("train", "failed")))["text/html"]
    table = RunTable()
    assert table.draw() == {}
    table.update(RunEnded(run=ended.name, record=ended))
    assert list(table.draw()) == [""]


def test_an_agent_and_a_strategy_say_when_they_do_what() -> None:
    sensor = sf.Sensor(name="count", trigger=sf.every(hours=1), nodes=["cnn"])
    agent = sf.Agent(name="watch", template="planner", sensors=[sensor], parameters={"x": "hunter2"})
    assert list_texts(agent)[0] == "Agent watch: planner"
    assert list_texts(agent)[-3:] == ["count", "every 1h 00m", "cnn"]
    strategy = sf.Strategy(name="many", when="count", if_=lambda n: n > 5, then=do.run_workflow("training"))
    assert render_bundle(strategy)["text/plain"].splitlines() == [
        "Strategy many (auto)", "  when  count", "  if    n > 5", "  then  run_workflow(workflow='training')"
    ]  # fmt: skip
