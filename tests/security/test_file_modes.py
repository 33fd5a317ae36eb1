"""No other user of the machine may read what a home holds, nor hold its locks."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.errors import UsageError
from scanflow.files.private import create_private_file, create_private_folder, open_home, open_private
from tests.conftest import Cli

APP = """
import os
from pathlib import Path

import scanflow as sf


@sf.step
def mask(word: str) -> str:
    Path(os.environ["SCANFLOW_OUTPUT_DIR"], "own.txt").write_text("mine")
    sf.output("seen", 1)
    return oct(os.umask(0o22))


@sf.step(in_process=True)
def told(seen: str) -> str:
    print(seen)
    return seen


class Mean:
    def predict(self, X):
        return X.mean(axis=1)


first = mask.bind("hush")
app = sf.Application(
    name="shop",
    workflows=[
        sf.Workflow(name="w", nodes=[first, told.bind(first)]),
        sf.Workflow(name="means", type="online", nodes=[sf.Service(name="mean", implementation="app.py:Mean")]),
    ],
    agents=[sf.Agent(name="watcher", modules=["watch.py"])],
)
"""


WATCH = """
import scanflow as sf
from scanflow.agent.sensors.sensor import sensor

@sensor(sf.every(hours=1))
def look():
    return 1
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "watch.py").write_text(WATCH)
    return tmp_path / "app.py"


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(home: Path) -> list[str]:
    """Return what others may read or enter, but for what a step itself wrote into its output folder."""
    odd_modes = []
    for path in [home, *home.rglob("*")]:
        mode = path.lstat().st_mode
        users = "/outputs/" in str(path) and ".outputs" not in str(path) and path.is_file()
        if not (stat.S_ISLNK(mode) or users) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            odd_modes.append(f"{stat.filemode(mode)} {path.relative_to(home)}")
    return odd_modes


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_and_a_service_leave_nothing_that_others_may_read(cli: Cli, home: Path, app: Path) -> None:
    assert cli("run", f"{app}:w").returncode == 0
    assert cli("deploy", f"{app}:means").returncode == 0
    assert cli("predict", "means", "--data", "[[1, 2, 3]]").returncode == 0
    assert open_to_others(home) == []
    names = [path.name for path in home.rglob("*")]
    assert {"journal.db", "spec.json", "exit", "stdout.log", "lock", "service.lock", "instance.json"} <= set(names)
    assert cli("logs", "@latest", "told").stdout.strip() == "0o22", "a step sees another umask than its user's"


@pytest.mark.processes
@pytest.mark.slow
def test_what_up_starts_leaves_nothing_that_others_may_read(cli: Cli, home: Path, app: Path) -> None:
    assert cli("up", "--no-tracker").returncode == 0
    try:
        assert cli("agents", "--start", str(app)).returncode == 0
        assert cli("run", f"{app}:w").returncode == 0
        assert open_to_others(home) == []
        assert {"up.lock", "up.json", "scanflow.db", "agent.json"} <= {path.name for path in home.rglob("*")}
        assert cli("logs", "@latest", "told").stdout.strip() == "0o22"
    finally:
        cli("down")


def test_a_home_that_others_could_read_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "server").mkdir(parents=True, mode=0o755)
    (home / "server" / "up.lock").touch(0o644)
    (home / "journal.db").touch(0o664)
    assert open_to_others(home) != []
    assert open_home(home) == home
    assert open_to_others(home) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_another_users_home_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Path(folder, "home")
        home.mkdir()
        os.chown(home, 12345, 12345)
        os.seteuid(23456)
        try:
            with pytest.raises(UsageError, match="belongs to another user"):
                open_home(home)
        finally:
            os.seteuid(0)


def test_whatever_the_umask_what_is_made_is_private(tmp_path: Path) -> None:
    os.umask(0)
    folder = create_private_folder(tmp_path / "a" / "b")
    with open_private(folder / "log", "a") as file:
        file.write("x")
    create_private_file(folder / "database")
    assert open_to_others(tmp_path / "a") == []
    assert (folder / "log").read_text() == "x"
