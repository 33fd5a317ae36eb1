"""What a user of ``sf.Client`` on this machine sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.local.services.grants import choose_grant
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.run_records import Event, RunRecord, RunStarted, TaskStarted, Waiting
from scanflow.backends.service_records import Shape
from scanflow.deployer import RunRequest, TaskLog
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import NotFoundError, StepFailedError, UnsupportedError, UsageError
from scanflow.placement.sysfs import read_topology
from scanflow.settings import Settings
from scanflow_client.client import Client
from scanflow_client.run_handle import RunHandle
from tests.conftest import Cli
from tests.waiting import patient


@pytest.fixture
def client(home: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("SCANFLOW_SLOTS", "2")
    return Client()


def script(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


def make_app(folder: Path, *nodes: sf.Executor, edges: Any = ()) -> sf.Application:
    workflow = sf.Workflow(name="w", nodes=nodes, edges=edges)
    return sf.Application(name="a", app_dir=folder, workflows=[workflow])


def states(record: RunRecord | RunHandle) -> dict[str, str]:
    return {task.task: task.state for task in record.tasks}


@sf.step
def numbers(count: int = 3) -> list[int]:
    return list(range(count))


@sf.step
def double(number: int) -> int:
    print(f"doubling {number}")
    return number * 2


@sf.step(in_process=True)
def total(values: list[int]) -> int:
    print("adding up")
    return sum(values)


@sf.step(in_process=True)
def label(value: Any, text: str = "it is") -> str:
    return f"{text} {value}"


def test_functions_pass_values_on_and_fan_out_over_what_they_find(client: Client) -> None:
    source = numbers.bind(4)
    doubled = double.map(source)
    workflow = sf.Workflow(name="w", nodes=[source, doubled, total.bind(doubled)])
    record = client.run(workflow)
    assert record.state == "succeeded"
    assert client.output("double") == [0, 2, 4, 6]
    assert client.output("total") == 12
    assert client.logs("double.3") == "doubling 3\n"
    assert client.logs("total") == "adding up\n"
    client.run(workflow, parameters={"numbers.count": 0})
    assert client.output("total") == 0  # an empty fan-out is an empty list
    client.run(workflow, parameters={"count": 2})
    assert client.output("numbers") == [0, 1]


def test_a_script_gets_its_parameters_as_options_and_a_folder_for_its_outputs(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "load.py",
        "import argparse, os, pathlib\nimport scanflow as sf\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--count', type=int)\nparser.add_argument('--name')\n"
        "args = parser.parse_args()\n"
        "pathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'], 'data.txt').write_text(args.name * args.count)\n"
        "sf.output('lines', list(range(args.count)))\n",
    )
    script(
        tmp_path,
        "use.py",
        "import argparse, pathlib\nimport scanflow as sf\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--data')\nparser.add_argument('--line', type=int)\n"
        "args = parser.parse_args()\nsf.output('text', pathlib.Path(args.data).read_text() + str(args.line))\n",
    )
    load = sf.Executor(name="load", mainfile="load.py", parameters={"count": 2, "name": "ab", "unset": None})
    use = sf.Executor(
        name="use",
        mainfile="use.py",
        parameters={"data": "/workflow/load/data.txt", "line": sf.item},
        for_each=load["lines"],
    )
    record = client.run(make_app(tmp_path, load, use))
    assert client.output("use", "text") == ["abab0", "abab1"]
    assert Path(record.folder, "outputs", "load", "data.txt").read_text() == "abab"


def test_a_step_in_any_language_can_name_outputs(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "any.py",
        "import subprocess\n"
        "subprocess.run(['sh', '-c', 'mkdir -p $SCANFLOW_OUTPUT_DIR/.outputs; "
        "echo 0.75 > $SCANFLOW_OUTPUT_DIR/.outputs/accuracy'], check=True)\n",
    )
    any_ = sf.Executor(name="any", mainfile="any.py")
    client.run(make_app(tmp_path, any_, label.options(when=any_["accuracy"] > 0.7).bind(any_["accuracy"], "good:")))
    assert client.output("label") == "good: 0.75"


def test_the_layouts_of_the_prototype_are_found(client: Client, tmp_path: Path) -> None:
    (tmp_path / "workflows" / "load-data").mkdir(parents=True)
    (tmp_path / "workflows" / "modeling_cnn1").mkdir(parents=True)
    script(tmp_path / "workflows" / "load-data", "loaddata.py", "print('load')")
    script(tmp_path / "workflows" / "modeling_cnn1", "modeling.py", "print('model')")
    load = sf.Executor(name="load-data", mainfile="loaddata.py")
    model = sf.Executor(name="modeling-cnn1", mainfile="modeling.py")
    client.run(make_app(tmp_path, load, model, edges=load >> model))
    assert client.logs("modeling-cnn1") == "model\n"


def test_one_branch_runs_and_the_other_is_skipped_and_a_join_sees_both(client: Client) -> None:
    source = numbers.bind(5)
    high = label.options(name="high", when=source.output.differs([])).bind(1)
    low = label.options(name="low", when=source.output.equals([])).bind(2)
    after_low = label.options(name="after-low").bind(low)
    join = pair.bind(high, low)
    record = client.run(sf.Workflow(name="w", nodes=[source, high, low, after_low, join]))
    assert states(record)["low"] == states(record)["after-low"] == "skipped"
    assert client.output("pair") == ["it is 1", None]


@sf.step(in_process=True)
def pair(left: str | None, right: str | None) -> list[str | None]:
    return [left, right]


def test_a_failure_shows_the_users_frames_and_the_root_cause_in_at_most_twelve_lines(
    client: Client, tmp_path: Path
) -> None:
    script(
        tmp_path,
        "bad.py",
        "def read(row):\n    return row['age']\n\ndef main():\n    try:\n        read({})\n"
        "    except KeyError as error:\n        raise ValueError('row 3 is bad') from error\n\nmain()\n",
    )
    with pytest.raises(StepFailedError) as caught:
        client.run(make_app(tmp_path, sf.Executor(name="bad", mainfile="bad.py")))
    lines = str(caught.value).splitlines()
    assert len(lines) <= 12
    assert any("bad.py:2 in read: return row['age']" in line for line in lines)
    assert any("KeyError: 'age'" in line for line in lines)
    assert any("row 3 is bad" in line for line in lines)
    assert "scanflow resume " in lines[-1]


@sf.step(in_process=True)
def speak(text: str) -> None:
    if text:
        print(text)


def test_a_function_that_writes_nothing_has_an_empty_log(client: Client) -> None:
    spoken = speak.map(["", "hello"])
    run = client.run(sf.Workflow(name="w", nodes=[spoken]))
    assert [run.logs(f"speak.{item}") for item in (0, 1)] == ["", "hello\n"]


may_end = threading.Event()


@sf.step(in_process=True)
def wait_to_end() -> bool:
    return may_end.wait(patient(30))


def test_a_stop_says_which_steps_it_waits_for(home: Path) -> None:
    deployer, waits = EmbeddedDeployer(Settings(home=home)), list[Waiting]()

    def observe(event: Event) -> None:
        if isinstance(event, TaskStarted):
            deployer.stop(event.run)
        elif isinstance(event, Waiting):
            waits.append(event)
            may_end.set()

    workflow = sf.Workflow(name="w", nodes=[wait_to_end.bind()])
    record = deployer.run(RunRequest(sf.Application(name="a", workflows=[workflow])), observe=observe)
    assert (record.state, may_end.is_set()) == ("stopped", True)
    assert [(wait.what, wait.why) for wait in waits] == [
        ("wait-to-end", "it runs in this process, where it cannot be stopped")
    ]


@pytest.mark.parametrize("in_process", [True, False])
def test_a_failing_function_shows_no_frame_of_ours(client: Client, in_process: bool) -> None:
    with pytest.raises(StepFailedError) as caught:
        client.run(sf.Workflow(name="w", nodes=[divide.options(in_process=in_process).bind(0)]))
    text = str(caught.value)
    assert "test_runs.py" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "inprocess.py" not in text
    assert "call.py" not in text


@sf.step
def divide(by: int) -> float:
    return 1 / by


def test_a_step_that_fails_is_tried_again_with_waits_and_starts_clean(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "flaky.py",
        "import os, pathlib, sys\nfolder = pathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'])\n"
        "assert not any(folder.iterdir()), 'left over'\n(folder / 'half').touch()\n"
        "tries = pathlib.Path('tries'); tries.write_text(tries.read_text() + 'x' if tries.exists() else 'x')\n"
        "sys.exit(0 if len(tries.read_text()) == 3 else 1)\n",
    )
    flaky = sf.Executor(name="flaky", mainfile="flaky.py", retries=sf.Retry(limit=2, delay="10ms", factor=1))
    record = client.run(make_app(tmp_path, flaky))
    assert (record.tasks[0].state, record.tasks[0].attempts) == ("succeeded", 3)


def test_a_time_limit_ends_a_step_and_says_so(client: Client, tmp_path: Path) -> None:
    script(tmp_path, "slow.py", "import time; print('begun', flush=True); time.sleep(600)")
    with pytest.raises(StepFailedError, match=r"timed out after 5\.00 s"):  # enough for a bare Python to begin in
        client.run(make_app(tmp_path, sf.Executor(name="slow", mainfile="slow.py", timeout=5)))
    assert client.logs("slow") == "begun\n"


def test_a_failure_stops_what_comes_after_and_resume_goes_on_from_there(client: Client, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script(tmp_path, "note.py", f"import os; open({str(ledger)!r}, 'a').write(os.environ['SCANFLOW_STEP'] + '\\n')")
    script(tmp_path, "fix-me.py", "raise SystemExit('not yet')")
    first = sf.Executor(name="first", mainfile="note.py")
    broken = sf.Executor(name="broken", mainfile="fix-me.py")
    last = sf.Executor(name="last", mainfile="note.py")
    app = make_app(tmp_path, first, broken, last, edges=first >> broken >> last)
    with pytest.raises(StepFailedError, match="not yet"):
        client.run(app)
    assert states(client.show()) == {"first": "succeeded", "broken": "failed", "last": "pending"}
    script(tmp_path, "fix-me.py", "pass")
    assert client.resume(app=app).state == "succeeded"
    assert ledger.read_text() == "first\nlast\n"


def test_a_failure_stops_nothing_that_does_not_need_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_SLOTS", "1")
    for name, text in {"fails.py": "raise SystemExit(1)", "works.py": "pass"}.items():
        script(tmp_path, name, text)
    bad = sf.Executor(name="bad", mainfile="fails.py")
    tried = sf.Executor(name="tried", mainfile="fails.py", retries=sf.Retry(limit=1, delay="1ms"))
    needy, first, last = (sf.Executor(name=name, mainfile="works.py") for name in ("needy", "first", "last"))
    with pytest.raises(StepFailedError, match="bad failed"):
        Client().run(make_app(tmp_path, bad, tried, needy, first, last, edges=[*(bad >> needy), *(first >> last)]))
    record = client.show()
    assert states(record) == {
        "bad": "failed",
        "tried": "failed",
        "needy": "pending",
        "first": "succeeded",
        "last": "succeeded",
    }
    assert [task.attempts for task in record.tasks if task.task == "tried"] == [2]


def test_a_step_with_missing_outputs_runs_again(client: Client, home: Path, tmp_path: Path) -> None:
    script(tmp_path, "left.py", "import sys, pathlib; print(*pathlib.Path(sys.argv[2]).read_text().split())")
    script(tmp_path, "leave.py", "import scanflow as sf; (sf.output_dir() / 'file').write_text('a b')")
    first = sf.Executor(name="first", mainfile="leave.py")
    last = sf.Executor(name="last", mainfile="left.py", parameters={"file": "/workflow/first/file"})
    app = make_app(tmp_path, first, last, edges=first >> last)
    record = client.run(app)
    for gone, again in (("first", ["first"]), ("last", ["last"])):
        shutil.rmtree(Path(record.folder) / "outputs" / gone)
        events = list[Event]()
        deployer = EmbeddedDeployer(Settings(home=home))
        assert deployer.run(RunRequest(app, run=record.name), observe=events.append).state == "succeeded"
        assert [event.gone for event in events if isinstance(event, RunStarted)] == [(gone,)]
        assert [event.task for event in events if isinstance(event, TaskStarted)] == again
    shutil.rmtree(record.folder)
    client.spin("last", run=record.name, app=app)
    assert client.logs("last") == "a b\n", "what a spin needs runs again too"


def test_a_path_of_its_own_in_any_value_of_a_step_is_where_its_home_is(tmp_path: Path) -> None:
    @sf.step
    def leave() -> tuple[Path, dict[int, Path], Path]:
        file = sf.output_dir() / "file"
        file.write_text("left")
        return file, {1: file.parent}, Path("beside")

    Client(home=tmp_path / "before").run(make_app(tmp_path, leave.bind()))
    (tmp_path / "before").rename(tmp_path / "after")
    client = Client(home=tmp_path / "after")
    folder = Path(client.show().folder) / "outputs" / "leave"
    assert client.output("leave") == (folder / "file", {1: folder}, Path("beside"))
    assert (folder / "file").read_text() == "left"


@pytest.mark.parametrize("is_function", [False, True])
def test_a_step_that_lost_a_file_of_its_outputs_runs_again(
    client: Client, home: Path, tmp_path: Path, *, is_function: bool
) -> None:
    script(
        tmp_path,
        "leave.py",
        "import scanflow as sf; (sf.output_dir() / 'deep').mkdir(exist_ok=True);"
        " (sf.output_dir() / 'deep' / 'model.bin').write_bytes(b'1')",
    )
    (tmp_path / "steps.py").write_text("def leave():\n    return 1\n")
    script(tmp_path, "mended.py", "import pathlib; assert pathlib.Path('mended').exists()")
    function, mainfile = ("steps.py:leave", None) if is_function else (None, "leave.py")
    leave = sf.Executor(name="leave", function=function, mainfile=mainfile)
    executor = sf.Executor(name="kept", mainfile="leave.py")
    last = sf.Executor(name="last", mainfile="mended.py")
    app = make_app(tmp_path, leave, executor, last, edges=[leave, executor] >> last)
    with pytest.raises(StepFailedError):
        client.run(app)
    folder = Path(client.show().folder) / "outputs" / "leave"
    lost = next(path for path in folder.rglob("*") if path.is_file())
    lost.unlink()
    (tmp_path / "mended").touch()
    record = client.resume(app=app)
    assert states(record) == {"leave": "succeeded", "kept": "succeeded", "last": "succeeded"}
    assert {task.task: task.attempts for task in record.tasks} == {"leave": 2, "kept": 1, "last": 2}
    assert lost.exists()


def test_a_home_that_is_moved_keeps_its_outputs_logs_and_cache(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    script(tmp_path, "leave.py", "import scanflow as sf; print('left'); sf.output('file', sf.output_dir() / 'file')")
    script(tmp_path, "fail.py", "import pathlib; assert pathlib.Path('mended').exists()")
    leave = sf.Executor(name="leave", mainfile="leave.py", cache=True)
    last = sf.Executor(name="last", mainfile="fail.py", parameters={"file": leave["file"]})
    app = make_app(tmp_path, leave, last)
    with pytest.raises(StepFailedError):
        Client(home=before).run(app)
    run = Client(home=before).show().name
    before.rename(after)
    (tmp_path / "mended").touch()
    client = Client(home=after)
    assert Path(client.show(run).folder).is_relative_to(after)
    assert client.output("leave", "file", run=run) == Path(client.show(run).folder) / "outputs" / "leave" / "file"
    assert client.logs("leave", run=run) == "left\n"
    assert states(client.resume(run, app=app)) == {"leave": "succeeded", "last": "succeeded"}
    assert [task.attempts for task in client.show(run).tasks if task.task == "leave"] == [1], "its output is there"
    again = client.run(app)
    assert next(task.origin for task in again.tasks if task.task == "leave") == run, "and in the cache"
    spun = client.spin("last", run=run, app=app)
    after.rename(before)
    assert Client(home=before).output("leave", "file", run=spun.name).is_relative_to(before)


def test_a_fan_out_resumes_only_the_items_that_failed(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "item.py",
        "import pathlib, sys\nitem = sys.argv[2]\nwith open('ledger', 'a') as ledger:\n    ledger.write(item)\n"
        "sys.exit(item == '1' and not pathlib.Path('fixed').exists())\n",
    )
    node = sf.Executor(name="work", mainfile="item.py", parameters={"item": sf.item}, for_each=[0, 1, 2, 3])
    app = make_app(tmp_path, node)
    with pytest.raises(StepFailedError):
        client.run(app)
    (tmp_path / "fixed").touch()
    assert client.resume(app=app).state == "succeeded"
    written = (tmp_path / "ledger").read_text()
    assert sorted(written) == sorted("0123" + "1")


def test_a_cached_step_is_reused_until_its_code_or_input_changes(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "source.py",
        "import os, pathlib\npathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'], 'x').write_text('1')",
    )
    script(
        tmp_path,
        "slow.py",
        "import argparse, pathlib\nimport scanflow as sf\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--x')\ntext = pathlib.Path(parser.parse_args().x).read_text()\n"
        "(sf.output_dir() / 'copy').write_text(text)\nsf.output('path', sf.output_dir() / 'copy')\n",
    )
    source = sf.Executor(name="source", mainfile="source.py")
    slow = sf.Executor(name="slow", mainfile="slow.py", parameters={"x": "/workflow/source/x"}, cache=True)
    read = sf.Executor(name="read", mainfile="read.py", parameters={"path": slow["path"]})
    script(tmp_path, "read.py", "import sys; print(open(sys.argv[2]).read())")
    app = make_app(tmp_path, source, slow, read, edges=source >> slow)

    def origin() -> str | None:
        return next(task.origin for task in client.run(app).tasks if task.task == "slow")

    assert origin() is None
    first = client.show().name
    assert origin() == first
    assert client.logs("read") == "1\n"
    assert client.output("slow", "path").is_relative_to(client.show().folder)
    script(tmp_path, "source.py", (tmp_path / "source.py").read_text().replace("'1'", "'2'"))
    assert origin() is None
    script(tmp_path, "slow.py", (tmp_path / "slow.py").read_text() + "# a comment\n")
    assert origin() is not None
    script(tmp_path, "slow.py", (tmp_path / "slow.py").read_text().replace("'copy'", "'copied'"))
    assert origin() is None


def test_a_step_or_one_of_its_tasks_is_spun_on_the_inputs_of_a_past_run(client: Client, tmp_path: Path) -> None:
    source = numbers.bind(3)
    doubled = double.map(source)
    app = make_app(tmp_path, source, doubled, total.bind(doubled))
    past = client.run(app)
    spun = client.spin("double", app=app)
    assert spun.name != past.name
    assert client.output("double") == [0, 2, 4]
    assert {task.origin for task in spun.tasks if task.step == "numbers"} == {past.name}
    assert "total" not in states(spun)
    client.spin("total", run=past.name, app=app, parameters={"total.values": [1, 1]})
    assert client.output("total") == 2
    again_run = client.spin("double.2", run=past.name, app=app)
    assert states(again_run)["double.2"] == "succeeded"
    assert "double.1" not in states(again_run)
    assert client.output("double.2", run=again_run.name) == 4
    with pytest.raises(StepFailedError, match=r"has 3 tasks, numbered from double\.0"):
        client.spin("double.3", run=past.name, app=app)
    with pytest.raises(UsageError, match=r"runs once, so it has no task 'numbers\.1'"):
        client.spin("numbers.1", run=past.name)
    # What replaces all that differs from item to item makes it one task.
    spun = client.spin("double", run=past.name, app=app, parameters={"double.number": 50})
    assert [task.task for task in spun.tasks if task.step == "double"] == ["double"]
    assert client.output("double", run=spun.name) == 100


def test_a_step_cannot_be_spun_on_what_did_not_finish(client: Client, tmp_path: Path) -> None:
    broken = divide.bind(0)
    app = make_app(tmp_path, broken, label.bind(broken))
    with pytest.raises(StepFailedError):
        client.run(app)
    with pytest.raises(UsageError, match="'label' needs divide, which did not finish in the run"):
        client.spin("label", app=app)


def test_a_missing_script_is_known_before_anything_runs(client: Client, tmp_path: Path) -> None:
    script(tmp_path, "load.py", "pass")
    load = sf.Executor(name="load", mainfile="load.py")
    train = sf.Executor(name="train", mainfile="laod.py")
    with pytest.raises(NotFoundError, match=r"no file 'laod.py'.*Did you mean 'load.py'"):
        client.run(make_app(tmp_path, load, train, edges=load >> train))
    assert client.runs() == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"affinity": "cpumem"}, "affinity"), ({"affinity": {"node_selector": {"zone": "a"}}}, "affinity")],
)
def test_what_this_backend_cannot_honour_is_refused_by_name(
    client: Client, tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    script(tmp_path, "x.py", "pass")
    with pytest.raises(UnsupportedError, match=f"'x': the embedded backend does not support {field}"):
        client.plan(make_app(tmp_path, sf.Executor(name="x", mainfile="x.py", **fields)))


@sf.step
def own_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_a_step_keeps_off_the_cores_of_a_service_it_is_to_avoid(client: Client, home: Path) -> None:
    machine, services = read_topology(), ServicesHome(home / "services")
    services.service("serve").path.mkdir(parents=True)
    grant = choose_grant(services.service("serve"), machine, Shape(cores=1.0, affinity="cpu"), 1, [])
    apart = own_cpus.bind().replace(affinity=sf.Affinity(avoid_services=["serve"]))
    client.run(sf.Workflow(name="w", nodes=[apart]))
    other_cpus = set(machine.effective_cpus) - set(grant.cpus)
    assert set(client.output("own-cpus")) <= other_cpus or not other_cpus


@sf.step(in_process=True)
def liar() -> int:
    return "text"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            (listing := numbers.bind(2), double.bind(listing)),
            r"Step 'double': the parameter 'number' is \[0, 1\], which is not int",
        ),
        ((liar.bind(),), "Step 'liar': its result is 'text', which is not int"),
        ((other := label.bind(3), double.map(other)), "is 'it is 3' in this run, not a list"),
        ((divide.options(retries=sf.Retry(limit=2, delay="1ms")).bind(0),), "failed after 3 attempts"),
    ],
)
def test_a_failure_says_what_was_wrong(client: Client, nodes: tuple[sf.Executor, ...], message: str) -> None:
    with pytest.raises(StepFailedError, match=message):
        client.run(sf.Workflow(name="w", nodes=nodes))


def test_a_fan_out_wider_than_allowed_names_the_limit_and_how_to_raise_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_MAX_FAN_OUT", "10")
    source = numbers.bind(11)
    with pytest.raises(StepFailedError, match=r"11 tasks, more than the 10 allowed.*SCANFLOW_MAX_FAN_OUT=11"):
        Client().run(sf.Workflow(name="w", nodes=[source, double.map(source)]))


def test_hundreds_of_tasks_in_process_come_back_in_order(client: Client) -> None:
    source = numbers.options(in_process=True).bind(300)
    doubled = double.options(in_process=True).map(source)
    client.run(sf.Workflow(name="w", nodes=[source, doubled, total.bind(doubled)]))
    assert client.output("total") == 89_700
    assert client.logs("double.299") == "doubling 299\n"


def test_each_step_sees_its_own_variables_and_threads_for_its_cores(client: Client, tmp_path: Path) -> None:
    names = ("MINE", "SCANFLOW_STEP", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    script(tmp_path, "x.py", f"import os; print(*(os.environ.get(name) for name in {names}))")
    first = sf.Executor(name="first", mainfile="x.py", env={"MINE": "1"}, resources=sf.Resources(cpu="1500m"))
    second = sf.Executor(name="second", mainfile="x.py", env={"OMP_NUM_THREADS": "7", "TF_NUM_INTRAOP_THREADS": "7"})
    client.run(make_app(tmp_path, first, second))
    assert (client.logs("first"), client.logs("second")) == ("1 first 2 2\n", "None second 7 7\n")


def wheel(folder: Path, name: str, version: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_requirements_get_an_environment_of_their_own_once(client: Client, tmp_path: Path, home: Path) -> None:
    package = wheel(tmp_path, "tiny_thing", "1.5")
    (tmp_path / "req.txt").write_text(f"# what it needs\ntiny-thing @ file://{package}\n")
    script(
        tmp_path,
        "uses.py",
        "import sys, tiny_thing\nimport scanflow as sf\nprint(tiny_thing.version)\nsf.output('python', sys.prefix)\n"
        "try:\n    import pytest\nexcept ImportError:\n    print('alone')\n",
    )
    node = sf.Executor(name="uses", mainfile="uses.py", requirements="req.txt", for_each=[1, 2])
    record = client.run(make_app(tmp_path, node))
    assert client.logs("uses.0", run=record.name) == "1.5\nalone\n"
    (prefix,) = set(client.output("uses", "python"))
    assert Path(prefix).parent == home / "venvs"
    client.run(make_app(tmp_path, node))
    assert len([file for file in (home / "venvs").iterdir() if file.is_dir()]) == 1


def test_requirements_that_cannot_be_met_fail_the_step_with_the_installers_message(
    client: Client, tmp_path: Path
) -> None:
    script(tmp_path, "x.py", "pass")
    node = sf.Executor(name="x", mainfile="x.py", requirements=[f"nope @ file://{tmp_path}/nope-1.0-py3-none-any.whl"])
    with pytest.raises(StepFailedError, match=r"requirements cannot be installed.*nope"):
        client.run(make_app(tmp_path, node))


def test_runs_at_the_same_time_do_not_mix(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_SLOTS", "1")
    errors: list[BaseException] = []
    names: dict[int, str] = {}

    def run_once(number: int) -> None:
        try:
            client = Client()
            app = sf.Application(name=f"app{number}", workflows=[sf.Workflow(name="w", nodes=[double.bind(number)])])
            record = client.run(app)
            names[number] = record.name
            assert client.output("double", run=record.name) == number * 2
        except BaseException as error:  # noqa: BLE001  handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run_once, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(240))
    assert errors == []
    assert len(set(names.values())) == 8


def test_a_plan_says_what_would_run_and_runs_nothing(client: Client, tmp_path: Path) -> None:
    source = numbers.bind(3)
    wide = double.options(resources={"cpu": 1, "memory": "1Gi"}).map(source)
    plan = client.plan(make_app(tmp_path, source, wide, total.bind(wide)))
    assert [(step.name, step.wave, step.width) for step in plan.steps] == [
        ("numbers", 0, 1),
        ("double", 1, None),
        ("total", 2, 1),
    ]
    assert (plan.peak_cores, plan.peak_memory_bytes, plan.unsized) == (2, 2 * 2**30, 2)
    assert client.runs() == []


@sf.step
def interpreter() -> list[str]:
    return [sys.executable, str(Path.cwd())]


PROGRAM = """
import scanflow as sf

offset = 100

@sf.step
def first() -> int:
    print("first runs")
    return offset

@sf.step(in_process=True)
def second(value: int) -> int:
    return value + offset

one = first.bind()
app = sf.Application(name="p", workflows=[sf.Workflow(name="w", nodes=[one, second.bind(one)])])
print("the program runs")
client = sf.Client()
client.run(app)
print(client.output("second"))
"""


def test_a_program_may_run_its_own_steps_without_being_run_again_by_them_but_not_while_it_is_loaded(
    quick_cli: Cli, tmp_path: Path, client: Client
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    command = [sys.executable, "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patient(120), check=False)
    assert done.stdout == "the program runs\n200\n", done.stderr
    assert client.logs("first") == "first runs\n"
    answer = quick_cli("run")
    assert answer.returncode == 2
    assert (
        "app.py runs a workflow while the file is being loaded. Move that call below: if __name__ ==" in answer.stderr
    )
    assert len(client.runs()) == 1
    client.spin("second")  # in this process, which knows nothing of that program
    assert client.output("second") == 200


def test_a_list_to_fan_out_over_may_hold_earlier_outputs(client: Client) -> None:
    source = numbers.bind(3)
    sum_step = total.bind(source)
    doubled = double.map([sum_step, 10, 20])
    client.run(sf.Workflow(name="w", nodes=[source, sum_step, doubled, interpreter.bind()]))
    assert client.output("double") == [6, 20, 40]
    assert client.output("interpreter") == [sys.executable, str(Path.cwd())], "a function's process is as this one"


@pytest.mark.slow  # asks the package index for what it needs
def test_a_function_may_have_requirements_too(client: Client, cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import sys\nimport scanflow as sf\n\n"
        "@sf.step(requirements=['six'])\ndef elsewhere(values: list[int]) -> dict[str, object]:\n"
        "    import six\n    return {'six': six.__version__, 'prefix': sys.prefix, 'total': sum(values)}\n\n"
        "wf = sf.Workflow(name='w', nodes=[elsewhere.bind([1, 2])])\n"
    )
    ran = cli("run")
    assert ran.returncode == 0, ran.stderr
    assert "✓ the environment of elsewhere" in ran.stdout
    output = client.output("elsewhere")
    assert output["total"] == 3
    assert Path(output["prefix"]).parent == home / "venvs"


def test_an_output_that_is_not_text_fails_only_the_step_that_takes_it(client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "leaves.py",
        "import os, pathlib\nimport scanflow as sf\nsf.output('good', 1)\n"
        "pathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'], '.outputs', 'bad').write_bytes(b'\\xff\\xfe')\n",
    )
    leaves = sf.Executor(name="leaves", mainfile="leaves.py")
    fine, bad = label.bind(leaves["good"]), leaves["bad"]
    assert client.run(make_app(tmp_path, leaves, fine)).state == "succeeded"
    for taking in (label.bind(bad), label.options(when=bad > 1).bind(1), double.map(bad)):
        with pytest.raises(StepFailedError, match="output 'bad' is neither JSON nor text"):
            client.run(make_app(tmp_path, leaves, taking))


def test_an_in_process_step_may_write_bytes_and_hand_on_its_streams(client: Client) -> None:
    client.run(sf.Workflow(name="w", nodes=[writes.bind()]))
    assert client.logs("writes") == "text\nbytes\na child's\n"


@sf.step(in_process=True)
def writes() -> None:
    print("text")
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.buffer.flush()
    subprocess.run(["echo", "a child's"], stdout=sys.stdout, check=True)


def test_followed_logs_show_both_streams_as_they_are_written(home: Path, client: Client, tmp_path: Path) -> None:
    script(
        tmp_path,
        "talks.py",
        "import pathlib, sys, time\nprint('out')\nprint('err', file=sys.stderr)\n"
        "while not pathlib.Path('go').exists():\n    time.sleep(0.01)\nprint('end')\n",
    )
    deployer = EmbeddedDeployer(Settings(home=home))
    app = make_app(tmp_path, sf.Executor(name="talks", mainfile="talks.py"))
    started = threading.Event()

    def observe(event: Event) -> None:
        if event.kind == "task-started":
            started.set()

    thread = threading.Thread(target=lambda: deployer.run(RunRequest(app), observe=observe))
    thread.start()
    assert started.wait(patient(60))
    seen = b""
    for part in deployer.logs(TaskLog("@latest", "talks", stream="both"), follow=True):
        seen += part.data
        if seen == b"out\nerr\n" or seen == b"err\nout\n":
            (tmp_path / "go").touch()
    thread.join(patient(60))
    assert sorted(seen.splitlines()) == [b"end", b"err", b"out"]


def test_a_follower_reads_only_what_changed(home: Path, client: Client) -> None:
    client.run(sf.Workflow(name="w", nodes=[double.map([1, 2])]))
    deployer = EmbeddedDeployer(Settings(home=home))
    record, since = deployer.batch.follow("@latest")
    assert [task.state for task in record.tasks] == ["succeeded", "succeeded"]
    assert deployer.batch.follow("@latest", since) == (record.model_copy(update={"tasks": ()}), since)


def test_an_image_is_not_ignored_in_silence(cli: Cli, quick_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\nstep = sf.Executor(name='x', mainfile='x.py', image='python:3.12')\n"
        "app = sf.Application(name='a', workflows=[sf.Workflow(name='w', nodes=[step])])\n"
    )
    script(tmp_path, "x.py", "pass")
    assert "! x: image not used here" in quick_cli("check", "app.py").stdout
    assert "! x: image='python:3.12' is not used: steps run with this Python" in cli("run", "app.py").stdout
