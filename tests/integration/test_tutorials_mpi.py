"""The tutorials of MPI jobs, run as their readers run them: the script, the notebook's cells, and the 20 jobs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scanflow_research.simulation.twenty_jobs import generate_thesis_jobs
from tests.server import ServerProcess
from tests.waiting import patient

TUTORIALS = Path(__file__).parents[2] / "tutorials"

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(shutil.which("mpicc") is None, reason="no MPI is installed")]


@pytest.fixture
def tutorials(tmp_path: Path, home: Path) -> Path:
    for name in ("mpi", "scheduler"):
        shutil.copytree(TUTORIALS / name, tmp_path / name)
    command = ["mpicc", "-O2", "-o", "kernels", "kernels.c", "-lm"]
    subprocess.run(command, cwd=tmp_path / "mpi", check=True, timeout=patient(120))
    return tmp_path


def ran(folder: Path, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=patient(280))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def test_listing_6_1_submits_sixteen_tasks(tutorials: Path) -> None:
    assert re.search(r"^[a-z]+-[a-z]+-\d+: succeeded$", ran(tutorials / "mpi", "submit.py"), re.MULTILINE)


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tutorials: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tutorials / "mpi")
    notebook = json.loads(Path("mpi.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}

    async def cells() -> None:  # on a loop that runs already, as in Jupyter
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                code = compile("".join(cell["source"]), "mpi.ipynb", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if inspect.iscoroutine(result := eval(code, names)):
                    await result

    asyncio.run(cells())
    assert names["run"].state == "succeeded"
    printed = capsys.readouterr().out
    assert "16 tasks in 16 workers on 4 nodes: the program is cpu-bound" in printed
    assert "[0] dgemm: 16 ranks, 40 rounds" in printed


def test_the_twenty_jobs_wait_in_the_servers_queue_run_and_end(
    tutorials: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(home)
    server.start()
    monkeypatch.setenv("SCANFLOW_URL", server.url)
    try:
        lines = ran(tutorials / "scheduler", "twenty.py", "1000").splitlines()
    finally:
        server.close()
    jobs = [line.split() for line in lines if line.endswith("succeeded")]
    assert [job[0] for job in jobs] == [job.name for job in generate_thesis_jobs()]
    assert all(
        float(waiting) + float(running) == pytest.approx(float(all_), abs=0.02) for _, waiting, running, all_, _ in jobs
    )
    assert max(float(waiting) for _, waiting, *_ in jobs) > 1, "they were submitted within 2 seconds, and all at once"
    assert re.fullmatch(r"makespan [\d.]+ s", lines[-1])
