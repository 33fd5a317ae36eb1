"""Task records from exit records, tracebacks and start-up errors."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import TaskRecord, TaskState
from scanflow.errors import ScanflowError
from scanflow.names import StepName
from scanflow.processes.shims import Exit
from scanflow.text.failures import TAIL_BYTES, Failure, parse_failure

_OWN_FOLDER = str(Path(__file__).parents[3])  # the library's: its frames are not the user's


def describe_process_failure(exit_: Exit, folder: Path, timeout_s: float | None) -> Failure:
    text = _read_tail(folder / "stderr.log")
    if exit_.reason == "lost" and (shim_error := _read_tail(folder / "shim.error")):
        text = shim_error
    return parse_failure(text, summary=_summarize(exit_, timeout_s), own_folder=_OWN_FOLDER)


def describe_function_failure(trace: str) -> Failure:
    return parse_failure(trace, summary="raised", own_folder=_OWN_FOLDER)


def describe_refusal(error: ScanflowError) -> Failure:
    """Return the failure of a task that could not be started."""
    return Failure(summary="could not start", cause=str(error))


def build_task_record(
    step: str,
    task: StepName,
    failure: Failure | None,
    *,
    attempts: int = 0,
    exit_: Exit | None = None,
    seconds: float | None = None,
) -> TaskRecord:
    state: TaskState = "succeeded" if failure is None else "failed"
    if exit_ is None:
        began = None if seconds is None else time.time() - seconds
        return TaskRecord(
            task=task, step=step, state=state, attempts=attempts, began=began, seconds=seconds, failure=failure
        )
    cpu_s = None if exit_.user_s is None or exit_.system_s is None else exit_.user_s + exit_.system_s
    return TaskRecord(
        task=task,
        step=step,
        state="stopped" if exit_.reason == "stopped" else state,
        attempts=attempts,
        began=exit_.began,
        seconds=exit_.seconds,
        exit_code=exit_.exit_code,
        cpu_s=cpu_s,
        max_rss_bytes=exit_.max_rss_bytes,
        failure=failure,
    )


def _summarize(exit_: Exit, timeout_s: float | None) -> str:
    if exit_.reason == "timeout":
        return f"timed out after {format_duration(timeout_s or exit_.seconds or 0)}"
    if exit_.reason == "stopped":
        return "stopped"
    if exit_.reason == "lost":
        return "lost: its shim was killed, so its exit status is unknown"
    if exit_.signal is not None:
        hint = (
            ", by another process, or by the kernel because no memory was left"
            if exit_.signal == signal.SIGKILL
            else ""
        )
        return f"killed by {signal.Signals(exit_.signal).name}{hint}"
    return f"exit code {exit_.exit_code}"


def _read_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
