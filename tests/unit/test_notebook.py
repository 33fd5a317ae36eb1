"""What notebooks show of applications, runs, services and reports: small, escaped, and of the page's own colours."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from pydantic import ValidationError
from traitlets.config import Config

import scanflow as sf
from scanflow.backends.run_records import (
    EnvironmentReady,
    RunEnded,
    RunRecord,
    RunStarted,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    Waiting,
)
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.errors import InvalidError, MissingExtraError
from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure
from scanflow_client.formatting.run_text import format_run
from scanflow_client.formatting.screen_html import MAX_ROWS, render_screen
from scanflow_client.formatting.text import format_age
from scanflow_client.formatting.text_table import Screen, Table, format_lines
from scanflow_client.listing import Listing
from scanflow_client.notebook import DRAWINGS, MAX_GRAPHS, SCREENS, resolve_screen
from scanflow_client.notebook_progress import MAX_LINES, NotebookLines, RunTable
from scanflow_client.report import Report
from tests.notebooks import render_bundle
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


def list_texts(thing: Any) -> list[str]:
    page = re.sub(r'<div class="drawing">.*?</div>', "", render_bundle(thing)["text/html"], flags=re.DOTALL)
    assert len(page) < 30_000
    return Page(page).words


def run(state: Any, *tasks: TaskRecord, **more: Any) -> RunRecord:
    name = RunName("tall-fox-1")
    return RunRecord(name=name, app="shop", team="t", workflow="w", state=state, created=1.0, tasks=tasks, **more)


def task(name: str, state: Any, **more: Any) -> TaskRecord:
    return TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, **more)


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
    done = task("load", "succeeded", attempts=1, seconds=1.25)
    failed = run("failed", done, task("train", "failed", attempts=2, failure=failure), seconds=2.0, error=EVIL)
    lines = list_texts(failed)
    assert lines[:2] == ["✗", " tall-fox-1  shop:w  failed in 2.00 s, " + format_age(1.0)]
    assert lines[8:11] == ["load", "✓", " succeeded"]
    assert any("ValueError: <script>alert('&')</script>" in line for line in lines), "text, and no element"
    assert lines[-1].endswith("Continue from here: scanflow resume tall-fox-1")
    many = list_texts(run("running", *(task(f"train{n}", "pending") for n in range(1000))))
    assert f"and {1000 - MAX_ROWS} more" in many


@pytest.mark.parametrize(
    "thing",
    [
        make_application(),
        make_application().workflows[0],
        run("failed", task("train", "failed", attempts=2, failure=Failure(summary="exit 1")), seconds=2.0),
        ServiceRecord(
            name="digits", app="shop", team="t", state="ready", url="http://127.0.0.1:1", generation=1,
            shape=Shape(instances=1), ready=1, instances=(InstanceRecord(instance="1", state="ready"),),
            revisions=(RevisionRecord(id="r1", weight=1.0, requests=90, p95_s=0.0123),),
        ),
        Listing([run("succeeded")], "run_text:format_runs"),
        Listing([], "run_text:format_runs"),
    ],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_text_and_html_say_the_same(thing: Any) -> None:
    plain = "".join(render_bundle(thing)["text/plain"].split())
    for words in list_texts(thing):
        assert "".join(words.split()) in plain


def test_each_type_exists_and_so_does_what_formats_it() -> None:
    for name, function in SCREENS.items():
        assert isinstance(resolve_name(name), type), name
        assert callable(resolve_screen(function) if isinstance(function, str) else function)
    for name, drawing in DRAWINGS.items():
        assert name in SCREENS
        assert callable(resolve_screen(drawing))


def test_a_value_inside_of_a_list_is_on_one_line() -> None:
    assert "\n" not in render_bundle([run("succeeded")])["text/plain"]


def test_a_list_shows_its_table_and_so_does_a_part_of_it() -> None:
    runs = Listing([run("succeeded"), run("failed")], "run_text:format_runs", links={"tall-fox-1": "http://h/runs/1"})
    assert runs == [run("succeeded"), run("failed")]
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


def test_a_list_turns_into_a_data_frame() -> None:
    actions = Listing([action("a1"), action("a2", "refused")], "agent_text:format_actions")
    frame = actions.to_pandas()
    assert list(frame["state"]) == ["pending", "refused"]
    assert list(frame["intent.agent"]) == ["tracker", "tracker"]
    assert list(frame["intent.arguments"]) == [each.intent.arguments for each in actions]
    assert list(Listing([{"a": 1, "password": "hunter2"}]).to_pandas().loc[0]) == [1, "***"]
    assert list(Listing(["a"]).to_pandas()["value"]) == ["a"]
    assert Listing([run("succeeded", task("t", "failed"))]).to_pandas().loc[0, "tasks"][0].task == "t"


def test_without_pandas_a_list_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
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


def test_credentials_in_addresses_are_masked_wherever_they_stand() -> None:
    address = "http://ada:hunter2hunter2@host/db"
    screen: Screen = [f"at {address}", Table(("url",), [(address,)]), f"  {address}"]
    assert "hunter2" not in render_screen(screen)
    assert "hunter2" not in "\n".join(format_lines(screen))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """IPython in this process, as a notebook's kernel has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # IPython's own takes its place
        shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
        shell.run_cell("import scanflow as sf")
        yield shell
        InteractiveShell.clear_instance()


def run_cell(shell: InteractiveShell, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a cell that fails, and return its traceback."""
    result = shell.run_cell(cell)
    assert not result.success
    return capsys.readouterr().out


HELPER = """
def make_step():
    return sf.Executor(name="Bad Name", mainfile="a.py")
make_step()
"""

HANDLED = """
try:
    1 / 0
except ZeroDivisionError:
    sf.Application(name="shop").workflow("w")
"""

CALLED = """
@sf.step
def double(value):
    return value * sf.absent_name
double(1)
"""


def test_an_error_of_ours_shows_the_users_frames_its_message_and_no_frame_of_ours(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run_cell(shell, HELPER, capsys)
    assert "----> 3 make_step()" in shown
    assert '----> 2     return sf.Executor(name="Bad Name"' in shown
    assert "InvalidError: The executor name 'Bad Name' cannot be used" in shown
    assert "model.py" not in shown
    assert "pydantic" not in shown


def test_the_users_own_error_stays_before_ours(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_cell(shell, HANDLED, capsys)
    assert "ZeroDivisionError: division by zero" in shown
    assert shown.index("ZeroDivisionError") < shown.index("which led to:") < shown.index("NotFoundError")
    assert "application.py" not in shown


def test_an_error_that_is_shown_keeps_what_led_to_it(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(shell, HELPER, capsys)
    error = sys.last_value
    assert isinstance(error, InvalidError)
    assert isinstance(error.__cause__, ValidationError)


def test_the_users_other_errors_are_shown_as_ever(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_cell(shell, CALLED, capsys)
    assert "AttributeError: module 'scanflow' has no attribute 'absent_name'" in shown
    assert "----> 3     return value * sf.absent_name" in shown


NAME = RunName("tall-fox-1")


def read_rows(table: RunTable) -> list[tuple[str, ...]]:
    return [tuple(row) for part in table.make_screen() if isinstance(part, Table) for row in part.rows]


def test_the_table_of_a_run_has_a_row_for_each_step_that_has_started() -> None:
    moment = [0.0]
    table = RunTable(lambda: moment[0])
    assert table.make_screen() == ["● starting"]
    table.update(RunStarted(run=NAME, steps=3, ignored=("load: image",)))
    table.update(Waiting(run=NAME, what="environment", why="it is made"))
    table.update(EnvironmentReady(run=NAME, what="environment", seconds=2.5))
    table.update(TaskStarted(run=NAME, task=StepName("load"), step="load", width=1, attempt=1))
    moment[0] = 2.0
    failed = task("load", "failed", attempts=1, failure=Failure(summary="exit 1"))
    table.update(TaskEnded(run=NAME, record=failed, width=1, retry_in_s=3.0))
    assert read_rows(table)[1] == ("load", "↻ waiting", "2.00 s", "exit 1; attempt 2 in 3 s")
    moment[0] = 3.25
    table.update(TaskStarted(run=NAME, task=StepName("load"), step="load", width=1, attempt=2))
    assert read_rows(table)[1] == ("load", "● running", "3.00 s", "attempt 2")
    table.update(TaskEnded(run=NAME, record=task("load", "succeeded", seconds=0.25), width=1))
    head, rows, note = table.make_screen()
    assert (head, note) == ("● tall-fox-1  3 steps", "  ! load: image")
    assert isinstance(rows, Table)
    assert list(rows.rows) == [("environment", "✓ ready", "2.50 s", ""), ("load", "✓ succeeded", "0.25 s", "")]


def test_a_fan_out_is_one_row_that_counts() -> None:
    moment = [0.0]
    table = RunTable(lambda: moment[0])
    for number in range(3):
        table.update(TaskStarted(run=NAME, task=StepName(f"train.{number}"), step="train", width=3, attempt=1))
    table.update(TaskEnded(run=NAME, record=task("train.0", "succeeded"), width=3, left=2))
    moment[0] = 7.5
    assert read_rows(table) == [("train ×3", "● running", "7.00 s", "1 of 3 done")]
    table.update(TaskEnded(run=NAME, record=task("train.1", "succeeded"), width=3, left=1))
    table.update(TaskEnded(run=NAME, record=task("train.2", "succeeded"), width=3, left=0))
    assert read_rows(table) == [("train ×3", "✓ succeeded", "7.50 s", "")]


def test_a_task_that_failed_is_what_its_fan_out_says() -> None:
    table = RunTable()
    table.update(TaskStarted(run=NAME, task=StepName("train.0"), step="train", width=2, attempt=1))
    failed = task("train.0", "failed", failure=Failure(summary="exit 1"))
    table.update(TaskEnded(run=NAME, record=failed, width=2, left=2))
    table.update(TaskEnded(run=NAME, record=task("train.1", "succeeded"), width=2, left=1))
    assert [row[1] for row in read_rows(table)] == ["✗ failed"]


def test_the_table_of_a_run_that_has_ended_is_what_the_command_shows() -> None:
    table = RunTable()
    table.update(TaskEnded(run=NAME, record=task("load", "succeeded", origin="old-fox-1"), width=1))
    assert read_rows(table) == [("load", "≡ reused", "", "from old-fox-1")]
    record = run("succeeded", task("load", "succeeded"))
    table.update(RunEnded(run=NAME, record=record))
    assert format_lines(table.make_screen()) == format_lines(format_run(record))
    assert table.ended_run == NAME


def test_lines_of_progress_are_the_newest_and_what_goes_on() -> None:
    lines = NotebookLines()
    assert lines.make_screen() == ["● …"]
    for number in range(MAX_LINES + 2):
        lines.print(f"  instance {number} is ready", "")
    lines.update("digits")
    screen = lines.make_screen()
    assert (screen[0], screen[-1]) == ("  … 2 lines before", "● digits")
    assert len(screen) == MAX_LINES + 2
    lines.update("")
    assert lines.make_screen()[-1] == f"  instance {MAX_LINES + 1} is ready"


def test_a_workflow_of_several_nodes_is_drawn_and_so_are_an_applications_workflows() -> None:
    a, b = (sf.Executor(name=name, mainfile=f"{name}.py") for name in "ab")
    several, alone = sf.Workflow(name="several", nodes=[a, b], edges=a >> b), sf.Workflow(name="alone", nodes=[a])
    app = sf.Application(name="shop", workflows=[several, alone])
    assert [render_bundle(thing)["text/html"].count("<svg") for thing in (several, alone, app)] == [1, 0, 1]
    assert "several (batch)" in render_bundle(app)["text/html"]
    many = [several.replace(name=f"w{number}") for number in range(MAX_GRAPHS + 1)]
    assert render_bundle(app.replace(workflows=many))["text/html"].count("<svg") == MAX_GRAPHS


def test_a_run_of_several_steps_is_drawn_with_their_states() -> None:
    ended = run("failed", task("load", "succeeded"), task("train", "failed", failure=Failure(summary=EVIL)))
    shown = render_bundle(ended)["text/html"]
    assert shown.count("<svg") == 1
    assert "<script" not in shown
    assert "<svg" not in render_bundle(run("failed", task("train", "failed")))["text/html"]
    table = RunTable()
    assert table.draw() == {}
    table.update(RunEnded(run=NAME, record=ended))
    assert list(table.draw()) == [""]


MODEL = """
import numpy as np
from fractions import Fraction as F
threshold, rows = F(1, 2), 3
def prepare(values): return values
class Model(F):
    def predict(self, rows: list) -> np.ndarray:
        rows = prepare(rows)
        return np.asarray(rows).size > threshold
sf.Service(name="m", implementation=Model)
"""


def test_a_class_of_a_cell_is_refused_with_the_lines_of_the_file_that_it_needs(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, first, numpy, fractions, own = run_cell(shell, MODEL, capsys).strip().splitlines()
    assert first == "%%writefile model.py"
    assert (numpy, fractions) == ("import numpy as np", "from fractions import Fraction as F")
    assert own == "It uses what the notebook has as prepare, threshold: put that into the same file.", "rows is local"
