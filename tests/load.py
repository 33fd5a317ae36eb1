"""Load on an HTTP service, from a process of its own, with every request's fate on record. For tests and benchmarks.

::

    with steady_load(url, body, connections=8, requests=20_000, rate=1000) as load:
        load.wait_for(5_000)
        load.mark("swap")
        ...
        load.mark("swapped")
        result = load.result()
    before, during, after = result.around("swap", "swapped")
    assert result.failed == 0, result.reasons

With a ``rate`` the loop is open: request ``i`` is due at ``start + i / rate`` whether or not others were answered, and
its latency counts from then, so that a pause of the server is seen by all who would have met it. Without one each
connection sends its next request when it has the answer to the last.
"""

from __future__ import annotations

import base64
import json
import mmap
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import load_program
from tests.load_program import PROGRESS, LoadError, Plan
from tests.waiting import patient

__all__ = ["Figures", "LoadError", "Result", "SteadyLoad", "steady_load"]

START_S = patient(120)
"""Longest that opening the first connections may take."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What became of some of the requests. Latencies are of those that succeeded, in seconds; nan where none did."""

    requests: int
    failed: int
    seconds: float
    rate: float
    """Answered requests a second."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """Every request: when it was due (``time.monotonic``), how long it took, and 0 or why it failed."""

    due: Sequence[float]
    took: Sequence[float]
    status: Sequence[int]
    """The status that came; 0: none did. A request failed if it is not 2xx, or negated, if the body was not right."""

    reasons: Mapping[str, int]
    """Why requests failed, and how many of each."""

    who: Sequence[int]
    """Who answered each, by the header that was asked for: a place in ``names``; -1: it did not say."""

    names: Sequence[str]
    reconnects: int
    """Connections opened anew because the server had closed one between two requests."""

    marks: Mapping[str, float]

    @property
    def requests(self) -> int:
        return len(self.due)

    @property
    def failed(self) -> int:
        return sum(not 200 <= status < 300 for status in self.status)

    @property
    def tally(self) -> dict[str, int]:
        return {self.names[place]: count for place, count in Counter(self.who).items() if place >= 0}

    @property
    def statuses(self) -> dict[int, int]:
        return dict(Counter(abs(status) for status in self.status))

    def figures(self) -> Figures:
        return self._of(range(len(self.due)))

    def around(self, begin: str, end: str) -> tuple[Figures, Figures, Figures]:
        """Return the figures before, during and after what happened between two marks.

        ``before`` was answered when it began, ``after`` was due when it had ended, and ``during`` is all the rest.
        """
        first, last = self.marks[begin], self.marks[end]
        before = [i for i, due in enumerate(self.due) if due + self.took[i] < first]
        after = [i for i, due in enumerate(self.due) if due >= last]
        apart = {*before, *after}
        return self._of(before), self._of([i for i in range(len(self.due)) if i not in apart]), self._of(after)

    def _of(self, chosen: Sequence[int]) -> Figures:
        took = sorted(self.took[i] for i in chosen if 200 <= self.status[i] < 300)
        seconds = 0.0
        if chosen:
            seconds = max(self.due[i] + self.took[i] for i in chosen) - min(self.due[i] for i in chosen)
        return Figures(
            requests=len(chosen),
            failed=len(chosen) - len(took),
            seconds=seconds,
            rate=len(took) / seconds if seconds else 0.0,
            mean_s=sum(took) / len(took) if took else float("nan"),
            p50_s=_percentile(took, 0.50),
            p95_s=_percentile(took, 0.95),
            p99_s=_percentile(took, 0.99),
            max_s=took[-1] if took else float("nan"),
        )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank: a value that was measured, never one between two."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


class SteadyLoad:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._folder = tempfile.TemporaryDirectory(prefix="load-")
        self._process: subprocess.Popen[bytes] | None = None
        self._marks: dict[str, float] = {}
        self._progress: mmap.mmap | None = None

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        (folder / "plan.json").write_text(json.dumps(asdict(self._plan)))
        (folder / "progress").write_bytes(bytes(PROGRESS.size))
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", load_program.__file__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        with (folder / "progress").open("rb") as progress:
            self._progress = mmap.mmap(progress.fileno(), PROGRESS.size, prot=mmap.PROT_READ)
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], START_S)[0] or stdout.readline() != b"go\n":
            why = self._errors()
            self._end()
            raise LoadError(f"No load could be made on {self._plan.url}: {why}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def mark(self, name: str) -> float:
        self._marks[name] = time.monotonic()
        return self._marks[name]

    @property
    def progress(self) -> tuple[int, int]:
        assert self._progress is not None, "the load was not started: use it in a with statement"
        finished, failed = PROGRESS.unpack(self._progress[: PROGRESS.size])
        return finished, failed

    def wait_for(self, requests: int, *, timeout_s: float = patient(300)) -> None:
        """Return when so many requests were finished since the load began.

        Raises:
            LoadError: they were not within ``timeout_s``, or the load ended before.
        """
        until, pause = time.monotonic() + timeout_s, threading.Event()
        while self.progress[0] < requests:
            assert self._process is not None
            ended = self._process.poll() is not None
            if self.progress[0] < requests and (ended or time.monotonic() > until):
                raise LoadError(f"{self.progress[0]} of {requests} requests were finished. {self._errors()}")
            pause.wait(0.01)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def result(self, *, timeout_s: float = patient(600)) -> Result:
        assert self._process is not None, "the load was not started: use it in a with statement"
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"The load still ran after {timeout_s:g} s.") from error
        if code != 0:
            raise LoadError(f"The load ended with {code}. {self._errors()}")
        folder = Path(self._folder.name)
        due, took, status, who = array("d"), array("d"), array("h"), array("h")
        for name, column in (("due", due), ("took", took), ("status", status), ("who", who)):
            column.frombytes((folder / name).read_bytes())
        rest = json.loads((folder / "rest.json").read_text())
        return Result(due=due, took=took, status=status, who=who, **rest, marks=dict(self._marks))

    def _errors(self) -> str:
        return (Path(self._folder.name) / "errors").read_text(errors="replace").strip()[-500:] or "it said nothing"

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


def steady_load(
    url: str,
    body: bytes | str | None = None,
    *,
    connections: int = 8,
    requests: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = patient(60),
    expect: str | None = None,
    tally: str | None = None,
    cpus: Sequence[int] = (),
) -> SteadyLoad:
    """Return a load of ``requests`` requests, or of ``duration_s`` seconds, whichever ends first; for ``with``.

    ``cpus`` are the only ones that it may run on. See :class:`Plan` for the rest.
    """
    if requests is None and duration_s is None:
        raise ValueError("Say how many requests or how many seconds: a load has an end.")
    content = body.encode() if isinstance(body, str) else body or b""
    return SteadyLoad(
        Plan(
            url=url,
            method=method or ("GET" if body is None else "POST"),
            body=base64.b64encode(content).decode(),
            headers={**({} if body is None else {"content-type": "application/json"}), **(headers or {})},
            connections=connections,
            requests=requests,
            duration_s=duration_s,
            rate=rate,
            timeout_s=timeout_s,
            expect=expect,
            tally=tally,
            cpus=tuple(cpus),
        )
    )
