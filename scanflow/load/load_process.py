"""Load on a service over HTTP or gRPC, from a process of its own, with the result of every request.

::

    with LoadGenerator(LoadPlan(url=url, bodies=[body]), build_constant_rate(1000, 20).generate_arrivals()) as load:
        result = load.read_result()
    assert result.failed == 0, result.reasons

With arrivals the loop is open: a request is due at its time whether or not others were answered, and its latency counts
from then, so that a pause of the server is seen by all who would have met it (Tene's "coordinated omission" is what
happens otherwise). Without them each connection sends its next request when it has the answer to the last.
"""

from __future__ import annotations

import csv
import json
import mmap
import select
import signal
import subprocess
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scanflow.load import generator
from scanflow.load import mlperf as mlperf_program
from scanflow.load.generator import ARRIVALS, COLUMNS, PROGRESS
from scanflow.load.load_plan import LoadError, LoadPlan
from scanflow.load.mlperf import SETTINGS, SUMMARY, MlperfSettings, MlperfSummary, read_summary

__all__ = ["LoadError", "LoadGenerator", "LoadMetrics", "LoadPlan", "LoadResult"]

START_S = 60.0
"""Longest time to open the first connections."""

STALL_S = 300.0
"""Longest time that a load may take to end."""


@dataclass(frozen=True, kw_only=True)
class LoadMetrics:
    """The metrics of some of the requests. Latencies are of those that succeeded, in seconds; nan where none did."""

    requests: int
    failed: int
    seconds: float
    rate: float
    """Answered requests per second."""

    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    p999_s: float
    max_s: float


@dataclass(frozen=True, kw_only=True)
class LoadResult:
    """Every request: when it was due (``time.monotonic``), how long it took, and 0 or why it failed."""

    due: Sequence[float]
    waited: Sequence[float]
    """Time until it was sent, while no connection was free (the issue delay of thesis 4.3.2); nan: never sent."""

    took: Sequence[float]
    """Time from when it was due until it was answered, or had failed."""

    status: Sequence[int]
    """The status of the response; 0: no response. A request failed if the status is not 2xx; negative: the body
    was wrong."""

    reasons: Mapping[str, int]
    """The reasons of failures, and the number of each."""

    who: Sequence[int]
    """The instance that answered each request, by the header ``tally``: an index into ``names``; -1: unknown."""

    names: Sequence[str]
    reconnects: int
    """Connections opened again because the server had closed them between two requests."""

    mlperf: MlperfSummary | None = None
    """LoadGen's summary of its run; None: it was not a LoadGen run, or was interrupted."""

    @property
    def requests(self) -> int:
        return len(self.due)

    @property
    def failed(self) -> int:
        return sum(not 200 <= status < 300 for status in self.status)

    def write_csv(self, file: Path) -> None:
        """Write a row for each request: when it was due, how long until it was sent and answered, and the status."""
        begin = min(self.due, default=0.0)
        with file.open("w", newline="", encoding="ascii") as opened:
            rows = csv.writer(opened)
            rows.writerow(("due_s", "waited_s", "took_s", "status"))
            for due, waited, took, status in zip(self.due, self.waited, self.took, self.status, strict=True):
                rows.writerow((f"{due - begin:.6f}", f"{waited:.6f}", f"{took:.6f}", status))

    @property
    def tally(self) -> dict[str, int]:
        return {self.names[place]: count for place, count in Counter(self.who).items() if place >= 0}

    @property
    def statuses(self) -> dict[int, int]:
        return dict(Counter(abs(status) for status in self.status))

    def metrics(self) -> LoadMetrics:
        return self._metrics

    @cached_property
    def _metrics(self) -> LoadMetrics:
        return self.compute_metrics(range(len(self.due)))

    def slice_metrics(self, count: int) -> list[LoadMetrics]:
        """Return the metrics of this many equally long parts of the load, by when requests were due."""
        begin, end = min(self.due, default=0.0), max(self.due, default=0.0)
        width = max(end - begin, 1e-9) / count
        parts: list[list[int]] = [[] for _ in range(count)]
        for i, due in enumerate(self.due):
            parts[min(count - 1, int((due - begin) / width))].append(i)
        return [self.compute_metrics(part) for part in parts]

    def compute_metrics(self, chosen: Sequence[int]) -> LoadMetrics:
        """Compute the metrics of some of the requests, by their indices."""
        took = sorted(self.took[i] for i in chosen if 200 <= self.status[i] < 300)
        seconds = 0.0
        if chosen:
            seconds = max(self.due[i] + self.took[i] for i in chosen) - min(self.due[i] for i in chosen)
        return LoadMetrics(
            requests=len(chosen),
            failed=len(chosen) - len(took),
            seconds=seconds,
            rate=len(took) / seconds if seconds else 0.0,
            mean_s=sum(took) / len(took) if took else float("nan"),
            p50_s=_compute_percentile(took, 0.50),
            p90_s=_compute_percentile(took, 0.90),
            p95_s=_compute_percentile(took, 0.95),
            p99_s=_compute_percentile(took, 0.99),
            p999_s=_compute_percentile(took, 0.999),
            max_s=took[-1] if took else float("nan"),
        )


def _compute_percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank: a value that was measured, never one between two."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


class LoadGenerator:
    """A load that runs while the body of ``with`` runs."""

    def __init__(
        self,
        plan: LoadPlan,
        arrivals: Sequence[float] | None = None,
        *,
        mlperf: MlperfSettings | None = None,
        start_s: float = START_S,
    ) -> None:
        """``arrivals``: when each request is due, in seconds from the beginning, in order; ``mlperf``: LoadGen decides
        when. Neither: a closed loop, which ends after ``plan.requests`` or ``plan.duration_s``, whichever is
        first."""
        if arrivals is None and mlperf is None and plan.requests is None and plan.duration_s is None:
            raise ValueError("A load must end. Give a number of requests or of seconds.")
        self._plan, self._arrivals, self._mlperf, self._start_s = plan, arrivals, mlperf, start_s
        self._folder = tempfile.TemporaryDirectory(prefix="load-")
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._progress: mmap.mmap | None = None

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "plan.json").write_text(json.dumps(asdict(self._plan)))
        (folder / "progress").write_bytes(bytes(PROGRESS.size))
        if self._arrivals is not None:
            (folder / ARRIVALS).write_bytes(array("d", self._arrivals).tobytes())
        if self._mlperf is not None:
            (folder / SETTINGS).write_text(json.dumps(asdict(self._mlperf)))
        program = Path(str((generator if self._mlperf is None else mlperf_program).__file__))
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", program, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        with (folder / "progress").open("rb") as progress:
            self._progress = mmap.mmap(progress.fileno(), PROGRESS.size, prot=mmap.PROT_READ)
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], self._start_s)[0] or stdout.readline() != b"go\n":
            why = self._read_errors()
            self._end()
            raise LoadError(f"The load on {self._plan.url} could not be started: {why}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def progress(self) -> tuple[int, int]:
        assert self._progress is not None, "the load was not started: use it in a with statement"
        finished, failed = PROGRESS.unpack(self._progress[: PROGRESS.size])
        return finished, failed

    @property
    def over(self) -> bool:
        """Whether its process has ended: :meth:`read_result` returns at once."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def read_result(self, *, timeout_s: float = 2 * STALL_S) -> LoadResult:
        assert self._process is not None, "the load was not started: use it in a with statement"
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"The load was still running after {timeout_s:g} s.") from error
        if code != 0:
            raise LoadError(f"The load ended with exit code {code}. {self._read_errors()}")
        folder = Path(self._folder.name)
        columns: dict[str, Any] = {}
        for name, kind in COLUMNS.items():
            columns[name] = array(kind)
            columns[name].frombytes((folder / name).read_bytes())
        rest = json.loads((folder / "rest.json").read_text())
        summary, mlperf_summary = folder / SUMMARY, None
        if self._mlperf is not None and summary.exists() and not self._stopped:
            mlperf_summary = read_summary(summary.read_text(), self._mlperf.scenario)
        return LoadResult(**columns, **rest, mlperf=mlperf_summary)

    def _read_errors(self) -> str:
        return (Path(self._folder.name) / "errors").read_text(errors="replace").strip()[-500:] or "it printed no error"

    def _end(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        if self._progress is not None:
            self._progress.close()
        self._folder.cleanup()
