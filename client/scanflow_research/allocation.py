"""CPUs, memory limits and numbers of containers (Wang et al., Container Resource Allocation versus Performance of
Data-intensive Applications on Different Cloud Servers)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from scanflow.characterization.characterization_study import rotate
from scanflow_research.experiment import Experiment, MeasureRound, Observe, find_core_problem
from scanflow_research.experiment_service import PROGRAMS
from scanflow_research.figure import Round

MOVED_MEBIBYTES = 2048
MODEL_MEBIBYTES = 192
NEEDED_MEBIBYTES = 224
"""The memory that the program needs, including Python's; with less, it is killed."""

LIMITS = {"2.3 times what it needs": 2.3, "1.5 times": 1.5, "1.1 times": 1.1, "0.8 times": 0.8}
TIMEOUT_S = 120.0


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    from scanflow.characterization.characterization_study import choose_placements, describe_placement
    from scanflow.characterization.measured_program import find_memory_group_problem, run_program
    from scanflow.characterization.measurement import Placement, ProgramRun
    from scanflow.placement.sysfs import read_topology

    machine = read_topology()
    cores = machine.effective_count
    everywhere = Placement(cpus=machine.effective_cpus)
    counts = [count for count in (1, 2, 3, 4, 5) if count <= cores]
    places = {describe_placement(place): place for place in choose_placements(machine, counts)}
    if "2 cores" in places and all(len({core.cpus for core in machine.cores}) >= 2 for _ in places):
        places["2 cores, separate caches"] = places.pop("2 cores")  # one choice only: cores of their own
    python = [sys.executable, str(PROGRAMS / "transfer.py")]

    def run(words: Sequence[str], place: Placement, limit_mebibytes: float | None = None) -> ProgramRun:
        limit = None if limit_mebibytes is None else int(limit_mebibytes * 2**20)
        return run_program([*python, *words], place, timeout_s=TIMEOUT_S, limit_bytes=limit)

    def measure_move(place: Placement) -> dict[str, float]:
        done = run(["move", str(MOVED_MEBIBYTES)], place)
        gigabits = MOVED_MEBIBYTES * 2**20 * 8 / 1e9 / done.seconds
        return {"gigabits_per_s": gigabits, "switches": float(done.voluntary_switches + done.involuntary_switches)}

    def measure_limit(times: float) -> dict[str, float]:
        done = run(["recognize", str(MODEL_MEBIBYTES)], everywhere, times * NEEDED_MEBIBYTES)
        killed = float(done.outcome == "out of memory")
        return {"killed": killed} if killed else {"killed": killed, "recognition_s": done.seconds}

    def measure_count(count: int) -> dict[str, float]:
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda _: _recognize(python), range(count)))
        return {"together_mebibytes_per_s": count * MODEL_MEBIBYTES / (time.monotonic() - began)}

    def measure_round(number: int) -> Round:
        arms: dict[str, dict[str, float]] = {}
        for name in rotate(["any core", *places], number):
            observe(f"moving data, {name}")
            arms[name] = measure_move(places.get(name, everywhere))
        if find_memory_group_problem() is None:
            for name in rotate(list(LIMITS), number):
                observe(f"a memory limit of {name}")
                arms[name] = measure_limit(LIMITS[name])
        for name, count in (("1 program", 1), ("one for each core", cores), ("four for each core", 4 * cores)):
            observe(f"programs at once: {name}")
            arms[name] = measure_count(count)
        return Round(arms=arms)

    yield measure_round


def _recognize(python: Sequence[str]) -> None:
    import subprocess

    subprocess.run([*python, "recognize", str(MODEL_MEBIBYTES)], check=True, timeout=TIMEOUT_S)


EXPERIMENT = Experiment(
    name="allocation",
    method=(
        f"A program that sends {MOVED_MEBIBYTES} MiB over four pairs of sockets and checks them, in place of SOS, on "
        f"any cores and on some; one that fills {MODEL_MEBIBYTES} MiB and reads them, in place of Kaldi, in control "
        "groups with more and less memory; and several of these at once. On this machine, without containers' file "
        "systems."
    ),
    rounds=4,
    round_s=40.0,
    find_problem=find_core_problem,
    open=open_rounds,
)
