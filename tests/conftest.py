"""What all tests share: a home folder of their own, and nothing of the person's who runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from scanflow.deployer import EmbeddedDeployer
from scanflow.settings import Settings
from scanflow_client.cli.main import main
from tests import leftovers
from tests.suite import ONLY, RESULT, describe_result
from tests.waiting import patient

# They compare golden files, and a failure is to show the difference.
pytest.register_assert_rewrite("tests.manifests", "tests.snapshots")

# Several runners share the cores: where threads of a pool spin for one another, one alone takes a quarter of the time.
# Steps and instances whose cores are limited are given sizes of their own.
for _pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_pool, "1")

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

COMMAND = [sys.executable, "-c", "from scanflow_client.cli.main import main; main()"]
COMMAND_TIMEOUT_S = patient(240)

_RUN, _RESULT, _ONLY = pytest.StashKey[str](), pytest.StashKey[str](), pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """End what killed runs left, mark what this one starts, and let it be interrupted."""
    # A shell has what it starts in the background ignore it, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if worker := getattr(config, "workerinput", None):
        share_rewriting(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    else:  # pytest itself, not a worker of pytest-xdist
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C, with a summary
        leftovers.end_leftovers()
        config.stash[_RUN] = leftovers.mark_this_process()
        config.stash[_RESULT] = os.environ.pop(RESULT, "")
        config.stash[_ONLY] = os.environ.pop(ONLY, "").splitlines()


def share_rewriting(config: pytest.Config, worker: int, workers: int) -> None:
    """Have each worker of pytest-xdist collect from another file on: what one has rewritten, the others only read.

    Rewriting the asserts of all tests takes longer than all else that collecting them does.
    """
    if config.args_source is config.ArgsSource.TESTPATHS:
        files = sorted(str(path) for folder in config.args for path in Path(config.rootpath, folder).rglob("test_*.py"))
        first = len(files) * worker // workers
        config.args[:] = [*files[first:], *files[:first]]
    sys.dont_write_bytecode = False


def pytest_collection_finish(session: pytest.Session) -> None:
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (run := config.stash.get(_RUN, None)) is not None:
        for command in leftovers.end_run(run):
            sys.stderr.write(f"Left by a test, and ended: {command:.150}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the result where ``tests.suite`` wants it."""
    if path := config.stash.get(_RESULT, ""):
        Path(path).write_text(json.dumps(describe_result(terminalreporter.stats)), encoding="utf-8")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of which no test is wanted."""
    files = {config.rootpath / test.partition("::")[0] for test in config.stash.get(_ONLY, [])}
    return True if files and collection_path.is_file() and collection_path not in files else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what may take longest first, as its ``timeout`` says, so that no runner is left alone with it at the end.

    Time limits are ceilings too: they are multiplied as those of ``tests.waiting``.
    """
    if only := config.stash.get(_ONLY, None):
        items[:] = [item for item in items if item.nodeid in only]
    default = float(config.getini("timeout"))
    longest: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker else 0.0
        longest[item.path] = max(longest.get(item.path, 0.0), limit_s)
        item.add_marker(pytest.mark.timeout(patient(limit_s or default)), append=False)
    items.sort(key=lambda item: (-longest[item.path], item.path))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with home_in(tmp_path) as folder:
        yield folder


@contextmanager
def home_in(parent: Path) -> Iterator[Path]:
    """Make a home folder, also for processes that are started. What it still serves at the end is ended."""
    folder = parent / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SCANFLOW_", "MLFLOW_"))]:
            patch.delenv(name)
        patch.setenv("SCANFLOW_HOME", str(folder))
        yield folder
        if (folder / "services").is_dir():
            deployer = EmbeddedDeployer(Settings(home=folder))
            for record in deployer.services():
                deployer.delete(record.name)


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home, slots=2)


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    """Run the command line as a person would, in ``tmp_path``."""

    def run(
        *arguments: str, cwd: Path = tmp_path, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        command, pipe = [*COMMAND, *arguments], subprocess.PIPE
        with subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True) as running:
            try:
                out, err = running.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                running.terminate()  # not killed: it ends what it started, which would take the CPUs of later tests
                out, err = running.communicate(timeout=COMMAND_TIMEOUT_S)
                pytest.fail(f"scanflow {' '.join(arguments)} took more than {timeout_s:g} s.\n{out}{err}")
        return subprocess.CompletedProcess(command, running.returncode, out, err)

    return run


@pytest.fixture
def quick_cli(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line within this process, in ``tmp_path``: for commands that start nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["scanflow", *arguments])
        with patch.dict(os.environ), pytest.raises(SystemExit) as ended:  # --backend sets a variable
            main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, out, err)  # type: ignore[arg-type]

    return run


@pytest.fixture(autouse=True, scope="module")
def _own_modules_of_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with keep_modules(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with keep_modules(tmp_path_factory.getbasetemp()):
        yield


@contextmanager
def keep_modules(below: Path) -> Iterator[None]:
    """Forget modules that are loaded from below a folder, and the folders on the module search path.

    Loading a file of an application puts its folder there for as long as the process lives: what the next test imports
    could be another's, as would be the code that its keys of the cache are made of.
    """
    path, loaded = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - loaded:
        module = sys.modules[name]
        attributes = getattr(
            module, "__dict__", {}
        )  # not by getattr: PyTorch has modules that raise for what they lack
        if str(below) in f"{attributes.get('__file__')} {attributes.get('__path__')}":
            del sys.modules[name]
