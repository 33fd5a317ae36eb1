"""The pages of runs and applications: what a run shows, to whom, and by windows."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.journal import Journal
from scanflow.backends.local.layout import Home
from scanflow.backends.run_records import DeviceUse, RunRecord, RunState, TaskRecord
from scanflow.deployer import RunRequest, masked_deployer
from scanflow.names import RunName, StepName
from scanflow.testing.accelerators import GIB
from scanflow_server.dashboard import run_pages, task_view
from scanflow_server.dashboard.live_pages import GROWING_PAUSE_S, LOOK_S, RenderPace
from scanflow_server.dashboard.overview_page import list_failures
from scanflow_server.run_reader import RunReader, format_parameter
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store
from tests.page_reader import PageReader
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api

SECRET = "zq-hidden-71"
EVIL = "<script>alert(1)</script>"
SCRIPT = f"""
import json, os, sys
from pathlib import Path
folder = Path(os.environ["SCANFLOW_OUTPUT_DIR"])
(folder / "scores.csv").write_text("name,score\\n" + "".join(f"n{{i}},{{i}}\\n" for i in range(40)))
(folder / "notes.md").write_text("of {SECRET} and {EVIL}")
(folder / "curve.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
(folder / "page.html").write_text("{EVIL}")
(folder / "hidden.bin").write_bytes(b"\\0{SECRET}\\0")
(folder / "empty.bin").touch()
(folder / ".outputs").mkdir(exist_ok=True)
rows = [{{"a": i, "b": "{EVIL}"}} for i in range(12)]
for name, value in {{"accuracy": 0.97, "rows": rows, "login": "{SECRET}"}}.items():
    (folder / ".outputs" / name).write_text(json.dumps(value))
print("\\n".join(f"line {{i}}" for i in range(700)), "{EVIL} {SECRET}", sep="\\n")
print("a warning", file=sys.stderr)
if "--fail" in sys.argv and sys.argv[sys.argv.index("--fail") + 1] == "1":
    raise ValueError("{EVIL}")
"""


@pytest.fixture
def application(context: ServerContext, tmp_path: Path) -> Application:
    (tmp_path / "fit.py").write_text(SCRIPT)
    step = Executor(name="fit", mainfile="fit.py", parameters={"fail": 0, "api_token": SECRET})
    app = Application(name="shop", team="alpha", app_dir=tmp_path, workflows=[Workflow(name="work", nodes=[step])])
    with context.store.write() as connection:
        application_store.keep(connection, app, None, at=1.0)
    return app


@pytest.fixture
def drive(context: ServerContext, application: Application) -> Callable[..., RunRecord]:
    return lambda **parameters: context.deployer.run(RunRequest(application, "work", parameters=parameters))


def add_runs(context: ServerContext, run: RunRecord, *states: str, tasks: tuple[TaskRecord, ...] = ()) -> list[str]:
    """Add runs of the same definition, each a second older than the one before."""
    with closing(Journal(Home(context.settings.home).journal)) as journal:
        definition = journal.run(run.name).definition
        names = [RunName(f"past-{number}") for number in range(len(states))]
        for number, (name, state) in enumerate(zip(names, states, strict=True)):
            record = run.model_copy(
                update={"name": name, "state": state, "created": run.created - 1 - number, "tasks": tasks}
            )
            journal.insert_run(record, definition, parent=Path(run.folder).parent)
    return [str(name) for name in names]


def test_a_run_shows_how_it_failed_and_the_end_of_its_log(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive(fail=1)
    with browsing(api) as ada:
        text = ada.get(f"/runs/{run.name}")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert EVIL not in text
        assert "line 699" in text
        assert "line 150\n" not in text, "the last 500 lines are enough"
        assert text.index('id="log-stderr"') < text.index('id="log-stdout"'), "the errors of a failed task come first"
        assert "ValueError" in text[: text.index('id="task"')]
        whole = ada.client.get(f"/runs/{run.name}/logs/fit?stream=stdout")
        assert whole.text.startswith("line 0\n")
        assert (whole.headers["content-type"], whole.headers["x-content-type-options"]) == (
            "text/plain; charset=utf-8",
            "nosniff",
        )
        assert "a warning" in ada.client.get(f"/runs/{run.name}/logs/fit?stream=stderr").text
        for address in (f"/runs/{run.name}?task=none", f"/runs/{run.name}/logs/none", "/runs/none/logs/fit"):
            assert ada.client.get(address).status_code == 404, address


def test_what_a_task_left_is_shown_by_what_it_is_and_no_secret_is(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive(api_token=SECRET)
    with browsing(api, role="viewer") as ada:
        page, text = ada.read(f"/runs/{run.name}"), ada.get(f"/runs/{run.name}")
        assert SECRET not in text
        assert EVIL not in text
        assert '<td data-label="size">0 B</td>' in text
        assert {"0.97", "10 of 12 rows", "the first rows", "n9", "line 699"} <= {
            line for shown in page.texts for line in shown.splitlines()
        }
        assert "n10" not in page.texts, "a table shows its first rows"
        pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
        assert pictures == [f"/runs/{run.name}/files/fit/curve.svg"]
        assert SECRET not in ada.client.get(f"/runs/{run.name}/logs/fit").text
        picture = ada.client.get(str(pictures[0]))
        assert picture.headers["content-type"] == "image/svg+xml"
        assert "content-disposition" not in picture.headers
        saved = ada.client.get(f"/runs/{run.name}/files/fit/page.html")
        assert saved.text == EVIL
        assert saved.headers["content-type"] == "application/octet-stream"
        assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"
        assert "sandbox" in saved.headers["content-security-policy"]
        refused = ada.client.get(f"/runs/{run.name}/files/fit/hidden.bin")
        assert (refused.status_code, SECRET in refused.text) == (400, False)
        for name in ("none", "..%2F..%2F..%2F..%2F..%2F..%2Fjournal.db", "..%2F..%2Frun.json", ".outputs/login"):
            assert ada.client.get(f"/runs/{run.name}/files/fit/{name}").status_code == 404, name


def test_a_link_out_of_the_applications_runs_is_not_followed(context: ServerContext, drive: Any) -> None:
    run = drive()
    reader = RunReader(context, run)
    [file] = [file for file in reader.list_files("fit") if file.name == "notes.md"]
    outside = context.settings.home / "journal.db"
    Path(file.path).unlink()
    Path(file.path).symlink_to(outside)
    with pytest.raises(Exception, match="not on the server's machine"):
        reader.locate(file)


def test_a_bar_is_shown_in_its_last_state(
    context: ServerContext, drive: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = "begin\r\n" + "".join(f"\r{at} %" for at in range(101)) + "\nend\r"
    monkeypatch.setattr(type(context.deployer), "read_log_tail", lambda *_: written.encode())
    assert RunReader(context, drive()).read_log_tail("fit", "stdout", None) == ("begin\n100 %\nend", None)


def test_the_end_of_a_log_says_that_it_is_one_and_an_empty_log_that_nothing_is_printed(
    api: Api, drive: Callable[..., RunRecord]
) -> None:
    run = drive()
    with browsing(api) as ada:
        page = ada.get(f"/runs/{run.name}?task=fit")
        assert ("<h3>stdout <small>the last 500 lines · <a" in page, "<h3>stderr <small><a" in page) == (True, True)
        Path(run.folder, "steps", "fit").rename(Path(run.folder, "steps", "gone"))
        assert ada.client.get(f"/runs/{run.name}/logs/fit").text == "Nothing is printed yet.\n"


def test_another_team_sees_nothing_of_a_run(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive()
    with browsing(api, "eve", team="beta") as eve, browsing(api, "ada", team="alpha") as ada:
        for below in ("", "/compare", "/logs/fit", "/files/fit/scores.csv"):
            assert ada.client.get(f"/runs/{run.name}{below}").status_code == 200, below
            assert eve.client.get(f"/runs/{run.name}{below}").status_code == 404, below
        assert run.name not in eve.get("/runs")
        assert run.name not in eve.get("/runs?team=alpha")
        assert run.name in ada.get("/runs")
        assert eve.client.get("/applications/shop").status_code == 404
        assert "shop" not in eve.get("/applications")
        for action in ("stop", "resume", "spin", "tasks/fit/stop"):
            assert eve.post(f"/runs/{run.name}/{action}", step="fit").status_code == 404, action
        assert eve.post("/applications/shop/run", team="alpha", workflow="work").status_code == 404


def test_only_an_editor_sees_and_may_do_what_changes_a_run(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive(fail=1)
    changes = {f"/runs/{run.name}/resume", f"/runs/{run.name}/spin"}
    with browsing(api, "vic", role="viewer") as viewer:
        assert changes.isdisjoint(form.action for form in viewer.read(f"/runs/{run.name}").forms)
        assert {form.action for form in viewer.read("/applications/shop").forms} == {"/logout"}
        for address in (*changes, "/applications/shop/run"):
            assert viewer.post(address, step="fit", workflow="work").status_code == 403
    with browsing(api) as ada:
        assert changes <= {form.action for form in ada.read(f"/runs/{run.name}").forms}
        spun = ada.post(f"/runs/{run.name}/spin", step="fit", parameters="fail=0\n\n  api_token = other")
        assert spun.status_code == 200
        name = spun.url.path.removeprefix("/runs/")
        assert name != run.name
        assert RunReader(api.context, api.context.deployer.show(name)).parameters["fit.fail"] in {0, "0"}
        for parameters in ("fail", "=1", "api_token=***", "unknown=1"):
            answer = ada.post(f"/runs/{run.name}/spin", step="fit", parameters=parameters)
            assert answer.status_code in {404, 422}, parameters
        address, origin = f"/runs/{run.name}?task=fit", str(ada.client.base_url).rstrip("/")
        for referer, way_on in ((origin + address, {"Back": address}), ("http://evil/", {"Go to the overview": "/"})):
            fields = {"session_key": ada.key, "step": "fit", "parameters": "unknown=1"}
            wrong = ada.client.post(f"/runs/{run.name}/spin", data=fields, headers={"referer": referer})
            assert PageReader(wrong.text).links == way_on
        assert ada.post(f"/runs/{run.name}/resume").status_code == 200
        assert api.context.deployer.show(run.name).state == "failed", "no controller works here"
        assert "Stop" in ada.read(f"/runs/{run.name}").texts, "it is to run"
        with closing(Journal(Home(api.context.settings.home).journal)) as journal:
            entry = journal.run(run.name)
            journal.set_run(entry, "running", seconds=entry.record.seconds)
        assert "ran for" not in ada.get(f"/runs/{run.name}"), "what it took before is not what it takes"


def test_runs_are_listed_by_windows_and_states(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive()
    names = add_runs(api.context, run, *["succeeded", "failed", "stopped"] * 40)
    with browsing(api) as ada:
        first = ada.read("/runs")
        assert [run.name, *names[:49]] == [text for text in first.links if first.links[text].startswith("/runs/")]
        assert first.links["Older →"] == "/runs?start=50"
        last = ada.read("/runs?start=100")
        assert names[99:] == [text for text in last.links if last.links[text].startswith("/runs/")]
        assert "Older →" not in last.links
        failed = ada.read("/runs?state=failed&workflow=work&app=shop")
        assert names[1::3] == [text for text in failed.links if failed.links[text].startswith("/runs/")]
        for nothing in ("/runs?workflow=other", "/runs?state=running", "/runs?start=500"):
            what = "There is nothing older." if "start" in nothing else "The filter lets nothing through."
            assert what in ada.get(nothing), nothing
        unknown = ada.client.get("/runs?state=x")
        assert (unknown.status_code, "There is no state &#39;x&#39; to filter by" in unknown.text) == (422, True)
        for odd in ("?start=-1", "?start=x", f"?start={'9' * 5000}"):
            assert run.name in ada.get(f"/runs{odd}")


def test_a_run_that_is_to_be_driven_is_listed_as_running_and_an_interrupted_one_is_not(
    api: Api, application: Application, drive: Any
) -> None:
    run = drive()
    [name] = add_runs(api.context, run, "running")
    with browsing(api) as ada:
        assert name in ada.get("/runs?state=interrupted")
        assert name not in ada.get("/runs?state=running")
        asked = ada.post("/applications/shop/run", workflow="work", parameters="fail=1")
        begun = asked.url.path.removeprefix("/runs/")
        assert re.search(r'<td data-label="took">since <time [^>]*>\d\d:\d\d UTC</time></td>', ada.get("/runs"))
        assert begun in ada.get("/runs?state=running"), "the server is to drive it"
        assert begun not in ada.get("/runs?state=interrupted")


def test_tasks_are_listed_by_windows_and_those_that_failed_come_first(api: Api, drive: Any) -> None:
    tasks = tuple(
        TaskRecord(task=StepName("fit"), step="fit", state="succeeded", attempts=1, began=1.0, seconds=1.0)
        if number == 0
        else TaskRecord(
            task=StepName(f"rank.{number}"),
            step="rank",
            state="failed" if number == 117 else "succeeded",
            attempts=1,
            began=1.0 + number,
            seconds=1.0,
        )
        for number in range(120)
    )
    reader_tasks = [task for task in tasks if task.step == "rank"]
    run = drive()
    record = run.model_copy(update={"tasks": tuple(reader_tasks)})
    reader = RunReader(api.context, record)
    assert reader.choose_task("") == reader_tasks[116]
    assert reader.choose_task("rank.3") == reader_tasks[2]
    calm = RunReader(api.context, record.model_copy(update={"tasks": tuple(reader_tasks[:9])}))
    chosen = calm.choose_task("rank")
    assert chosen is not None
    assert chosen.task == "rank.9", "the last that began"


def test_the_files_that_a_jobs_launcher_works_with_are_not_what_it_left(
    api: Api, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = drive()
    folder = Path(RunReader(api.context, run).list_files("fit")[0].path).parent / "ranks"
    folder.mkdir()
    for name in ("0.pid", "rank.sh"):
        (folder / name).touch()
    with browsing(api) as ada:
        assert "rank.sh" in ada.get(f"/runs/{run.name}"), "a step may have a folder of that name"
        monkeypatch.setattr(task_view, "is_job", lambda _run: True)
        page = ada.get(f"/runs/{run.name}")
        assert ("rank.sh" in page, "0.pid" in page, "page.html" in page) == (False, False, True)


def test_one_task_of_a_fan_out_or_all_of_them_are_run_again(
    api: Api, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = drive()
    tasks = tuple(task.model_copy(update={"task": StepName("fit.3")}) for task in run.tasks)
    reader = RunReader(api.context, run.model_copy(update={"tasks": tasks}))
    monkeypatch.setattr(run_pages, "open_run", lambda _request: reader)
    with browsing(api) as ada:
        texts = ada.read(f"/runs/{run.name}").texts
        assert {"fit: all of its tasks", "fit.3: this task alone"} <= texts


def test_a_task_shows_the_gpus_that_it_had_and_one_that_waits_for_one_says_so(
    api: Api, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, why = drive(), "a GPU: GPU 0 is granted to otter/train"
    with browsing(api) as ada:
        assert "GPU" not in ada.get(f"/runs/{run.name}")
        use = DeviceUse(
            number=0, uuid="a", name="NVIDIA H100", sharing="mps", share=0.5, memory_bytes=40 * GIB,
            peak_bytes=3 * GIB, others=("other 1 (1 GiB)",),
        )  # fmt: skip
        waiting = TaskRecord(task=StepName("later"), step="later", state="pending", waits_for=why)
        tasks = (*(task.model_copy(update={"devices": (use,)}) for task in run.tasks), waiting)
        reader = RunReader(api.context, run.model_copy(update={"tasks": tasks}))
        monkeypatch.setattr(run_pages, "open_run", lambda _request: reader)
        text = ada.get(f"/runs/{run.name}")
        shown = "GPU 0 NVIDIA H100, 0.5 of it by MPS, used 3 GiB of 40 GiB, beside other 1 (1 GiB)"
        assert text.count(shown) == 2, "of the task that is shown, and in the table of all"
        assert f'<td data-label="waits for">{why}</td>' in text
        assert f"waits for {why}</p>" in ada.get(f"/runs/{run.name}?task=later")


def test_two_runs_are_compared_side_by_side(api: Api, drive: Callable[..., RunRecord]) -> None:
    first, second = drive(), drive(fail=1)
    with browsing(api) as ada:
        choice = ada.read(f"/runs/{first.name}/compare").links[second.name]
        assert choice == f"/runs/{first.name}/compare?with={second.name}"
        assert second.name not in ada.read(choice).links, "it is compared already"
        page = ada.get(choice)
        assert "The workflow has no further run." in page
        assert page.index("fit.fail") < page.index("fit.accuracy"), "parameters, then outputs that differ"
        assert "fit.api_token" not in page, "it is the same"
        assert SECRET not in page


@pytest.mark.parametrize(
    ("states", "listed"),
    [
        (["failed"], ["run r0"]),
        (["running", "failed"], ["run r1"]),
        (["interrupted", "failed"], ["run r0"]),
        (["succeeded", "failed"], []),
        (["running"], []),
    ],
)
def test_a_failed_run_waits_until_its_workflow_has_run_better(states: list[RunState], listed: list[str]) -> None:
    about = {"app": "shop", "team": "data", "workflow": "work", "created": 1.0, "error": "no memory"}
    runs = [RunRecord.model_validate({**about, "name": f"r{n}", "state": state}) for n, state in enumerate(states)]
    failed = list_failures(runs, [], [])
    assert [link.text for link, _, _ in failed] == listed
    assert all(words == "shop: work, no memory" for _, _, words in failed)


def test_an_application_shows_its_last_runs_and_runs_a_workflow(api: Api, drive: Callable[..., RunRecord]) -> None:
    run = drive()
    with browsing(api) as ada:
        assert ada.read("/applications").links["shop"] == "/applications/shop?team=alpha"
        page = ada.read("/applications/shop?team=alpha")
        assert page.links[run.name] == f"/runs/{run.name}"
        assert {"work", "local", "succeeded"} <= {text.split()[-1] for text in page.texts if text}
        asked = ada.post("/applications/shop/run", team="alpha", workflow="work", parameters="fit.fail=1")
        begun = RunReader(api.context, api.context.deployer.show(asked.url.path.removeprefix("/runs/")))
        assert begun.changed_parameters == {"fit.fail"}
        for parameters, workflow in (("none=1", "work"), ("fail=1", "none")):
            answer = ada.post("/applications/shop/run", workflow=workflow, parameters=parameters)
            assert answer.status_code == 404, (parameters, workflow)


def test_a_page_reads_the_record_of_a_run_that_ended_once(api: Api, drive: Callable[..., RunRecord]) -> None:
    run, list_documents = drive(), masked_deployer.list_documents
    with (
        browsing(api) as ada,
        patch.object(Journal, "read_tasks", autospec=True, side_effect=Journal.read_tasks) as read,
        patch.object(masked_deployer, "list_documents", side_effect=list_documents) as listed,
    ):
        assert "0.97" in ada.get(f"/runs/{run.name}")
        ada.get(f"/runs/{run.name}?task=fit")
    assert (read.call_count, listed.call_count) == (1, 1)


def test_a_page_that_grows_is_looked_at_again_within_half_a_second() -> None:
    quiet, growing = RenderPace(), RenderPace()
    for at in range(0, 100, 20):
        quiet.record(at, 0.02, has_changed=False)
        growing.record(at, 0.02, has_changed=False, grows=True)
    assert quiet.compute_wait(81.0, may_have_changed=False) > 1
    assert growing.compute_wait(80.0, may_have_changed=False) == pytest.approx(GROWING_PAUSE_S)
    growing.record(100.0, 0.5, has_changed=True, grows=True)
    assert growing.compute_wait(100.0, may_have_changed=False) == pytest.approx(5), "it takes a tenth of a core"


def test_a_change_is_on_a_page_within_a_second_while_it_takes_50_ms() -> None:
    pace = RenderPace()
    assert pace.compute_wait(0.0, may_have_changed=True) <= 0
    pace.record(1.0, 0.05, has_changed=True)
    assert pace.look_s + pace.compute_wait(1.0, may_have_changed=True) + 0.05 < 1
    for at in range(60):
        pace.record(60.0 * at, 0.05, has_changed=False)
        assert pace.look_s + max(0.0, pace.compute_wait(60.0 * at + 1, may_have_changed=True)) + 0.05 < 1
    assert pace.look_s > LOOK_S, "an idle tab's marker is read less often"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a", "a"), (3, "3"), (None, "null"), ({"$from": "load.n"}, "← load.n"), ({"$from": "x", "b": 1}, None)],
)
def test_parameters_are_shown_as_they_are_written(value: Any, shown: str | None) -> None:
    assert format_parameter(value) == ('{"$from": "x", "b": 1}' if shown is None else shown)
