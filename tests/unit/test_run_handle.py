"""The handle of a run: of one that was waited for, or that goes on while the program does something else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

import scanflow as sf
from scanflow.backends.memory import Memory
from scanflow.backends.run_records import RunRecord
from scanflow.errors import NotFoundError, StepFailedError, UnavailableError, UsageError
from scanflow.settings import Settings
from scanflow_client.run_handle import RunHandle
from tests.notebooks import render_bundle
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

GATED = """
import pathlib, time
import scanflow as sf

@sf.step
def gate(then: str = "open") -> str:
    print("at the gate", flush=True)
    while not (found := [*pathlib.Path().glob("gate.*")]):
        time.sleep(0.02)
    if found[0].suffix == ".shut":
        raise ValueError("the gate is shut")
    return then

app = sf.Application(name="gated", workflows=[sf.Workflow(name="w", nodes=[gate.bind()])])
"""


@pytest.fixture
def app(tmp_path: Path) -> sf.Application:
    from scanflow.application_loading import load_application

    (tmp_path / "gated_app.py").write_text(GATED)
    return load_application("gated_app.py", folder=tmp_path)[0]


def test_a_run_is_begun_looked_at_and_waited_for(home: Path, app: sf.Application, tmp_path: Path) -> None:
    client = sf.Client(progress=False)
    run = client.run(app, wait=False)
    assert (repr(run), run.show().state) == (f"<run {run.name}>", "running")
    shown = render_bundle(run)
    assert all("at the gate" not in text for text in shown.values())
    assert f"{run.name}  gated:w  running" in shown["text/plain"]
    wait_until(lambda: run.show().tasks[0].state == "running" and run.logs("gate"), "its step is at the gate")
    assert run.logs("gate") == "at the gate\n"
    with pytest.raises(UnavailableError, match=rf"'{run.name}' is still running after 0\.01 s"):
        run.wait(timeout_s=0.01)
    (tmp_path / "gate.open").touch()

    async def await_state() -> str:
        return (await run).state

    assert asyncio.run(await_state()) == "succeeded"
    assert run.wait() == client.wait(run.name) == run.show()
    assert run.output("gate") == "open"


def test_a_run_that_fails_or_is_stopped_ends_so_where_it_is_waited_for(
    home: Path, app: sf.Application, tmp_path: Path
) -> None:
    client = sf.Client(progress=False)
    stopped = client.run(app, wait=False)
    stopped.stop()
    assert stopped.wait().state == "stopped"
    (tmp_path / "gate.shut").touch()
    with pytest.raises(StepFailedError, match="the gate is shut"):
        client.run(app, wait=False).wait()


FORGETS = """
import scanflow as sf
from scanflow.application_loading import load_application

if __name__ == "__main__":
    run = sf.Client(progress=False).run(load_application("gated_app.py")[0], wait=False)
    {then}
"""


@pytest.mark.parametrize(("then", "is_told"), [("print('the end')", True), ("run.wait()", False)])
def test_a_program_that_did_not_wait_for_a_run_says_that_it_failed(
    home: Path, app: sf.Application, tmp_path: Path, then: str, is_told: bool
) -> None:
    (tmp_path / "gate.shut").touch()
    (tmp_path / "forgets.py").write_text(FORGETS.format(then=then))
    ended = subprocess.run(
        [sys.executable, "forgets.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == (0 if is_told else 1)
    assert ("failed, and was not waited for. See why: scanflow show " in ended.stderr) is is_told


FORKS = """
import os
import sys
import scanflow as sf
from scanflow.application_loading import load_application

if __name__ == "__main__":
    run = sf.Client(progress=False).run(load_application("gated_app.py")[0], wait=False)
    if (child := os.fork()) == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    open("gate.open", "w").close()
    print(run.wait().state)
"""


def test_a_fork_of_a_program_ends_while_a_run_goes_on(home: Path, app: sf.Application, tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    ended = subprocess.run(
        [sys.executable, "forks.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.stdout.split(), ended.returncode) == (["7", "succeeded"], 0)


def test_a_stopped_run_is_resumed_and_a_step_spun_without_waiting(
    home: Path, app: sf.Application, tmp_path: Path
) -> None:
    client = sf.Client(progress=False)
    stopped = client.run(app, wait=False)
    stopped.stop()
    assert stopped.wait().state == "stopped"
    (tmp_path / "gate.open").touch()
    resumed = client.resume(stopped.name, wait=False)
    assert (resumed.name, resumed.wait().state) == (stopped.name, "succeeded")
    spun = client.spin("gate", run=resumed.name, wait=False)
    assert (spun.name != resumed.name, spun.wait().state, spun.output("gate")) == (True, "succeeded", "open")


def test_a_client_of_another_program_waits_too(home: Path, app: sf.Application, tmp_path: Path) -> None:
    run = sf.Client(progress=False).run(app, wait=False)
    other = sf.Client(progress=False)
    with pytest.raises(UnavailableError, match="is still running after 0 s"):
        other.wait(timeout_s=0)
    (tmp_path / "gate.open").touch()
    assert other.wait(run.name).state == "succeeded"
    assert run.wait().state == "succeeded"


def test_two_runs_with_steps_in_this_process_keep_what_each_prints(home: Path, tmp_path: Path) -> None:
    before = sys.stdout
    client = sf.Client(progress=False)

    @sf.step(in_process=True)
    def talk(name: str) -> None:
        print(name, "begins", flush=True)
        wait_until((tmp_path / name).exists, "its file is there")
        print(name, "ends")

    first, second = (
        client.run(sf.Workflow(name=name, nodes=[talk.options(name="talk").bind(name)]), wait=False)
        for name in ("one", "two")
    )
    wait_until(
        lambda: any(run.show().tasks[0].state == "running" and run.logs("talk") for run in (first, second)),
        "one goes on",
    )
    for name in ("one", "two"):  # they take turns, whichever was first
        (tmp_path / name).touch()
    first.wait()
    second.wait()
    assert (first.logs("talk"), second.logs("talk")) == ("one begins\none ends\n", "two begins\ntwo ends\n")
    assert sys.stdout is before


@pytest.fixture
def memory_client(settings: Settings) -> sf.Client:
    return sf.Client(backend=Memory(settings), progress=False)


@sf.step
def shout(word: str = "hey") -> dict[str, str]:
    print("shouting", word)
    print("a warning", file=sys.stderr)
    return {"loud": word.upper()}


def test_a_run_that_was_waited_for_is_represented_as_one_that_was_not(memory_client: sf.Client) -> None:
    workflow = sf.Workflow(name="w", nodes=[shout.bind()])
    waited = memory_client.run(workflow)
    begun = memory_client.run(workflow, wait=False).wait()
    earlier = memory_client.run(waited.name)
    spun = memory_client.spin("shout", run=waited.name, parameters={"word": "ho"})
    for run in (waited, begun, earlier, memory_client.resume(waited.name), memory_client.wait(waited.name), spun):
        assert isinstance(run, RunHandle)
        assert (run.state, run.workflow, run.app) == ("succeeded", "w", "w")
        assert [task.task for task in run.tasks] == ["shout"]
        assert run.output("shout", "loud") == ("HO" if run is spun else "HEY")
        assert run.show() == memory_client.show(run.name) == run
        assert run.logs("shout", stream="stderr") == "a warning\n"
        assert run.files() == run.files("shout") == []
        assert RunRecord.model_validate(run.model_dump()) == run.record
    assert waited == earlier != begun
    assert len({waited, earlier, begun}) == 2
    assert memory_client.run("@latest").name == spun.name


def test_the_name_of_a_run_takes_nothing_to_run(memory_client: sf.Client) -> None:
    with pytest.raises(UsageError, match=r"client.run\('r'\) returns an earlier run, which takes no workflow"):
        memory_client.run("r", parameters={"word": "ho"})
    with pytest.raises(NotFoundError, match=r"no run 'nope'"):
        memory_client.run("nope")


def test_a_handle_is_always_of_the_current_state(memory_client: sf.Client, tmp_path: Path) -> None:
    @sf.step
    def read_file() -> str:
        return (tmp_path / "there").read_text()

    with pytest.raises(StepFailedError):
        memory_client.run(sf.Workflow(name="w", nodes=[read_file.bind()]))
    run = memory_client.run("@latest")
    assert run.state == "failed"
    (tmp_path / "there").write_text("now")
    memory_client.resume(run.name)
    assert (run.state, run.output("read-file")) == ("succeeded", "now")


def test_what_one_sees_first_of_a_run_is_ours(memory_client: sf.Client) -> None:
    run = memory_client.run(sf.Workflow(name="w", nodes=[shout.bind()]))
    names = dir(run)
    assert {"files", "logs", "name", "output", "show", "state", "stop", "tasks", "wait", "workflow"} <= set(names)
    assert not [name for name in names if name.startswith(("_", "model_")) or name in dir(BaseModel)]
    assert {"state", "tasks", "with_details"} <= set(dir(run.show()))
    assert not set(dir(BaseModel)) & set(dir(run.show())) - {"__dir__"}
    with pytest.raises(AttributeError, match="no attribute 'outptu'"):
        _ = run.outptu


def test_logs_are_those_of_the_command(memory_client: sf.Client) -> None:
    each = shout.options(name="each").map(word=["a\x1b[31m", "b"])
    run = memory_client.run(sf.Workflow(name="w", nodes=[shout.bind(), each]))
    both = {name: run.logs(name) for name in ("shout", "each.0", "each.1")}
    assert both["shout"].splitlines() == ["shouting hey", "a warning"]
    assert both["each.0"].startswith("shouting a")
    assert "\x1b" not in both["each.0"]
    fan_out = f"── each.0\n{both['each.0']}── each.1\n{both['each.1']}"
    assert run.logs("each") == fan_out
    assert run.logs() == memory_client.logs() == f"── shout\n{both['shout']}{fan_out}"
    with pytest.raises(NotFoundError, match=r"no log of 'eahc'"):
        run.logs("eahc")
