from __future__ import annotations

import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.local.python_environments import (
    Patience,
    is_ready,
    locate_python,
    make_environment,
    normalise_requirements,
)
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import InvalidError, UnavailableError
from scanflow.processes.identity import read_start_time
from scanflow.settings import Settings
from tests.waiting import PATIENCE_S, patient, wait_until


def source_that_says_when_it_is_built_and_never_ends(folder: Path) -> str:
    """Return a requirement whose build writes its id into ``begun`` and then waits for ever. It needs no network."""
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "hang"\nbackend-path = ["."]\n'
        '[project]\nname = "hang"\nversion = "1.0"\n'
    )
    (folder / "hang.py").write_text(
        f"import os, pathlib, time\ndef build_wheel(*_, **__):\n"
        f"    pathlib.Path({str(folder / 'part')!r}).write_text(str(os.getpid()))\n"
        f"    os.rename({str(folder / 'part')!r}, {str(folder / 'begun')!r})\n    time.sleep(3600)\n"
    )
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: hang\nVersion: 1.0\n")
    archive = folder / "hang-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("pyproject.toml", "hang.py", "PKG-INFO"):
            tar.add(folder / name, f"hang-1.0/{name}")
    return f"hang @ file://{archive}"


def test_comments_and_blank_lines_do_not_count() -> None:
    lines = ["# what we need", "", "numpy>=2  # arrays", "   ", "pandas"]
    assert normalise_requirements(lines, with_runtime=False) == ("numpy>=2", "pandas")


def test_a_function_step_gets_what_loads_it_in_this_very_version() -> None:
    import pydantic

    assert f"pydantic=={pydantic.VERSION}" in normalise_requirements([], with_runtime=True)


@pytest.mark.parametrize("line", ["-r other.txt", "--requirement other.txt", "-c limits.txt"])
def test_requirements_that_refer_to_another_file_are_refused(line: str) -> None:
    with pytest.raises(InvalidError, match="Write all of them in one"):
        normalise_requirements([line], with_runtime=False)


@pytest.mark.processes
def test_an_environment_can_import_scanflow_and_nothing_else_of_ours(tmp_path: Path) -> None:
    python = locate_python(tmp_path, [])
    make_environment(python, [], base=tmp_path, patience=Patience())
    program = "import scanflow.outputs; print('ours')\ntry:\n    import pytest\nexcept ImportError:\n    print('alone')"
    done = subprocess.run(
        [python, "-I", "-c", program], capture_output=True, text=True, timeout=patient(120), check=True
    )
    assert done.stdout == "ours\nalone\n"


@pytest.mark.processes
def test_several_may_ask_for_one_environment_at_once(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from scanflow.backends.local.python_environments import Patience, locate_python, make_environment\n"
        "folder = Path(sys.argv[1])\n"
        "make_environment(locate_python(folder, []), [], base=folder, patience=Patience())\n"
    )
    askers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(4)]
    assert [asker.wait(PATIENCE_S) for asker in askers] == [0] * 4
    assert is_ready(locate_python(tmp_path, []))


@pytest.mark.processes
@pytest.mark.parametrize("why", ["stopped", "not ready after"])
def test_what_takes_too_long_or_is_given_up_leaves_nothing_behind(tmp_path: Path, why: str) -> None:
    wanted = [source_that_says_when_it_is_built_and_never_ends(tmp_path)]
    python = locate_python(tmp_path / "venvs", wanted)
    now, begun = [0.0], tmp_path / "begun"
    patience = Patience(60.0, clock=lambda: now[0])

    def give_up() -> None:
        wait_until(begun.exists, "it is built")
        if why == "stopped":
            patience.cancel()
        else:
            now[0] = 61.0

    threading.Thread(target=give_up, daemon=True).start()
    with pytest.raises(UnavailableError, match=why):
        make_environment(python, wanted, base=tmp_path, patience=patience)
    assert not is_ready(python)
    wait_until(lambda: not read_start_time(int(begun.read_text())), "the build has ended")


@pytest.mark.processes
def test_what_cannot_be_installed_is_reported_with_the_installers_message(tmp_path: Path) -> None:
    wanted = [f"nope @ file://{tmp_path}/nope-1.0-py3-none-any.whl"]
    with pytest.raises(InvalidError, match=r"cannot be installed.*nope"):
        make_environment(locate_python(tmp_path, wanted), wanted, base=tmp_path, patience=Patience())
    assert list(tmp_path.glob("*.part")) == []


def test_the_time_for_an_environment_begins_with_it_not_with_its_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Patience] = []

    def make(python: Path, _requirements: object, *, patience: Patience, **_: object) -> None:
        limits.append(patience)
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)

    monkeypatch.setattr("scanflow.backends.local.batch.run_loop.make_environment", make)
    (tmp_path / "step.py").write_text("print(1)")
    first, second = (sf.Executor(name=name, mainfile="step.py", requirements=[name]) for name in ("first", "second"))
    edge = sf.Dependency(dependee="first", depender="second")
    app = sf.Application(
        name="shop", app_dir=str(tmp_path), workflows=[sf.Workflow(name="w", nodes=[first, second], edges=[edge])]
    )
    assert EmbeddedDeployer(Settings(home=home)).run(RunRequest(app)).state == "succeeded"
    assert len(set(map(id, limits))) == 2
