"""How many modules a reader of the path of ``scanflow run`` opens: a new layer on it is seen here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.accelerators.visible import is_driver_loaded
from tests.visited_modules import ROOT, select_modules
from tests.waiting import patient

pytestmark = pytest.mark.processes

MOST = 54  # among them one of exit codes and one of examples in the help, which the reference is made from as well
APP = """
import scanflow as sf

@sf.step
def load(count: int) -> list[int]:
    return list(range(count))

@sf.step
def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]

@sf.step
def add(numbers: list[int]) -> int:
    return sum(numbers)

loaded = load.bind(3)
doubled = double.bind(loaded)
workflow = sf.Workflow(name="sum", nodes=[loaded, doubled, add.bind(doubled)])
app = sf.Application(name="numbers", team="me", workflows=[workflow])
"""


@pytest.mark.skipif(is_driver_loaded(), reason="where there may be GPUs, a run looks for them")
def test_a_run_of_functions_on_this_machine_visits_few_modules(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    file = tmp_path / "visited.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.visited_modules", str(file), "run", str(tmp_path / "app.py")],
        cwd=ROOT,
        env={**os.environ, "SCANFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert "add = 6" in done.stdout, done.stderr
    modules = select_modules(json.loads(file.read_text()))
    assert {"scanflow/deployer/embedded.py", "scanflow/backends/local/batch/run_loop.py"} <= set(modules)
    listed = "\n".join(modules)
    assert len(modules) <= MOST, f"{len(modules)} modules are visited, {MOST} before: join them, or say why.\n{listed}"
