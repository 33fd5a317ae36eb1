"""Runs that are entered by one process and driven by another: what the server builds on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from scanflow.app.application import Application
from scanflow.application_loading import load_application
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, UsageError
from scanflow.settings import Settings

APP = """
import scanflow as sf

@sf.step
def first(word: str = "one") -> str:
    return word

@sf.step
def second(word: str) -> str:
    return word.upper()

begun = first.bind()
app = sf.Application(name="entered", workflows=[sf.Workflow(name="w", nodes=[begun, second.bind(begun)])])
"""


@pytest.fixture
def deployer(settings: Settings) -> EmbeddedDeployer:
    return EmbeddedDeployer(settings)


@pytest.fixture
def app(tmp_path: Path) -> Application:
    (tmp_path / "app.py").write_text(APP)
    return load_application(str(tmp_path / "app.py"))[0]


@pytest.mark.processes
def test_an_entered_run_stands_still_until_a_process_drives_it(deployer: EmbeddedDeployer, app: Application) -> None:
    name = deployer.batch.free_name()
    entered = deployer.batch.enter(deployer.define(RunRequest(app, parameters={"word": "two"})), name)
    assert deployer.batch.enter(deployer.define(RunRequest(app, parameters={"word": "two"})), name) == entered
    with pytest.raises(InvalidError, match="already"):
        deployer.batch.enter(deployer.define(RunRequest(app, parameters={"word": "other"})), name)
    assert (entered.name, entered.state) == (name, "interrupted")
    assert [task.state for task in entered.tasks] == ["pending", "pending"]
    assert deployer.run(RunRequest(deployer.batch.definition(name).app, run=name)).state == "succeeded"
    assert deployer.outputs(name, "second") == {"result": "TWO"}


def test_an_entered_run_that_is_stopped_or_given_up_has_ended(deployer: EmbeddedDeployer, app: Application) -> None:
    stopped, failed = (
        deployer.batch.enter(deployer.define(RunRequest(app))).name,
        deployer.batch.enter(deployer.define(RunRequest(app))).name,
    )
    assert deployer.stop(stopped).state == "stopped"
    given_up = deployer.batch.give_up(failed, "Nobody could drive it.")
    assert (given_up.state, given_up.error) == ("failed", "Nobody could drive it.")
    assert deployer.batch.give_up(stopped, "too late").state == "stopped"


@pytest.mark.processes
def test_an_entered_spin_has_its_inputs(deployer: EmbeddedDeployer, app: Application) -> None:
    past = deployer.run(RunRequest(app)).name
    name = deployer.batch.free_name()
    deployer.batch.check(deployer.define(RunRequest(run=past, step="second")))
    for _ in range(2):
        spun = deployer.batch.enter(deployer.define(RunRequest(run=past, step="second")), name)
        assert [(task.task, task.state) for task in spun.tasks] == [("first", "succeeded"), ("second", "pending")]
    assert deployer.run(RunRequest(deployer.batch.definition(name).app, run=name)).state == "succeeded"
    assert deployer.outputs(name, "second") == {"result": "ONE"}
    assert deployer.outputs(name, "first") == {"result": "one"}


def test_what_cannot_be_entered_is_refused(deployer: EmbeddedDeployer, app: Application) -> None:
    unbegun = deployer.batch.enter(deployer.define(RunRequest(app))).name
    with pytest.raises(UsageError, match="did not finish"):
        deployer.batch.check(deployer.define(RunRequest(run=unbegun, step="second")))
    with pytest.raises(NotFoundError, match="Did you mean 'second'"):
        deployer.batch.check(deployer.define(RunRequest(run=unbegun, step="secnod")))
    online = Application.model_validate(
        {
            "name": "a",
            "workflows": [
                {"name": "s", "type": "online", "nodes": [{"kind": "service", "name": "m", "model": "models:/m/1"}]}
            ],
        }
    )
    with pytest.raises(UnsupportedError, match="Deploy it"):
        deployer.define(RunRequest(online, "s"))


@pytest.mark.processes
def test_a_page_of_a_log_says_whether_more_will_be_written(deployer: EmbeddedDeployer, app: Application) -> None:
    with closing(deployer.log_reader(TaskLog(deployer.run(RunRequest(app)).name, "first", "both"))) as reader:
        page = reader.read()
    assert (page.parts, page.ended) == ((), True)
