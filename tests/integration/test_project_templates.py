"""What ``scanflow init`` writes: each project is checked, linted and tested; the nightly suite runs it, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scanflow_client.project_files import TEMPLATES
from tests.conftest import COMMAND, Cli, home_in
from tests.waiting import patient, wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("projects")
    with home_in(folder):
        yield folder


def run(folder: Path, *arguments: str | Path, code: int = 0) -> str:
    """Run a program in a project, and return what it printed."""
    done = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=patient(500), stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def scanflow(folder: Path, *arguments: str, code: int = 0) -> str:
    return run(folder, *COMMAND, *arguments, code=code)


def write_project(folder: Path, template: str) -> Path:
    if not (folder / template).exists():
        scanflow(folder, "init", template, "--template", template)
    return folder / template


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_is_checked_linted_and_its_tests_pass(quick_cli: Cli, tmp_path: Path, template: str) -> None:
    project = tmp_path / template
    written = quick_cli("init", template, "--template", template)
    assert f"Next: {TEMPLATES[template].format_command(Path(template))}" in written.stdout
    if template == "mpi":
        assert "There is no file 'pi'" in quick_cli("check", f"{template}/app.py").stderr
        (project / "pi").touch(mode=0o700)  # the gate has no compiler for MPI
    checked = quick_cli("check", f"{template}/app.py")
    assert "is valid" in checked.stdout, checked.stderr
    run(project, sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", ".")
    run(project, sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", "--check", ".")
    assert " passed" in run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    files = {path.relative_to(project).as_posix(): path for path in project.rglob("*") if path.is_file()}
    assert {"README.md", ".gitignore", "pytest.ini", "app.py"} <= files.keys()
    assert not [name for name, path in files.items() if path.suffix != ".pyc" and "my-app" in path.read_text()]


@pytest.mark.parametrize("template", ["batch", "notebook"])
def test_a_project_of_a_batch_workflow_runs(folder: Path, template: str) -> None:
    assert "succeeded in" in scanflow(write_project(folder, template), "run")


def test_a_primitive_of_the_project_is_what_its_entry_point_names(folder: Path) -> None:
    project = write_project(folder, "agent")
    text = (project / "pyproject.toml").read_text()
    assert 'set_timeout = "agent_primitives:SetTimeout"' in text
    assert "class SetTimeout" in (project / "agent_primitives.py").read_text()


@pytest.mark.parametrize(("name", "application"), [("My App 2", "my-app-2"), ("x" * 70, "x" * 46), ("___", "app")])
def test_a_folder_of_any_name_gives_a_valid_application(
    quick_cli: Cli, tmp_path: Path, name: str, application: str
) -> None:
    assert quick_cli("init", name).returncode == 0
    assert f'name="{application}"' in (tmp_path / name / "app.py").read_text()
    assert quick_cli("check", f"{name}/app.py").returncode == 0


def test_a_name_of_digits_gives_a_module_that_can_be_imported(quick_cli: Cli, tmp_path: Path) -> None:
    assert quick_cli("init", "2 shops", "--template", "agent").returncode == 0
    assert (tmp_path / "2 shops" / "app_2_shops_primitives.py").exists()
    assert quick_cli("check", "2 shops/app.py").returncode == 0


def test_files_that_exist_are_named_and_nothing_is_written(quick_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shop" / "tests").mkdir(parents=True)
    (tmp_path / "shop" / "README.md").write_text("mine")
    (tmp_path / "shop" / "tests" / "test_steps.py").write_text("mine")
    result = quick_cli("init", "shop")
    assert result.returncode == 2
    assert "The files 'shop/README.md' and 'shop/tests/test_steps.py' exist already." in result.stderr
    assert sorted(path.name for path in (tmp_path / "shop").rglob("*")) == ["README.md", "test_steps.py", "tests"]


def test_a_file_in_place_of_the_folder_is_an_error(quick_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("mine")
    result = quick_cli("init", "shop")
    assert result.returncode == 2
    assert "'shop' is a file. Name another folder: scanflow init my-app" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--template", "serv"],
            "'serv'. Did you mean 'service'? Templates: batch, service, loop, agent, mpi, notebook.",
        ),
        (["--name", "My App"], "The application name 'My App' cannot be used"),
        (["--name", "a" * 60], "shorten the name or the team by"),
    ],
)
def test_what_cannot_be_written_says_why(quick_cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = quick_cli("init", "shop", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "shop").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_service_is_trained_deployed_called_and_deleted(folder: Path) -> None:
    project = write_project(folder, "service")
    assert '"version": 1' in scanflow(project, "run", "app.py:training")
    scanflow(project, "deploy", "app.py:serve")
    assert "[1, 0]" in scanflow(project, "predict", "serve", "rows.csv")
    scanflow(project, "delete", "serve")


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpicc") is None or shutil.which("mpirun") is None, reason="no MPI is installed")
def test_the_job_computes_pi(folder: Path) -> None:
    project = write_project(folder, "mpi")
    run(project, "mpicc", "-O2", "-o", "pi", "pi.c")
    scanflow(project, "run", "app.py:job")
    assert "pi is 3.141593" in scanflow(project, "mpi", "logs", "--rank", "0")


@pytest.mark.slow
def test_the_agents_raise_the_timeout_by_the_projects_primitive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, site = write_project(folder, "agent"), folder / "site"
    install = ["pip", "install", "--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", str(site)]
    run(project, sys.executable, "-m", "uv", *install, ".")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    with serve(project):
        scanflow(project, "agents", "--start", "app.py")
        wait_until(lambda: "starting" not in scanflow(project, "agents"), "the agents are up")
        assert "timed out after 2.00 s" in scanflow(project, "run", "app.py", code=1)
        wait_until(lambda: scanflow(project, "runs").count("succeeded") == 1, "the workflow ran again")
        assert "set_timeout" in scanflow(project, "why")
        assert "medic.examine" in scanflow(project, "replay", "watcher")
        scanflow(project, "agents", "app.py", "--stop")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(1200)
def test_the_agents_of_the_loop_promote_a_better_model(folder: Path) -> None:
    project = write_project(folder, "loop")
    with serve(project):
        scanflow(project, "run", "app.py:training")
        scanflow(project, "deploy", "app.py:serve")
        scanflow(project, "agents", "--start", "app.py")
        run(project, sys.executable, "send.py", "18", "45")
        for seed in "123":
            run(project, sys.executable, "send.py", "50", "90", seed)
        wait_until(lambda: "model.promoted" in scanflow(project, "events"), "one is promoted", patience_s=patient(600))
        scanflow(project, "agents", "app.py", "--stop")
        scanflow(project, "delete", "serve")


@contextmanager
def serve(project: Path) -> Iterator[None]:
    scanflow(project, "up")
    try:
        yield
    finally:
        scanflow(project, "down")
