"""Run pytest and say what became of it: `python -m tests.suite ARGUMENTS` passes them on.

A test that starts processes may fail by what else the machine does, so where it has the marker ``processes`` it is run
once more, alone and in a fresh pytest, in which no fixture is broken. Every one is named; more than three in a run fail
it. The last line counts what passed, failed and was skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

RESULT = "TEST_RESULT"
"""The variable with the path of the file that gets the result, as JSON."""

ONLY = "TEST_ONLY"
"""The variable with the only tests that pytest collects, one a line; empty: all that its arguments say."""

MAX_RERUNS = 3
TESTS_FAILED = 1
"""pytest's exit code where tests ran and some failed."""


class Failure(TypedDict):
    test: str
    reason: str
    """The first line of what failed."""
    may_rerun: bool


class Result(TypedDict):
    passed: int
    failed: list[Failure]
    skipped: dict[str, int]
    """How many tests were skipped for each reason."""
    rerun: NotRequired[list[Failure]]
    """What failed at first and passed in a fresh pytest."""


def describe_result(stats: Mapping[str, Sequence[Any]]) -> Result:
    """Return what pytest's terminal reporter has counted."""
    failed = [
        Failure(test=report.nodeid, reason=_read_reason(report), may_rerun="processes" in report.keywords)
        for kind in ("failed", "error")
        for report in stats.get(kind, ())
    ]
    reasons = Counter(_read_skip_reason(report) for report in stats.get("skipped", ()))
    return Result(passed=len(stats.get("passed", ())), failed=failed, skipped=dict(reasons))


def _read_reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr if crash is None else crash.message)
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")


def _read_skip_reason(report: Any) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def select_reruns(result: Result) -> list[str]:
    """Return the tests that get a second attempt: none where one may not have it, or where there are too many."""
    failures = {failure["test"]: failure for failure in result["failed"]}
    allowed = len(failures) <= MAX_RERUNS and all(failure["may_rerun"] for failure in failures.values())
    return list(failures) if allowed else []


def merge_results(first: Result, second: Result) -> Result:
    """Return the result of a run whose failures were run once more."""
    still = {failure["test"] for failure in second["failed"]}
    rerun = [failure for failure in first["failed"] if failure["test"] not in still]
    return Result(
        passed=first["passed"] + second["passed"], failed=second["failed"], skipped=first["skipped"], rerun=rerun
    )


def run_suite(arguments: Sequence[str]) -> tuple[int, Result]:
    """Run pytest, and once more what failed and may be; return the exit code and the result."""
    code, result = _run_pytest(arguments)
    again = select_reruns(result) if code == TESTS_FAILED else []
    if not again:
        return code, result
    print(f"\nRun once more, in a fresh pytest: {', '.join(again)}", flush=True)
    report = [f"{word.removesuffix('.xml')}-rerun.xml" for word in arguments if word.startswith("--junit-xml=")]
    code, second = _run_pytest([*arguments, "-n0", *report], only=again)
    return code, merge_results(result, second)


def _run_pytest(arguments: Sequence[str], *, only: Sequence[str] = ()) -> tuple[int, Result]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        environment = {**os.environ, RESULT: str(path), ONLY: "\n".join(only)}
        with subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=environment) as pytest:
            # An interrupt comes to pytest too, which then says what has failed until now: it is waited for.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: pytest.terminate())
            code = pytest.wait()
            signal.signal(signal.SIGINT, before)
        result: Result = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else Result(passed=0, failed=[], skipped={})
        )
        return code, result


def main(arguments: Sequence[str]) -> int:
    code, result = run_suite(arguments)
    for failure in result.get("rerun", []):
        print(f"RERUN {failure['test']}, which failed at first: {failure['reason']}")
    if path := os.environ.get(RESULT):
        Path(path).write_text(json.dumps(result), encoding="utf-8")
    skipped = sum(result["skipped"].values())
    print(f"{result['passed']} passed, {len(result['failed'])} failed, {skipped} skipped", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
