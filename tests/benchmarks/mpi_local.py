"""MPI jobs on this machine: ``python -m tests.benchmarks.mpi_local overhead|hpcc|beside|containers [--rounds N]``.

``overhead``: the local launcher over bare ``mpirun``, with a program that does nothing. ``hpcc``: three of HPCC's
figures under each way to bind and cut a job (Debian's ``hpcc``). ``beside``: how slow a service is beside a job of each
profile, on cores that the joint plan chose and on the service's own. ``containers``: jobs whose ranks are in containers
of podman over the same on the machine. Contenders take turns; figures are medians, with the lowest and highest, and
ratios are of the same round. How busy the machine was is printed with each.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

import scanflow as sf
from scanflow.backends.local.mpi.claims import list_neighbours
from scanflow.backends.local.mpi.containers import build_container_command, get_runtime
from scanflow.backends.local.mpi.launcher import launch
from scanflow.backends.local.mpi.mpirun import build_command, get_launcher
from scanflow.placement.sysfs import read_topology

Sample = Mapping[str, float]
KERNELS: Final = Path(__file__).parents[2] / "tutorials" / "mpi" / "kernels.c"
NOTHING: Final = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n"
HPCC: Final = Path("/usr/bin/hpcc")
_SIZES: Final = "one\ntwo\nthree\n6 output\n1 sizes\n{size}\n1 blocks\n80\n0 mapping\n1 grids\n1\n{tasks}\n16.0\n"
HPCC_INPUT: Final = _SIZES + "\n".join("1 2 1 4 1 2 1 1 1 1 1 0 2 64 0 0 1 8 separator 0 0 0 0".split()) + "\n"
HPCC_FIGURES: Final = {
    "EP-DGEMM, GFLOP/s": "StarDGEMM_Gflops",
    "EP-STREAM Triad, GB/s": "StarSTREAM_Triad",
    "ring latency, µs": "NaturallyOrderedRingLatency_usec",
}
REQUESTS: Final = 300
SERVICE: Final = """
import numpy as np

WEIGHTS = np.random.default_rng(1).random((512, 512))


class Dense:
    def predict(self, inputs):
        values = WEIGHTS[0]
        for _ in range(20):
            values = WEIGHTS @ values
            values /= np.linalg.norm(values)
        return [[float(values[0])]]
"""


def rounds(contenders: Mapping[str, Callable[[Path], Sample]], number: int) -> dict[str, list[Sample]]:
    """Measure each contender once a round, another one first each time."""
    samples_by_contender: dict[str, list[Sample]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(number):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            with tempfile.TemporaryDirectory(prefix="mpi-") as folder:
                sample = contenders[name](Path(folder))
            samples_by_contender[name].append(sample)
            figures = ", ".join(f"{key} {value:.4g}" for key, value in sample.items())
            print(f"round {turn + 1}/{number} {name}: {figures}; load {os.getloadavg()[0]:.1f}", flush=True)
    return samples_by_contender


def table(samples_by_contender: Mapping[str, list[Sample]], *, over: str) -> None:
    """Print medians with ranges, and the median of the ratios to ``over`` of the same round."""
    keys = list(samples_by_contender[over][0])
    print("\n| | " + " | ".join(keys) + " |\n|---" + "|---" * len(keys) + "|")
    for name, samples in samples_by_contender.items():
        cells = []
        for key in keys:
            values = [sample[key] for sample in samples]
            ratios = [
                first[key] / base[key]
                for first, base in zip(samples, samples_by_contender[over], strict=True)
                if base[key]
            ]
            ratio = "" if name == over or not ratios else f", {statistics.median(ratios):.2f}×"
            cells.append(f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g}){ratio}")
        print(f"| {name} | {' | '.join(cells)} |")


@contextmanager
def at_home(folder: Path) -> Iterator[Path]:
    """Work in a home of its own, and end what it serves."""
    home, before = folder / "home", dict(os.environ)
    os.environ["SCANFLOW_HOME"] = str(home)
    client = sf.Client(progress=False)
    try:
        yield home
    finally:
        for service in client.services():
            client.delete(service.name)
        os.environ.clear()
        os.environ.update(before)


def compile_program(folder: Path, name: str, source: Path) -> Path:
    subprocess.run(["mpicc.openmpi", "-O2", "-o", name, str(source), "-lm"], cwd=folder, check=True, timeout=120)
    return folder / name


# The launcher over bare mpirun


def time_call(run: Callable[[], object]) -> Sample:
    """Return how long a call takes, and the CPU time of this process and of those that it started."""
    before, began = _cpu_s(), time.perf_counter()
    run()
    return {"ms": 1e3 * (time.perf_counter() - began), "CPU ms": 1e3 * (_cpu_s() - before)}


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(process.ru_utime + process.ru_stime for process in used)


def overhead(number: int, tasks: int) -> None:
    """Print how much longer a job takes by the launcher than by ``mpirun`` alone."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "nothing.c").write_text(NOTHING)
        program = compile_program(Path(place), "nothing", Path(place) / "nothing.c")
        job = sf.MPIWorkload(name="nothing", mainfile=str(program), n_tasks=tasks, oversubscribe=True)
        mpirun = get_launcher(None, program, name="nothing")
        argv, env = build_command(mpirun, tasks, oversubscribed=False, argv=[str(program)], root=os.geteuid() == 0)

        def bare(_: Path) -> Sample:
            return time_call(lambda: subprocess.run(argv, env={**os.environ, **env}, check=True, timeout=300))

        def run_launcher(folder: Path) -> Sample:
            os.environ["SCANFLOW_OUTPUT_DIR"] = str(folder)
            with (folder / "out").open("w") as out, redirect_stdout(out):
                return time_call(lambda: launch(job.model_dump(mode="json"), [str(program)], str(folder)))

        run_launcher(Path(tempfile.mkdtemp(dir=place)))  # its imports, which the process of a step has done before
        results = rounds({"mpirun": bare, "launcher": run_launcher}, number)
    table(results, over="mpirun")
    more = [two["ms"] - first["ms"] for first, two in zip(results["mpirun"], results["launcher"], strict=True)]
    print(f"\nmedian of the pairs' differences: {statistics.median(more):.0f} ms ({min(more):.0f} to {max(more):.0f})")


# HPCC


def hpcc(number: int, size: int) -> None:
    """Print HPCC's figures under each way to bind and cut the job."""
    ways: dict[str, dict[str, Any]] = {
        "2 tasks, any, 1×2": {"n_tasks": 2, "n_workers": 1},
        "2 tasks, cpumempin, 1×2": {"n_tasks": 2, "n_workers": 1, "affinity": "cpumempin"},
        "2 tasks, any, 2×1": {"n_tasks": 2, "n_workers": 2},
        "2 tasks, cpumempin, 2×1": {"n_tasks": 2, "n_workers": 2, "affinity": "cpumempin"},
        "4 tasks, any": {"n_tasks": 4, "n_workers": 1},
        "4 tasks, cpumempin": {"n_tasks": 4, "n_workers": 1, "affinity": "cpumempin"},
    }

    def sampler(fields: dict[str, Any]) -> Callable[[Path], Sample]:
        def sample(folder: Path) -> Sample:
            (folder / "hpccinf.txt").write_text(HPCC_INPUT.format(size=size, tasks=fields["n_tasks"]))
            job = sf.MPIWorkload(name="hpcc", mainfile=str(HPCC), oversubscribe=True, **fields)
            os.environ["SCANFLOW_OUTPUT_DIR"] = str(folder / "outputs")
            os.chdir(folder)
            with (folder / "out").open("w") as out, redirect_stdout(out):
                launch(job.model_dump(mode="json"), [str(HPCC)])
            text = (folder / "hpccoutf.txt").read_text()
            return {
                key: float(re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)[0]) for key, name in HPCC_FIGURES.items()
            }

        return sample

    results = rounds({name: sampler(fields) for name, fields in ways.items()}, number)
    table({name: samples for name, samples in results.items() if name.startswith("2")}, over="2 tasks, any, 1×2")
    table({name: samples for name, samples in results.items() if name.startswith("4")}, over="4 tasks, any")


# Ranks in containers (thesis 3.3)


def containers(number: int, image: str) -> None:
    """Print how long jobs take on the machine and in containers, launching included, and their own time alone."""
    kernels = {"cpu": ("dgemm", 400), "memory": ("stream", 200), "network": ("ring", 20_000)}
    with tempfile.TemporaryDirectory() as place:
        folder, runtime = Path(place), get_runtime("podman", name="kernels")
        program = compile_program(folder, "kernels", KERNELS)
        for profile, (kernel, turns) in kernels.items():
            argv = [str(program), "--kernel", kernel, "--rounds", str(turns)]
            ways = {"machine": argv, "podman": build_container_command("podman", runtime, image, argv, str(folder))}
            job = sf.MPIWorkload(name=kernel, mainfile=str(program), n_tasks=2, oversubscribe=True, flavor="openmpi")

            def sampler(inside: Sequence[str], job: sf.MPIWorkload = job) -> Callable[[Path], Sample]:
                def sample(place: Path) -> Sample:
                    os.environ["SCANFLOW_OUTPUT_DIR"] = str(place)
                    with (place / "out").open("w") as out, redirect_stdout(out):
                        timing = time_call(lambda: launch(job.model_dump(mode="json"), inside, str(place)))
                    (own,) = re.findall(r"([0-9.]+) s \(", (place / "out").read_text())
                    return {"whole job, ms": timing["ms"], "its program, ms": 1e3 * float(own)}

                return sample

            print(f"\n{profile}: {kernel}")
            table(rounds({name: sampler(inside) for name, inside in ways.items()}, number), over="machine")


# A service beside a job


def compare_beside_jobs(number: int) -> None:
    """Print a service's latency alone, beside jobs on cores of their own, and beside jobs on its own core."""
    kernels = {"cpu": "dgemm", "memory": "stream", "network": "ring"}
    with tempfile.TemporaryDirectory() as place, at_home(Path(place)) as home:
        folder = Path(place)
        compile_program(folder, "kernels", KERNELS)
        (folder / "dense.py").write_text(SERVICE)
        serve = sf.Service(name="dense", implementation="dense.py:Dense", resources=sf.Resources(cpu=1), affinity="cpu")
        app = sf.Application(
            name="beside", app_dir=folder, workflows=[sf.Workflow(name="serve", type="online", nodes=[serve])]
        )
        client = sf.Client(progress=False)
        client.deploy(app, "serve")
        (service,) = list_neighbours(home)
        free = [cpu for cpu in read_topology().effective_cpus if cpu not in service.cpus]

        def latency() -> Sample:
            taken = list[float]()
            for _ in range(REQUESTS):
                began = time.perf_counter()
                client.predict("serve", [[1.0]])
                taken.append(1e3 * (time.perf_counter() - began))
            taken.sort()
            return {"p50, ms": statistics.median(taken), "p95, ms": taken[int(0.95 * len(taken))]}

        def with_job(kernel: str, cpus: Sequence[int], tasks: int) -> Callable[[Path], Sample]:
            def sample(_: Path) -> Sample:
                program = [str(folder / "kernels"), "--kernel", kernel, "--rounds", "1000000"]
                mpirun = get_launcher(None, folder / "kernels", name=kernel)
                argv, env = build_command(mpirun, tasks, oversubscribed=True, argv=program, root=os.geteuid() == 0)
                bound = ["taskset", "-c", ",".join(map(str, cpus)), *argv]
                job = subprocess.Popen(bound, env={**os.environ, **env}, stdout=subprocess.DEVNULL)
                try:
                    threading.Event().wait(2.0)  # its ranks have begun
                    assert job.poll() is None, f"{kernel} ended before it was measured"
                    return latency()
                finally:
                    job.terminate()
                    job.wait(30)

            return sample

        latency()
        ways: dict[str, Callable[[Path], Sample]] = {"alone": lambda _: latency()}
        for profile, kernel in kernels.items():
            tasks = 2 if kernel == "ring" else 1
            ways[f"{profile}, a core of its own"] = with_job(kernel, free, tasks)
            ways[f"{profile}, the service's core"] = with_job(kernel, service.cpus, tasks)
        results = rounds(ways, number)
    table(results, over="alone")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mpi_local", description=__doc__)
    parser.add_argument("what", choices=["overhead", "hpcc", "beside", "containers"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=2, help="of the program that does nothing")
    parser.add_argument("--size", type=int, default=1000, help="of HPCC's matrix")
    parser.add_argument("--image", help="of containers: with this machine's Open MPI, as podman names it")
    chosen = parser.parse_args()
    if shutil.which("mpicc.openmpi") is None:
        parser.error("Open MPI is not installed: apt-get install openmpi-bin libopenmpi-dev")
    if chosen.what == "overhead":
        overhead(chosen.rounds, chosen.tasks)
    elif chosen.what == "containers":
        containers(chosen.rounds, chosen.image or parser.error("containers needs --image"))
    elif chosen.what == "hpcc":
        hpcc(chosen.rounds, chosen.size)
    else:
        compare_beside_jobs(chosen.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
