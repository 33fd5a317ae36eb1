"""What `make test` promises of itself: nothing outlives it, however it ends, and a second attempt is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers
from tests.suite import MAX_RERUNS, RESULT, Failure, Result, merge_results, select_reruns
from tests.waiting import patient, wait_until

CHECKOUT = Path(__file__).parents[2]
STORY = "tests/integration/test_running_agents_command_line.py::test_a_session_of_an_agent_that_asks_for_approval"

FLAKY = """
import pathlib, pytest

@pytest.mark.processes
def test_passes_at_the_second_attempt():
    before = pathlib.Path("before")
    if not before.exists():
        before.touch()
        assert before.read_text(), "the first attempt"

def test_passes():
    pass
"""
FAILING = """
def test_fails():
    assert not "what is wrong"
"""
HANGING = """
import os, pathlib, time

def test_fails():
    assert not "what is wrong"

def test_starts_a_detached_process_and_hangs():
    os.system("setsid sleep 600 &")
    pathlib.Path("begun").touch()
    time.sleep(600)
"""


def run_suite(folder: Path, code: str) -> subprocess.Popen[str]:
    (folder / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "tests.suite", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    options = ["-c", str(CHECKOUT / "pyproject.toml"), "--rootdir", str(folder), str(folder / "test_it.py")]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(
        [*command, *options], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_what_a_killed_run_has_started_is_found_and_ended() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", STORY]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL) as pytest_run:
        run = leftovers.identify(pytest_run.pid)
        assert run is not None

        def commands() -> str:
            return " ".join(map(leftovers.read_command, leftovers.find_processes(lambda name: name == run)))

        wait_until(
            lambda: "scanflow_server" in commands() and "scanflow_agents" in commands(), "server and agent are there"
        )
        pytest_run.send_signal(signal.SIGKILL)
        pytest_run.wait(patient(60))
    count = len(leftovers.find_processes(lambda name: name == run))
    swept = subprocess.run(
        [sys.executable, "tests/leftovers.py"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert count >= 2
    assert swept.stdout.count("Ended, left by a test run: ") >= count
    assert leftovers.find_processes(lambda name: name == run) == []


def test_what_passes_at_the_second_attempt_is_named(tmp_path: Path) -> None:
    with run_suite(tmp_path, FLAKY) as suite:
        out, _ = suite.communicate(timeout=patient(120))
    assert suite.returncode == 0, out
    assert (
        "RERUN test_it.py::test_passes_at_the_second_attempt, which failed at first: AssertionError: the first" in out
    )
    assert out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_what_starts_no_process_has_one_attempt(tmp_path: Path) -> None:
    with run_suite(tmp_path, FAILING) as suite:
        out, _ = suite.communicate(timeout=patient(120))
    assert suite.returncode == 1
    assert "Run once more" not in out
    assert out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_an_interrupted_run_says_what_failed_and_leaves_nothing(tmp_path: Path) -> None:
    with run_suite(tmp_path, HANGING) as suite:
        wait_until((tmp_path / "begun").exists, "the test has begun")
        (pytest_pid,) = leftovers.find_children(suite.pid)
        run = leftovers.identify(pytest_pid)
        os.kill(pytest_pid, signal.SIGINT)
        out, _ = suite.communicate(timeout=patient(120))
    assert suite.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "what is wrong" in out
    assert "Left by a test, and ended: sleep 600" in out
    assert leftovers.find_processes(lambda name: name == run) == []


def failure(test: str, *, may_rerun: bool = True) -> Failure:
    return Failure(test=test, reason="why", may_rerun=may_rerun)


def result(*failed: Failure, passed: int = 0) -> Result:
    return Result(passed=passed, failed=list(failed), skipped={})


def test_too_many_failures_or_one_that_has_one_attempt_keep_all_from_another() -> None:
    few = [failure(f"t{number}") for number in range(MAX_RERUNS)]
    assert select_reruns(result(*few)) == ["t0", "t1", "t2"]
    assert select_reruns(result(*few, failure("t3"))) == []
    assert select_reruns(result(*few[1:], failure("t3", may_rerun=False))) == []


def test_what_fails_again_has_failed() -> None:
    both = result(failure("a"), failure("b"), passed=5)
    merged = merge_results(both, result(failure("b"), passed=1))
    assert merged["passed"] == 6
    assert [test["test"] for test in merged["failed"]] == ["b"]
    assert [test["test"] for test in merged.get("rerun", ())] == ["a"]


def test_tests_do_not_see_where_the_result_goes() -> None:
    assert RESULT not in os.environ
