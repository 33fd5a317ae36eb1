"""``client.run(app, wait=False)``: a run that goes on while the program does something else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.errors import StepFailedError, UnavailableError
from tests.waiting import until

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
    from scanflow.loading import load_application

    (tmp_path / "gated_app.py").write_text(GATED)
    return load_application("gated_app.py", folder=tmp_path)[0]


def test_a_run_is_begun_looked_at_and_waited_for(home: Path, app: sf.Application, tmp_path: Path) -> None:
    client = sf.Client(progress=False)
    run = client.run(app, wait=False)
    assert (repr(run), run.show().state) == (f"<run {run.name}>", "running")
    assert "at the gate" not in run._repr_html_()
    assert f"Run {run.name} of gated:w, running" in run._repr_html_()
    until(lambda: run.show().tasks[0].state == "running" and run.logs("gate"), "its step is at the gate")
    assert run.logs("gate") == "at the gate\n"
    with pytest.raises(UnavailableError, match=rf"'{run.name}' is still running after 0\.01 s"):
        run.wait(timeout_s=0.01)
    (tmp_path / "gate.open").touch()

    async def awaited() -> str:
        return (await run).state

    assert asyncio.run(awaited()) == "succeeded"
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
        until((tmp_path / name).exists, "its file is there")
        print(name, "ends")

    first, second = (
        client.run(sf.Workflow(name=name, nodes=[talk.options(name="talk").bind(name)]), wait=False)
        for name in ("one", "two")
    )
    until(
        lambda: all(run.show().tasks[0].state == "running" and run.logs("talk") for run in (first, second)),
        "both go on",
    )
    (tmp_path / "one").touch()
    first.wait()
    (tmp_path / "two").touch()
    second.wait()
    assert (first.logs("talk"), second.logs("talk")) == ("one begins\none ends\n", "two begins\ntwo ends\n")
    assert sys.stdout is before
