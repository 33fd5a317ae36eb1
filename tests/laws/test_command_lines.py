"""People see no traceback of ours: whatever a command line names, it is refused with one cause and a next command.

The tree of commands is walked, so that a new command or option is held without being named here. The inputs are files,
numbers, names and environments as people get them wrong; which meet is chosen by a fixed seed.
"""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin

import pytest

import scanflow as sf
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from scanflow_client.cli.main import main
from tests.command_tree import load_command_tree
from tests.conftest import COMMAND, keep_modules
from tests.waiting import patient

# A reader of a broken file may leave it open until the command ends, which is soon.
pytestmark = [
    pytest.mark.filterwarnings(
        "default"
    ),  # what a library warns of when it is first imported is no defect of a command
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LIMIT_S = 2
"""A command that takes longer has accepted its input."""

CODES = {0, 1, 2, 3, 130}
"""Of docs/reference/exit-codes.md, without 4, a defect of ours."""

HELPFUL = re.compile(
    r"scanflow |--[a-z]|[Aa] name is |"
    r"\b(Write|Did you mean|Known|Give|Name|Use|Leave|Keep|Install|Choose|Create|Change|See|Free|Set|Save|Run|Start)\b|"
    r"\b(Remove|Check|Try|Fix|Mend|Move|Wait|Report|Look|Register)\b"
)
MAX_LINES, MAX_CHARACTERS = 12, 2_000


class Started(BaseException):
    """The command accepted its input, and goes to work."""


class Done(NamedTuple):
    code: object
    out: str
    err: str


def walk(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walk(inner, *path, name)
    else:
        yield path, command


COMMANDS = dict(walk(load_command_tree()))

APP = """
import scanflow as sf

@sf.step
def load(n: int = 3) -> int:
    return n

@sf.step
def train(n: int) -> float:
    return 1 / n

loaded = load.bind()
flow = sf.Workflow(name="flow", nodes=[loaded, train.bind(n=loaded)])
"""
FILES: dict[str, bytes] = {
    "app.py": APP.encode(),
    "empty.py": b"",
    "empty.yaml": b"",
    "empty.json": b"",
    "empty.csv": b"",
    "empty.npy": b"",
    "broken.py": b"def f(:\n",
    "raises.py": b"def f():\n    return {}['nothere']\nf()\n",
    "exits.py": b"import sys\nsys.exit('not today')\n",
    "latin.py": "# -*- nothing -*-\nname = 'é'\n".encode("latin-1"),
    "nul.py": b"x = 1\0\n",
    "latin.yaml": "name: é\n".encode("latin-1"),
    "broken.yaml": b"workflows: [a, {b: ]\n",
    "list.yaml": b"- 1\n- 2\n",
    "number.json": b"1",
    "cut.json": b'{"name": "a", "workf',
    "nan.json": b"[[NaN, Infinity]]",
    "deep.json": b"[" * 3000,
    "cut.npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fort",
    "objects.npz": b"PK\x03\x04" + b"\0" * 40,
    "noise.bin": bytes(range(256)),
    "cut.parquet": b"PAR1\x15\x04",
    "cut.csv": b'id,label\n1,"3\n2,4',
    "other.csv": b"a;b\n1;2\n",
    "link.yaml": b"a: &a [*a]\n",
}
PATHS = [
    *FILES, "nothere.py", "nothere.yaml", "nothere.csv", "folder", "folder/", "app.py/inner.csv", "app.py:nothere",
    "app.py:", ":flow", "loop", ".", "..", "/", "", " ", "/dev/null", "/dev/full", "x" * 300, "x" * 5000, "é\u202e.py",
    "\udcff.py", "~nobody/app.py", "http://127.0.0.1:1/x", "models:/nothere/1",
]  # fmt: skip
NAMES = [
    "nothere", "@latest", "@latest-1", "@latest-99999999999999999999", "@late", "@latest-x", "done", "train", "train.0",
    "load.x", "", " ", "a b", "A/b", "a/2", "../x", "x" * 300, "é", "\udcff", "-", "--", "a=b", "=", "a=", "=b",
    "load.n=x", "n=[1", "*", "%s", "{}",
]  # fmt: skip
NUMBERS = [
    "-1", "0", "1", "2.5", "1e9", "1e400", "99999999999999999999", "nan", "inf", "-inf", "x", "", "0x10", "٣", "1,2",
    "1_000", "1 2", "10%", "5 minutes", "-5m", "1e999s",
]  # fmt: skip
ENVIRONMENTS: list[dict[str, str]] = [
    {"SCANFLOW_HOME": "app.py"},
    {"SCANFLOW_HOME": "app.py/home"},
    {"SCANFLOW_HOME": "/dev/null/home"},
    {"SCANFLOW_HOME": "x" * 300},
    {"SCANFLOW_HOME": "broken-home"},
    {"SCANFLOW_HOME": "empty-home"},
    {"SCANFLOW_SLOTS": "many"},
    {"SCANFLOW_SLOTS": "0"},
    {"SCANFLOW_URL": "http://127.0.0.1:1", "SCANFLOW_TOKEN": "t"},
    {"SCANFLOW_URL": "nonsense"},
    {"SCANFLOW_URL": "http://", "SCANFLOW_TOKEN": "é"},
    {"SCANFLOW_URL": "http://[::1", "SCANFLOW_TOKEN": "t"},
    {"SCANFLOW_BACKEND": "nothere"},
    {"SCANFLOW_BACKEND": "kubernetes", "KUBECONFIG": "nothere.yaml"},
    {"SCANFLOW_BACKEND": "kubernetes", "KUBECONFIG": "broken.yaml"},
    {"SCANFLOW_BACKEND_OPTIONS": "x"},
    {"SCANFLOW_TRACKER_URI": "nonsense://x"},
    {"SCANFLOW_TRACKER_URI": "http://127.0.0.1:1"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files as people get them wrong, and a home with one run."""
    here = tmp_path_factory.mktemp("wrong")
    for name, content in FILES.items():
        (here / name).write_bytes(content)
    (here / "folder").mkdir()
    (here / "loop").symlink_to("loop")
    for home in ("broken-home", "empty-home"):
        (here / home).mkdir()
    names = ("journal.db", "runs.db", "up.json", "server.json", "token", "mlflow.db", "pickle.key", "services")
    for name in names:
        (here / "broken-home" / name).write_bytes(b"\x00not this\xff")

    @sf.step(in_process=True)
    def train() -> float:
        return 0.5

    workflow = sf.Workflow(name="done", nodes=[train.bind()])
    EmbeddedDeployer(Settings(home=here / "home")).run(RunRequest(sf.Application(name="shop", workflows=[workflow])))
    return here


@pytest.fixture
def guarded_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No command line starts a process, and none takes long."""
    for name in [name for name in os.environ if name.startswith(("SCANFLOW_", "MLFLOW_", "KUBE"))]:
        monkeypatch.delenv(name)

    def start(*_: object, **__: object) -> NoReturn:
        raise Started

    def expire(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if "importlib" in frame.f_code.co_filename:  # half a module would be left
                signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
                return
            frame = frame.f_back
        raise Started

    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda _: None)
    monkeypatch.setattr(os, "fork", start)
    before = signal.signal(signal.SIGALRM, expire)
    yield folder
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def choose_value(chosen: random.Random, parameter: Any) -> str:
    """Return a value as people get it wrong, or right, for a parameter."""
    annotation = parameter.type_descriptor.annotation
    if {"int", "float"} & set(re.findall(r"\w+", str(annotation))):
        return chosen.choice(NUMBERS)
    if get_origin(annotation) is Literal:
        return chosen.choice([*map(str, get_args(annotation)), "nothere", ""])
    numbers = NUMBERS if re.search(r"cores|time|seconds|after|weight|rate|since|memory|timeout", parameter.name) else []
    names = [*PATHS, *NAMES] if parameter.param_type_name == "argument" else [*PATHS, *NAMES, *NAMES]
    return chosen.choice(numbers or names)


def make_line(chosen: random.Random, path: tuple[str, ...], command: Any) -> list[str]:
    """Return a command line: the required arguments, most of the others, and a few options."""
    words: list[str] = []
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in {"help", "follow"}]
    for option in chosen.sample(options, min(len(options), chosen.choice([0, 1, 1, 2, 3]))):
        words.append(chosen.choice(option.opts))
        if not option.is_flag:
            words.append(choose_value(chosen, option))
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    named = [argument for argument in arguments if argument.required or chosen.random() < 0.8]
    return [*path, *words, *(choose_value(chosen, argument) for argument in named)]


def run(folder: Path, line: list[str], environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Done | None:
    """Run a command line in this process; None: it accepted its input."""
    with pytest.MonkeyPatch.context() as patch, keep_modules(folder):
        for name, value in {"SCANFLOW_HOME": str(folder / "home"), **environment}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["scanflow", *line])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"cut": [')))
        before = dict(os.environ)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        code: object = "it returned"
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        except Started:
            code = None
        except BaseException as error:  # noqa: BLE001  what a person would see as a traceback
            code = repr(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.environ.clear()
            os.environ.update(before)
    out, err = capfd.readouterr()
    return None if code is None else Done(code, out, err)


def find_problem(done: Done) -> str:
    """Return what a person would find wrong with the answer; empty: nothing."""
    text = done.out + done.err
    lines = done.err.splitlines()
    as_text = "".join(lines)
    problems = [
        (done.code not in CODES, f"exit code {done.code}"),
        ("Traceback (most recent call last)" in text, "a traceback"),
        (re.search(r"(site-packages|/lib/python3|scanflow_client/|/scanflow/\w+/)[\w/]*\.py", text), "a path of ours"),
        (done.code not in {0, 1} and not text.strip(), "no message"),
        (done.code == 2 and not HELPFUL.search(as_text), "no advice"),
        (done.code == 3 and not done.out.startswith("{") and not HELPFUL.search(text), "no advice"),
        (len(lines) > MAX_LINES, f"{len(lines)} lines"),
        (len(done.err) > MAX_CHARACTERS, f"{len(done.err)} characters"),
        (re.search(r"\bErrno\b|0x[0-9a-f]{8,}|<class ", done.err), "words of Python"),
    ]
    return ", ".join(problem for is_wrong, problem in problems if is_wrong)


def check(folder: Path, line: list[str], environment: dict[str, str], capfd: pytest.CaptureFixture[str]) -> str:
    done = run(folder, line, environment, capfd)
    problem = "" if done is None else find_problem(done)
    if not problem:
        return ""
    shown = " ".join([*(f"{name}={value}" for name, value in environment.items()), "scanflow", *map(repr, line)])
    return f"{shown:.400}: {problem}\n{done and done.err[-700:]}".encode("utf-8", "backslashreplace").decode()


def check_many(folder: Path, path: tuple[str, ...], count: int, capfd: pytest.CaptureFixture[str]) -> str:
    chosen = random.Random(" ".join(path))
    problems = []
    for number in range(count):
        environment = chosen.choice(ENVIRONMENTS) if number % 2 else {}
        problems.append(check(folder, make_line(chosen, path, COMMANDS[path]), environment, capfd))
    return "\n".join(filter(None, problems))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_wrong_command_line_is_refused_with_its_cause(
    path: tuple[str, ...], guarded_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check_many(guarded_folder, path, 2, capfd) == ""


@pytest.mark.slow
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_many_wrong_command_lines_are_refused_with_their_cause(
    path: tuple[str, ...], guarded_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check_many(guarded_folder, path, 12, capfd) == ""


@pytest.mark.processes
@pytest.mark.parametrize("line", [["--help"], ["runs"], ["plan", "app.py"], ["show", "--json"]], ids=" ".join)
@pytest.mark.parametrize("outcome", ["closed", "full"])
def test_an_output_that_cannot_be_written_shows_no_traceback(folder: Path, line: list[str], outcome: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *line],
            cwd=folder,
            env={**os.environ, "SCANFLOW_HOME": str(folder / "home")},
            stdout=full if outcome == "full" else writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=patient(120),
        )
    os.close(writer)
    if outcome == "closed":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 3
        assert done.stderr == "Error: The output cannot be used: No space left on device. Free some, and try again.\n"
