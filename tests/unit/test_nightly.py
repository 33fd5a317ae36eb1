"""The nightly run: which tests its stages take, and what its table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import leftovers, nightly
from tests.nightly import STAGES, Outcome, Stage, format_table, main, run_stage
from tests.suite import Failure, Result

RESULT = Result(
    passed=7,
    failed=[Failure(test="tests/a.py::test_a", reason="AssertionError: no", may_rerun=True)],
    rerun=[Failure(test="tests/b.py::test_b", reason="TimeoutError", may_rerun=True)],
    skipped={"helm is not installed": 2},
)


def test_the_table_has_a_row_for_each_stage_and_names_what_failed_was_run_again_and_skipped() -> None:
    failed = Outcome(stage="mpi", seconds=61.4, state="failed", result=RESULT)
    broken = Outcome(stage="cluster", seconds=3, state="broken", result=None)
    assert format_table([failed, broken]).splitlines() == [
        "stage    tests  passed  failed  rerun  skipped  seconds",
        "mpi      10     7       1       1      2        61       FAILED",
        "cluster  0      0       0       0      0        3        BROKEN",
        "",
        "FAILED  tests/a.py::test_a: AssertionError: no",
        "RERUN   tests/b.py::test_b: TimeoutError",
        "SKIPPED mpi: 2 × helm is not installed",
        "See the log of cluster: it was broken.",
    ]


def test_every_marker_of_long_tests_has_a_stage() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (line,) = (line for line in makefile.splitlines() if line.startswith("GATE := not ("))
    left_out = line.removeprefix("GATE := not (").removesuffix(")").split(" or ")
    assert {marker for marker in left_out if not any(marker in stage.marker.split() for stage in STAGES)} == set()


@pytest.mark.processes
def test_a_stage_that_takes_too_long_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    monkeypatch.setattr(Stage, "command", lambda _stage, _report: [sys.executable, "-c", code])
    monkeypatch.setattr(nightly, "PATIENCE", 1)
    monkeypatch.setenv(leftovers.MARK, "")
    run = leftovers.mark_this_process()
    outcome = run_stage(Stage(name="endless", marker="", limit_s=1), tmp_path)
    assert (outcome.state, outcome.result) == ("broken", None)
    assert leftovers.find_processes(lambda name: name == run) == []


def test_an_unknown_stage_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mip"]) == 2
    assert "No such stage: mip. There are benchmarks, torch, gpu, supply, browser, oidc, mpi" in capsys.readouterr().err
