"""Measurement of figures: runs their experiments, saves each round, resumes after an interrupt, and evaluates."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import scanflow
from scanflow.errors import ScanflowError, UsageError
from scanflow_research.experiment import Experiment, read_cpu_field
from scanflow_research.figure import VERDICTS, Figure, FigureResult, Measurements, Round, evaluate


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The results of figures, with their experiments and the machine."""

    results: tuple[FigureResult, ...]
    experiments: tuple[Experiment, ...]
    """The experiments of the figures."""

    machine: str
    began: float
    """In seconds since 1970."""

    interrupted: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of figures by verdict."""
        counts = Counter[str](result.verdict for result in self.results)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    def summary(self) -> dict[str, Any]:
        """Return the reproduction in JSON types, without the rounds."""
        return {
            "machine": self.machine,
            "began": self.began,
            "interrupted": self.interrupted,
            "verdicts": self.counts,
            "figures": [
                {
                    "name": result.figure.name,
                    "source": result.figure.source,
                    "title": result.figure.title,
                    "verdict": result.verdict,
                    "reason": result.reason,
                    "simulated": result.simulated,
                    "claims": [
                        {
                            "statement": finding.claim.statement,
                            "published": finding.claim.published,
                            "measured": finding.measured,
                            "verdict": finding.verdict,
                        }
                        for finding in result.findings
                    ],
                }
                for result in self.results
            ],
        }


@dataclass
class ReproductionStudy:
    """Runs experiments, in a folder with their rounds."""

    folder: Path
    experiments: Mapping[str, Experiment]
    observe: Callable[[str], None] = lambda _text: None
    print: Callable[[str], None] = lambda _text: None
    """Called with a line at the end of an experiment."""

    rounds: int | None = None
    """Rounds of each experiment; None: its own default."""

    clock: Callable[[], float] = time.monotonic
    _left_s: dict[str, float] = field(default_factory=dict)

    def run(self, figures: Sequence[Figure]) -> Reproduction:
        """Run the experiments of figures. An interrupt ends it, and no round is lost.

        Raises:
            UsageError: the folder has measurements of another machine or another version.
        """
        names = list(dict.fromkeys(figure.experiment for figure in figures if figure.experiment))
        needed = [self.experiments[name] for name in names]
        began = self._check_folder()
        measured: dict[str, Measurements] = {}
        self._left_s = {
            experiment.name: self._count_rounds(experiment) * experiment.round_s
            for experiment in needed
            if experiment.find_problem() is None
        }
        interrupted = False
        for experiment in needed:
            try:
                measured[experiment.name] = self._measure(experiment)
            except KeyboardInterrupt:
                interrupted = True
                break
            self._left_s.pop(experiment.name, None)
        nothing = Measurements(problem="Not measured: the command was interrupted.")
        results = []
        for figure in figures:
            problem = Measurements(problem=figure.untested)
            own = measured.get(figure.experiment, nothing) if figure.experiment else problem
            simulated = bool(figure.experiment) and self.experiments[figure.experiment].simulated
            results.append(evaluate(figure, own, simulated=simulated))
        return Reproduction(
            results=tuple(results),
            experiments=tuple(needed),
            machine=describe_machine(),
            began=began,
            interrupted=interrupted,
        )

    def _count_rounds(self, experiment: Experiment) -> int:
        return experiment.rounds if self.rounds is None else self.rounds

    def _check_folder(self) -> float:
        """Return the start time of the folder's measurements; raise if they are of another machine or version."""
        file, own = self.folder / "machine.json", {"machine": describe_machine(), "scanflow": scanflow.__version__}
        if file.exists():
            recorded = json.loads(file.read_text(encoding="utf-8"))
            if {name: recorded.get(name) for name in own} != own:
                raise UsageError(
                    f"{str(self.folder)!r} has measurements of {recorded.get('machine')} with scanflow "
                    f"{recorded.get('scanflow')}. Name another folder: --out"
                )
            return float(recorded["began"])
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.time()
        file.write_text(json.dumps({**own, "began": began}) + "\n", encoding="utf-8")
        return began

    def _measure(self, experiment: Experiment) -> Measurements:
        problem = experiment.find_problem()
        if problem is not None:
            self.print(f"– {experiment.name}: {problem}")
            return Measurements(problem=problem)
        rounds = self._read_rounds(experiment)
        count, began, first = self._count_rounds(experiment), self.clock(), len(rounds)
        if first < count:
            try:
                with experiment.open(
                    lambda text: self._report_progress(experiment, len(rounds), count, text)
                ) as measure_round:
                    while len(rounds) < count:
                        self._report_progress(experiment, len(rounds), count, "")
                        rounds.append(measure_round(len(rounds)))
                        self._write_rounds(experiment, rounds)
                        mean_s = (self.clock() - began) / (len(rounds) - first)
                        self._left_s[experiment.name] = mean_s * (count - len(rounds))
            except ScanflowError as error:
                self.print(f"✗ {experiment.name}: {error}")
                return Measurements(rounds=tuple(rounds), problem=f"The experiment failed: {error}")
        self.print(f"✓ {experiment.name}: {count} rounds, {self.clock() - began:.0f} s")
        return Measurements(rounds=tuple(rounds[:count]))

    def _report_progress(self, experiment: Experiment, rounds: int, count: int, text: str) -> None:
        left_s = sum(self._left_s.values())
        remaining = f"about {left_s / 60:.0f} min left" if left_s >= 60 else f"about {left_s:.0f} s left"
        doing = f": {text}" if text else ""
        self.observe(f"{experiment.name}, round {min(rounds + 1, count)} of {count}{doing}; {remaining}")

    def _read_rounds(self, experiment: Experiment) -> list[Round]:
        file = self._locate_file(experiment)
        if not file.exists():
            return []
        return [Round(**part) for part in json.loads(file.read_text(encoding="utf-8"))]

    def _write_rounds(self, experiment: Experiment, rounds: Sequence[Round]) -> None:
        file = self._locate_file(experiment)
        new = file.with_suffix(".new")
        new.write_text(json.dumps([asdict(part) for part in rounds]), encoding="utf-8")
        new.replace(file)  # whole or not at all

    def _locate_file(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.name}.json"


def describe_machine() -> str:
    """Return the CPU, its cores and NUMA nodes, the memory and the system, in a line."""
    from scanflow.placement.sysfs import read_topology

    machine, cpu = read_topology(), read_cpu_field("model name") or platform.machine()
    nodes = f"{len(machine.nodes)} NUMA node{'' if len(machine.nodes) == 1 else 's'}"
    memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    return (
        f"{cpu}, {machine.effective_count} cores, {nodes}, {memory}, {platform.system()} {os.uname().release}, "
        f"Python {platform.python_version()}"
    )
