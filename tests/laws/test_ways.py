"""A workflow is its calls by every way in: the command, a server, a notebook, after a kill, from the cache.

The programs are those of ``test_workflow_semantics``, many in one workflow, as a process takes longer than a step.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.local.layout import RunFolder
from scanflow.backends.memory import Memory
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.conftest import COMMAND, COMMAND_TIMEOUT_S, home_in
from tests.laws import operations
from tests.laws.strategies import draw_programs, programs
from tests.laws.workflow_programs import Call, Program, build_application, dump_programs, find_differences
from tests.nightly import CHECKOUT
from tests.notebooks import Kernel
from tests.server import ServerProcess

pytestmark = pytest.mark.processes

BATCHES = pytest.mark.parametrize(
    ("count", "number"), [(2, 0), *(pytest.param(20, number, marks=pytest.mark.slow) for number in range(1, 6))]
)
"""How many programs are tried together, and the number of the batch, which chooses them."""

APP = """
import pathlib, sys
sys.path.insert(0, {checkout!r})
from tests.laws import workflow_programs as programs
here = pathlib.Path(__file__).parent
app = programs.build_application(programs.load_programs((here / "programs.json").read_text()){more})
"""


def write_application(folder: Path, drawn: list[Program], more: str = "") -> Path:
    (folder / "programs.json").write_text(dump_programs(drawn), encoding="utf-8")
    (folder / "app.py").write_text(APP.format(checkout=str(CHECKOUT), more=more), encoding="utf-8")
    return folder


def run_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


def check(drawn: list[Program], read: Callable[[str], Any]) -> None:
    assert "\n".join(find_differences(drawn, read)) == ""


@BATCHES
def test_by_the_command(home: Path, tmp_path: Path, count: int, number: int) -> None:
    drawn = draw_programs(count, 100 + number)
    done = run_command(write_application(tmp_path, drawn), "run", "app.py")
    assert done.returncode == 0, done.stdout + done.stderr
    check(drawn, sf.Client(home=home, progress=False).output)


@BATCHES
def test_through_a_server(server: ServerProcess, count: int, number: int) -> None:
    partial = Program((0,), (Call("partial by name", (0,), "process"),))  # whose default JSON would change
    drawn = [partial, *draw_programs(count, 200 + number)]
    run = sf.Client(server.url, token=server.token, progress=False).run(build_application(drawn))
    check(drawn, run.output)


@BATCHES
@pytest.mark.parametrize("is_kept", [True, False], ids=["local", "memory"])
def test_from_the_cache_the_second_time(home: Path, count: int, number: int, is_kept: bool) -> None:
    drawn = draw_programs(count, 300 + number, programs(modes=("cached",)))
    settings = Settings(home=home)
    deployer = EmbeddedDeployer(settings, backend=None if is_kept else Memory(settings))
    runs = [deployer.run(RunRequest(build_application(drawn))) for _ in range(2)]
    client = sf.Client(home=home, backend=None if is_kept else deployer.backend, progress=False)
    for run in runs:
        check(drawn, lambda step, run=run: client.output(step, run=run.name))  # type: ignore[misc]
    if not is_kept:
        return  # it has no cache
    first, second = ({task.task: task for task in run.tasks} for run in runs)
    cached = {
        f"p{index}-s{len(program.values) + n}" for index, program in enumerate(drawn) for n in range(len(program.calls))
    }
    for name, task in second.items():
        if task.step in cached and task.state == "succeeded":
            assert task.origin == (first[name].origin or runs[0].name), (name, task.cache_note)


@BATCHES
def test_after_a_kill_the_loss_of_an_output_and_resume(home: Path, tmp_path: Path, count: int, number: int) -> None:
    drawn = draw_programs(count, 400 + number)
    killed = random.Random(number).randrange(sum(len(program.calls) for program in drawn))
    folder = write_application(tmp_path, drawn, f", wrap=programs.KillingAt(here, {killed})")
    assert run_command(folder, "run", "app.py").returncode == -signal.SIGKILL
    client = sf.Client(home=home, progress=False)
    record = client.show()
    lost = next(task.task for task in record.tasks if task.state == "succeeded")
    shutil.rmtree(RunFolder(Path(record.folder)).get_outputs_folder(lost))
    done = run_command(folder, "resume", "@latest")
    assert done.returncode == 0, done.stdout + done.stderr
    check(drawn, client.output)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("laws-notebook")
    with home_in(folder):
        started = Kernel(folder)
        yield started
        started.close()


IMPORT_PROGRAMS = """
vars(operations).update({name: value for name, value in globals().items() if name in vars(operations)})
programs.is_same = is_same
drawn = programs.load_programs(text)
import scanflow as sf
client = sf.Client(progress=False)
"""
RUN_PROGRAMS = """
run = client.run(programs.build_application(drawn))
for handle in (run, client.run(run.name)):
    differences = list(programs.find_differences(drawn, handle.output))
    assert not differences, "\\n".join(differences)
"""


@BATCHES
def test_from_a_notebook_where_the_cells_define_all_functions(kernel: Kernel, count: int, number: int) -> None:
    drawn = draw_programs(count, 600 + number)
    kernel.run(f"import sys\nsys.path.insert(0, {str(CHECKOUT)!r})")
    kernel.run("from tests.laws import operations, workflow_programs as programs")
    kernel.run(Path(operations.__file__).read_text(encoding="utf-8"))
    kernel.run(f"text = {dump_programs(drawn)!r}\n{IMPORT_PROGRAMS}")
    kernel.run(RUN_PROGRAMS)


REDEFINED = [
    "import scanflow as sf\nfrom scanflow.errors import StepFailedError\nclient = sf.Client(progress=False)",
    "@sf.step\ndef grow(x: int = 1):\n    return (x, 'first')",
    "first = grow.options(name='first').bind()",
    "@sf.step\ndef grow(x: tuple):\n    return [*x, 'second']",
    "second = grow.options(name='second').bind(first)",
    "@sf.step\ndef check(x: list):\n    raise ValueError('not yet')",
    "app = sf.Workflow(name='w', nodes=[first, second, check.bind(second)])",
    "try:\n    client.run(app)\nexcept StepFailedError:\n    pass\nelse:\n    assert False",
    "@sf.step\ndef check(x: list):\n    return tuple(x)",
    "run = client.resume()",
    "assert run.output('first') == (1, 'first'), run.output('first')",
    "assert run.output('second') == [1, 'first', 'second'], run.output('second')",
    "assert run.output('check') == (1, 'first', 'second'), run.output('check')",
]


def test_in_a_notebook_steps_call_what_a_name_was_when_they_were_bound(kernel: Kernel) -> None:
    for cell in REDEFINED:
        kernel.run(cell)
