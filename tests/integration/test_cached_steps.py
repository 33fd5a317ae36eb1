"""``cache=True``, as somebody who writes workflows sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from scanflow.application_loading import load_application
from scanflow.backends.local.batch.launch import Launcher
from scanflow.backends.local.batch.step_programs import StepPrograms
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.settings import Settings
from scanflow_client.client import Client
from tests.conftest import Cli

APP = """
from pathlib import Path
import scanflow as sf
import helper

@sf.step(cache=True)
def name(file: Path) -> str:
    return f"{file.name}: {helper.read(file)}"

@sf.step(cache=True, env={"GREETING": "hello"})
def greet(times: int = 1) -> str:
    import os
    return os.environ["GREETING"] * times

names = name.map([Path(f"part-{n:02}.csv") for n in range(12)])
single = name.options(name="single").bind(file=Path("data.txt"))
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[names, single, greet.bind()])])
"""


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(12):
        (folder / f"part-{number:02}.csv").write_text("header\n" if number % 3 else f"header\n{number}\n")
    (folder / "data.txt").write_text("one")
    (folder / "helper.py").write_text("def read(file):\n    return file.read_text()\n")
    (folder / "app.py").write_text(APP)
    return folder


def edit(file: Path, before: str, after: str) -> None:
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def run(folder: Path, cli: Cli, *options: str) -> dict[str, str]:
    """Run the application in a process of its own; return why each task ran, if it did."""
    done = cli("run", "app.py", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    record = deployer().show("@latest")
    return {task.task: task.cache_note or "ran" for task in record.tasks if not task.origin}


def deployer() -> EmbeddedDeployer:
    return EmbeddedDeployer(Settings.from_environment())


def output(step: str) -> Any:
    outputs = deployer().outputs("@latest", step)
    return [task["result"] for task in outputs] if isinstance(outputs, list) else outputs["result"]


def test_each_file_gets_its_own_result_and_only_what_changed_runs_again(folder: Path, cli: Cli) -> None:
    assert set(run(folder, cli).values()) == {"ran"}
    assert output("name")[1:3] == ["part-01.csv: header\n", "part-02.csv: header\n"]
    assert [text[:11] for text in output("name")] == [f"part-{n:02}.csv" for n in range(12)]
    assert run(folder, cli) == {}
    (folder / "app.py").write_text(f"# a comment\n{(folder / 'app.py').read_text()}")
    assert run(folder, cli) == {}, "a comment is no change"
    assert run(folder, cli, "-p", "greet.times=1") == {}, "its default, which a server's definition has as well"

    (folder / "data.txt").write_text("two")
    (folder / "part-02.csv").write_text("changed\n")
    changed = {"single": "data.txt", "name.2": "part-02.csv"}
    assert run(folder, cli) == {task: f"not reused: the content of {file} changed" for task, file in changed.items()}
    assert output("single") == "data.txt: two"
    assert output("name")[2] == "part-02.csv: changed\n"

    edit(folder / "helper.py", "read_text()", "read_text().upper()")
    again = run(folder, cli)
    assert set(again.values()) == {"not reused: the code of helper.py changed"}
    assert len(again) == 14
    assert output("single") == "data.txt: TWO"

    edit(folder / "app.py", '"hello"', '"goodbye"')
    assert run(folder, cli)["greet"] == "not reused: the code of app.py changed, the variable GREETING changed"
    assert output("greet") == "goodbye"
    shown = cli("show").stdout
    assert "  ! greet: not reused: the code of app.py changed, the variable GREETING changed" in shown


def test_cached_steps_are_forced_and_their_new_outputs_are_kept(folder: Path, cli: Cli) -> None:
    edit(folder / "app.py", "return os.environ", "return Path('secret').read_text() + os.environ")
    (folder / "secret").write_text("1")
    run(folder, cli)
    (folder / "secret").write_text("2")
    assert run(folder, cli) == {}, "what code reads by itself is not seen"
    assert set(run(folder, cli, "--no-cache").values()) == {"ran"}
    assert output("greet") == "2hello"
    assert run(folder, cli) == {}
    assert output("greet") == "2hello"
    spun = cli("spin", "greet", cwd=folder)
    assert spun.returncode == 0, spun.stderr
    assert [task.origin for task in deployer().show("@latest").tasks] == [None]


def test_what_changes_while_a_step_runs_is_not_cached(folder: Path, cli: Cli) -> None:
    edit(folder / "app.py", 'return f"{file.name}', "file.open('a').write('more'); return f\"{file.name}")
    first, second = run(folder, cli), run(folder, cli)
    assert first["single"] == second["single"] == f"not cached: {folder}/data.txt changed while it ran"
    assert "greet" not in second


def test_outputs_that_another_step_changed_in_place_are_not_reused(folder: Path, cli: Cli) -> None:
    (folder / "app.py").write_text(
        "from pathlib import Path\nimport scanflow as sf\n"
        "@sf.step(cache=True)\ndef make() -> Path:\n"
        "    file = sf.output_dir() / 'x'\n    file.write_text('1')\n    return file\n"
        "@sf.step\ndef use(file: Path) -> str:\n"
        "    text = file.read_text()\n    file.write_text(text + '2')\n    return text\n"
        "made = make.bind()\n"
        "app = sf.Application(name='shop', workflows=[sf.Workflow(name='w', nodes=[made, use.bind(made)])])\n"
    )
    run(folder, cli)
    first = deployer().show("@latest").name
    again = run(folder, cli)
    assert again["make"] == f"not reused: its outputs in the run {first} were changed or deleted"
    assert output("use") == "1"


def test_an_in_process_step_is_cached_with_the_code_that_ran(folder: Path, home: Path) -> None:
    (folder / "app.py").write_text(
        "import scanflow as sf\n@sf.step(cache=True, in_process=True)\ndef one() -> int:\n    return 1\n"
        "app = sf.Application(name='shop', workflows=[sf.Workflow(name='w', nodes=[one.bind()])])\n"
    )
    app, path, _ = load_application(str(folder / "app.py"))
    client = Client(home=home)

    def find_task() -> TaskRecord:
        return client.run(app).tasks[0]

    assert find_task().origin is None
    assert find_task().origin is not None
    edit(path, "return 1", "return 22")
    assert (
        find_task().cache_note
        == f"not cached: {path} was changed after this program loaded it. Start the program again"
    )
    assert client.output("one") == 1


def test_a_decorated_function_is_looked_at_as_well_as_its_decorator(folder: Path, home: Path) -> None:
    (folder / "helper.py").write_text(
        "import functools\ndef log(function):\n    @functools.wraps(function)\n    def inner():\n"
        "        return function()\n    return inner\n"
    )
    (folder / "app.py").write_text(
        "import scanflow as sf\nfrom helper import log\n@sf.step(cache=True)\n@log\ndef one() -> int:\n    return 1\n"
        "app = sf.Application(name='shop', workflows=[sf.Workflow(name='w', nodes=[one.bind()])])\n"
    )
    app, path, _ = load_application(str(folder / "app.py"))
    workflow = app.workflow("w")
    programs = StepPrograms(RunDefinition(app, workflow), Home(home))
    launcher = Launcher(programs, RunFolder(folder / "run"), max_fan_out=1, tracking=lambda _: {})
    [node] = workflow.steps
    key = launcher.keys.compute(node, launcher.inputs.resolve_parameters(node))
    assert {Path(file).name for file in key.code} == {"app.py", "helper.py"}
    edit(path, "return 1", "return 2")
    assert launcher.keys.compute(node, launcher.inputs.resolve_parameters(node)).text != key.text


RESUMED = """
import scanflow as sf
import helper

@sf.step
def load() -> int:
    return 1

@sf.step
def train(value: int) -> int:
    raise ValueError

loaded = load.bind()
script = sf.Executor(name='script', mainfile='script.py')
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[loaded, script, train.bind(loaded)], edges=[
    sf.Dependency(dependee="script", depender="train")])])
"""


def test_a_finished_step_that_was_edited_before_a_resume_is_named(folder: Path, cli: Cli) -> None:
    (folder / "app.py").write_text(RESUMED)
    (folder / "script.py").write_text("")
    (folder / "helper.py").write_text("")
    assert cli("run", "app.py", cwd=folder).returncode == 1
    edit(folder / "app.py", "raise ValueError", "return value + 1  # mended")
    mended = cli("resume", cwd=folder)
    assert mended.returncode == 0, mended.stderr
    assert "was changed" not in mended.stdout + mended.stderr, "the step that failed is the one that was edited"

    assert cli("run", "app.py", cwd=folder).returncode == 0
    edit(folder / "app.py", "return value + 1", "raise ValueError")
    assert cli("run", "app.py", cwd=folder).returncode == 1
    edit(folder / "app.py", "return 1", "return 2")
    edit(folder / "app.py", "mainfile='script.py'", "mainfile='script.py', parameters={'rate': 2}")
    later = deployer().show("@latest").created + 1000
    for file in ("script.py", "helper.py"):
        os.utime(folder / file, (later, later))
    for _ in range(2):
        resumed = cli("resume", cwd=folder)
        lines = [line for line in (resumed.stdout + resumed.stderr).splitlines() if "was changed" in line]
        message = "was changed after it finished; its old output is kept. To run it as it is now, start a new run"
        names = ["load (its code or what that uses; helper.py)", "script (its parameters or variables; script.py)"]
        assert lines == [f"  ! {name} {message}: scanflow run" for name in names]
