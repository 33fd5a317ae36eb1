"""The benchmarks of DESIGN section 6 that a laptop can run, and how each contender is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks import programs
from tests.benchmarks.measure import Benchmark, Metric, Places, Sampler, Section, run_for_report, wall_s, watch

Command = Sequence[str | Path]

STEPS = 40
TASKS = 200
WIDE = 1000
WIDE_PROCESSES = 100


WORK = Section(
    group="work",
    title="Workflows, beside Metaflow and Prefect",
    columns=("Scanflow", "Metaflow", "Prefect", "bare Python"),
)


def _wall(command: Command, program: str | None = None) -> Sampler:
    def sample(folder: Path) -> Mapping[str, float]:
        if program is not None:
            (folder / "flow.py").write_text(program)
        return {"wall_s": wall_s(command, folder)}

    return sample


def _sample_program(python: Path, program: str) -> Sampler:
    def sample(folder: Path) -> Mapping[str, float]:
        (folder / "nothing.py").write_text("pass\n")
        (folder / "flow.py").write_text(program)
        return run_for_report([python, folder / "flow.py"], folder)

    return sample


def _marginal(command: Command, program: Callable[[int], str], short: int, bare: Command | None = None) -> Sampler:
    """Measure what one more step costs: a long run less a short one, a step, less a bare Python process where given."""

    def sample(folder: Path) -> Mapping[str, float]:
        seconds = {}
        (folder / "nothing.py").write_text("pass\n")
        for length in (short, short + STEPS):
            (folder / "flow.py").write_text(program(length))
            seconds[length] = wall_s(command, folder)
        step = (seconds[short + STEPS] - seconds[short]) / STEPS
        return {"over_ms": (step - _bare_s(bare, folder)) * 1000}

    return sample


def _bare_s(bare: Command | None, folder: Path) -> float:
    if bare is None:
        return 0.0
    return sum(wall_s(bare, folder) for _ in range(STEPS)) / STEPS


def suite(places: Places) -> list[Benchmark]:
    bare: Command = [places.python, "-c", "pass"]
    scanflow: Command = [places.ours / "scanflow", "run", "flow.py"]
    metaflow: Command = [places.peer_python, "flow.py", "run", "--max-workers", "2"]
    work = partial(Benchmark, section=WORK)
    return [
        work(
            name="help",
            metrics=[Metric("wall_s", "the command's `--help`", "s", bar=0.3)],
            contenders={
                "Scanflow": _wall([places.ours / "scanflow", "--help"]),
                "Metaflow": _wall([places.peer_python, "flow.py", "--help"], programs.metaflow_chain(3)),
                "Prefect": _wall([places.peers / "prefect", "--help"]),
                "bare Python": _wall([places.python, "-c", "pass"]),
            },
            how="`scanflow --help`; `python flow.py --help` (Metaflow); `prefect --help`; `python -c pass`",
            rounds=11,
        ),
        work(
            name="import",
            metrics=[Metric("wall_s", "`import`, the whole process", "s", bar=0.15)],
            contenders={
                "Scanflow": _wall([places.python, "-c", "import scanflow"]),
                "Metaflow": _wall([places.peer_python, "-c", "import metaflow"]),
                "Prefect": _wall([places.peer_python, "-c", "import prefect"]),
                "bare Python": _wall([places.python, "-c", "pass"]),
            },
            how="`python -c 'import scanflow'`, and likewise. Scanflow and Prefect load their parts at first use",
            rounds=11,
        ),
        work(
            name="import-in-use",
            metrics=[Metric("wall_s", "`import` of what a flow's file uses, the whole process", "s")],
            contenders={
                "Scanflow": _wall([places.python, "-c", "from scanflow import Application, Client, Workflow, step"]),
                "Metaflow": _wall([places.peer_python, "-c", "from metaflow import FlowSpec, step"]),
                "Prefect": _wall([places.peer_python, "-c", "from prefect import flow, task"]),
            },
            how=(
                "`from scanflow import Application, Client, Workflow, step`; `from metaflow import FlowSpec, step`; "
                "`from prefect import flow, task`"
            ),
            rounds=11,
        ),
        work(
            name="hello",
            metrics=[Metric("wall_s", "hello world: three steps, empty home folder", "s", bar=1.0)],
            contenders={
                "Scanflow": _wall(scanflow, programs.scanflow_steps(3)),
                "Metaflow": _wall([places.peer_python, "flow.py", "run"], programs.metaflow_chain(3)),
                "Prefect": _wall([places.peer_python, "flow.py"], programs.prefect_hello()),
            },
            how=(
                "`scanflow run flow.py`, `python flow.py run` (Metaflow), `python flow.py` (Prefect, which starts a "
                "temporary server). Scanflow's and Metaflow's steps are processes, Prefect's are function calls"
            ),
        ),
        work(
            name="subprocess-step",
            metrics=[Metric("over_ms", "one more step in a process of its own, over `python -c pass`", "ms", bar=15)],
            contenders={
                "Scanflow": _marginal(scanflow, programs.scanflow_scripts, 1, bare),
                "Scanflow, `@sf.step`": _marginal(scanflow, programs.scanflow_steps, 1, bare),
                "Metaflow": _marginal([places.peer_python, "flow.py", "run"], programs.metaflow_chain, 3, bare),
            },
            how=(
                f"a chain of steps, one {STEPS} longer, the difference divided by {STEPS}, less the mean of {STEPS} "
                "runs of `python -c pass` in the same round. Scanflow's step is an executor with a script that does "
                "nothing; `@sf.step` is a function that hands a number on, as Metaflow's step is"
            ),
        ),
        work(
            name="in-process-step",
            metrics=[Metric("step_ms", "one more step in the runner's process", "ms", bar=3)],
            contenders={
                "Scanflow": _sample_program(places.python, programs.scanflow_chain(TASKS)),
                "Prefect": _sample_program(places.peer_python, programs.prefect_chain(TASKS)),
            },
            how=(
                f"a chain of {TASKS} more `@sf.step(in_process=True)` steps, or of {TASKS} `@task` calls timed inside "
                f"their flow; inside one process, after a first run, divided by {TASKS}"
            ),
            rounds=3,
        ),
        work(
            name="fan-out",
            metrics=[Metric("fan_out_s", f"fan-out of in-process steps over {WIDE:,} items", "s", bar=10)],
            contenders={
                "Scanflow": _sample_program(places.python, programs.scanflow_fan_out(WIDE)),
                "Prefect": _sample_program(places.peer_python, programs.prefect_fan_out(WIDE)),
            },
            how=f"`.map` over a list of {WIDE:,}, timed inside one process after a first run",
            rounds=3,
            warm_up=False,
        ),
        work(
            name="fan-out-processes",
            metrics=[Metric("wall_s", f"fan-out over {WIDE_PROCESSES} items, each a process", "s")],
            contenders={
                "Scanflow": _wall(scanflow, programs.scanflow_map(WIDE_PROCESSES)),
                "Metaflow": _wall(metaflow, programs.metaflow_fan_out(WIDE_PROCESSES)),
            },
            how="`scanflow run flow.py` with `.map`; `python flow.py run --max-workers 2` with `foreach`; all of it",
            rounds=3,
            warm_up=False,
        ),
        work(
            name="large",
            metrics=[
                Metric("plan_s", "10,000 steps: build, validate and plan", "s", bar=2),
                Metric("plan_mib", "the same: highest memory of the process", "MiB", bar=150),
            ],
            contenders={
                "Scanflow": _sample_program(places.python, programs.scanflow_dag(100, 100)),
                "Scanflow, one chain": _sample_program(places.python, programs.scanflow_dag(10_000, 1)),
            },
            how=(
                "100 layers of 100 executors, each after two of the one before; a chain of 10,000. "
                "`sf.Client().plan(app)`"
            ),
        ),
        _demo(places),
    ]


def _demo(places: Places) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        copy = folder / "scanflow"
        _copy_checkout(places.checkout, copy)
        own = {"SCANFLOW_HOME": str(folder / "home"), "PYTHON": str(Path(sys.executable).resolve())}
        # The package cache is the person's own, and warm: the environment under .venv was made from it.
        environment = {
            name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"}
        }
        return watch(["make", "demo"], copy, extra={**environment, **own}, timeout_s=600)

    return Benchmark(
        section=WORK,
        name="demo",
        metrics=[
            Metric("seconds", "`make demo` in a new clone, packages already downloaded", "s", bar=180),
            Metric("mib", "the same: highest memory of all its processes", "MiB", bar=3072),
        ],
        contenders={"Scanflow": sample},
        how="`make demo` in a copy of the tracked files, sampled every 0.2 s",
        rounds=3,
        warm_up=False,
    )


def _copy_checkout(checkout: Path, copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (checkout / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, copy / name)
