"""What takes longer than the gate allows, stage by stage: `python -m tests.nightly [STAGE...]`, or `make nightly`.

Each stage is a run of pytest of its own, with its log, junit file and result in ``.cache/nightly/TIME``. The cheap ones
come first, one that fails keeps none from running, and a table at the end says what became of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tests import leftovers
from tests.suite import RESULT, Result
from tests.waiting import PATIENCE

CHECKOUT = Path(__file__).resolve().parents[1]
SUITE = (sys.executable, "-m", "tests.suite", "-vv", "--durations=10")
FILES = "STAGE_FILES"
"""The variable with the folder for what a stage's tests leave to look at, as pictures of pages."""

SUMMARY_S = 120
"""How long a stage that was interrupted has to say what failed until then, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    marker: str
    """pytest's expression of markers."""
    limit_s: float
    """After this time it is interrupted, in seconds; multiplied by ``TEST_PATIENCE``."""
    path: str = "tests"
    runners: int = 0
    """How many tests go on side by side; 0: one after the other, in pytest's own process."""
    on_a_cluster: bool = False
    brings: str = ""
    """What ``requirements/install`` brings, in an environment of its own, beside this one's packages."""

    def command(self, report: Path) -> list[str]:
        side_by_side = ("-n", str(self.runners), "--dist", "loadscope", "--no-loadscope-reorder")
        words = [*SUITE, *(side_by_side if self.runners else ()), "-m", self.marker, f"--junit-xml={report}", self.path]
        return [str(CHECKOUT / ".ci" / "cluster"), *words] if self.on_a_cluster else words


STAGES = (
    Stage(name="benchmarks", marker="benchmark", limit_s=600),
    Stage(name="torch", marker="torch", limit_s=1200, path="tests/laws", brings="torch"),
    Stage(name="gpu", marker="gpu", limit_s=600, path="tests/device", brings="torch"),
    Stage(name="supply", marker="supply", limit_s=1800, brings="supply"),
    Stage(name="browser", marker="browser", limit_s=1200, path="tests/browser", brings="browser"),
    Stage(name="oidc", marker="oidc", limit_s=600, path="tests/oidc", brings="oidc-provider"),
    Stage(name="mpi", marker="mpi and not cluster and not cluster_slow", limit_s=1800, runners=2),
    Stage(name="slow", marker="slow and not (science or endurance or mpi or cluster)", limit_s=3600, runners=3),
    Stage(name="science", marker="science", limit_s=1800, runners=2),
    Stage(name="endurance", marker="endurance", limit_s=3600, runners=2),
    Stage(name="cluster", marker="cluster and not cluster_slow", limit_s=7200, runners=2, on_a_cluster=True),
    Stage(name="cluster-slow", marker="cluster_slow", limit_s=3600, on_a_cluster=True),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    stage: str
    seconds: float
    state: Literal["passed", "failed", "interrupted", "broken"]
    """broken: it ended without a result, as where the cluster did not come up."""
    result: Result | None


def run_stage(stage: Stage, folder: Path) -> Outcome:
    """Run a stage; its log, junit file and result are in the folder. What it has started is ended with it."""
    begun, path = time.monotonic(), folder / f"{stage.name}.json"
    with (folder / f"{stage.name}.log").open("wb") as log:
        command = stage.command(folder / f"{stage.name}.xml")
        environment = {**os.environ, RESULT: str(path), FILES: str(folder / stage.name)}
        if stage.brings:
            environment["PYTHONPATH"] = _bring(stage.brings, log)
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0
        )
        try:
            code = process.wait(stage.limit_s * PATIENCE)
        except subprocess.TimeoutExpired:
            code = _interrupt(process)
        except KeyboardInterrupt:
            _interrupt(process)
            raise
        finally:
            leftovers.end_run(os.environ[leftovers.MARK].rpartition(",")[2])
    result: Result | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    state: Literal["passed", "failed", "interrupted", "broken"]
    if result is None:
        state = "broken"
    elif code == 0:
        state = "passed"
    else:
        state = "interrupted" if code == 2 else "failed"
    return Outcome(stage=stage.name, seconds=time.monotonic() - begun, state=state, result=result)


def _bring(name: str, log: IO[bytes]) -> str:
    """Install what ``requirements/NAME.txt`` locks; return the folder of its packages.

    Where that fails the tests do, which miss them.
    """
    environment = CHECKOUT / ".cache" / name
    subprocess.run([CHECKOUT / "requirements" / "install", name, environment], stdout=log, stderr=log, check=False)
    return sysconfig.get_path("purelib", vars={"base": str(environment)})


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a stage, so that pytest still writes its summary, and kill it two minutes later; return its code."""
    for number in (signal.SIGINT, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.wait(SUMMARY_S)
        except subprocess.TimeoutExpired:
            continue
        return process.returncode
    return process.wait()


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of stages, and below it what failed, was run again, or was skipped, and why."""
    head = ("stage", "tests", "passed", "failed", "rerun", "skipped", "seconds", "")
    rows: list[tuple[str, ...]] = [head]
    notes: list[str] = []
    for outcome in outcomes:
        result = outcome.result or Result(passed=0, failed=[], skipped={})
        failed, rerun, skipped = result["failed"], result.get("rerun", []), sum(result["skipped"].values())
        counts = (result["passed"] + len(failed) + skipped, result["passed"], len(failed), len(rerun), skipped)
        rows.append((outcome.stage, *map(str, counts), f"{outcome.seconds:.0f}", outcome.state.upper()))
        notes += [f"FAILED  {test['test']}: {test['reason']:.200}" for test in failed]
        notes += [f"RERUN   {test['test']}: {test['reason']:.200}" for test in rerun]
        notes += [f"SKIPPED {outcome.stage}: {count} × {reason:.200}" for reason, count in result["skipped"].items()]
        if outcome.state in {"broken", "interrupted"}:
            notes.append(f"See the log of {outcome.stage}: it was {outcome.state}.")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *notes])


def main(names: Sequence[str]) -> int:
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        sys.stderr.write(f"No such stage: {', '.join(unknown)}. There are {', '.join(s.name for s in STAGES)}.\n")
        return 2
    leftovers.end_leftovers()
    leftovers.mark_this_process()
    folder = CHECKOUT / ".cache" / "nightly" / time.strftime("%Y%m%dT%H%M%S")
    folder.mkdir(parents=True)
    outcomes = []
    for stage in STAGES:
        if names and stage.name not in names:
            continue
        print(f"{time.strftime('%H:%M:%S')} {stage.name}: {folder / stage.name}.log", flush=True)
        outcomes.append(run_stage(stage, folder))
        (folder / "table.txt").write_text(format_table(outcomes) + "\n", encoding="utf-8")
    print(f"\n{format_table(outcomes)}")
    return int(any(outcome.state != "passed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
