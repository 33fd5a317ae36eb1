"""The program in a step's pod.

Run as ``python -m scanflow.backends.kubernetes.batch.pod_step STEP [--index 3]``, or with ``--signals STEP ...`` to
report the signals of ended steps. It needs no access to the cluster: all it reads and writes is in its folders. It
imports only the standard library at its start, which every step waits for.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from scanflow.accelerators.visible import HOLDER_VARIABLE
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.folders import Folders, begin_attempt, create_empty_folder
from scanflow.backends.kubernetes.batch.pod_process import ProcessEnd, run_process


def run_step(folders: Folders, step: str, index: int | None, *, retry: int, before: Mapping[str, int]) -> int:
    """Run a task, and return the exit code of its pod.

    Args:
        folders: The folders of the pod.
        step: The step's name.
        index: The task's index in a fan-out.
        retry: Its failures in this Workflow.
        before: Attempts in earlier Workflows of the run, by task.
    """
    is_plain = index is None and not retry and not folders.store and HOLDER_VARIABLE not in os.environ
    launch = read_launch(folders, step) if is_plain else None
    if launch is not None:
        return _launch(launch, folders, 1 + before.get(step, 0))
    from scanflow.backends.kubernetes.batch.pod_task import Pod

    return Pod(folders).run(step, index, retry=retry, before=before)


def _launch(launch: StepLaunch, folders: Folders, attempt: int) -> int:
    try:
        end = launch.start(folders, attempt)
        if end is not None and end.succeeded:
            folders.write_report(end.to_json())
            return 0
        problem = None
    except Exception as error:  # noqa: BLE001  whatever it is, the run's record is to say it
        traceback.print_exc()
        end, problem = None, error
    from scanflow.backends.kubernetes.batch import task_report
    from scanflow.backends.kubernetes.batch.pod_task import finish

    if problem is not None:
        return finish(folders, task_report.build_error_report(problem))
    return finish(folders, task_report.POD_DELETED if end is None else task_report.build_process_report(end))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one task of a run, in its pod.")
    parser.add_argument("step", nargs="?")
    parser.add_argument("--index", type=int)
    parser.add_argument("--retry", type=int, default=0)
    parser.add_argument("--before", type=json.loads, default={})
    parser.add_argument("--signals", nargs="*")
    arguments = parser.parse_args()
    if arguments.signals is None:
        sys.exit(
            run_step(
                Folders.from_environment(),
                arguments.step,
                arguments.index,
                retry=arguments.retry,
                before=arguments.before,
            )
        )
    from scanflow.backends.kubernetes.batch.pod_task import Pod

    Pod(Folders.from_environment()).report_signals(arguments.signals)


class StepLaunch(NamedTuple):
    """The command line of one step, with its environment."""

    run: str
    drive: int
    step: str
    mainfile: str
    options: list[str]
    variables: Mapping[str, str]
    timeout_s: float | None
    has_retries: bool

    def start(self, folders: Folders, attempt: int) -> ProcessEnd | None:
        """Run the step; None: it has already been started, and must not run twice."""
        target = folders.make(self.run) / self.step
        logs = pod_layout.locate_attempt_logs(folders.outputs, self.run, self.step, attempt)
        if not begin_attempt(logs, self.drive) and not self.has_retries:
            return None
        create_empty_folder(target)
        argv = [sys.executable, str(folders.app / self.mainfile), *self.options]
        variables = {**os.environ, **self.variables}
        end = run_process(argv, cwd=folders.app, env=variables, timeout_s=self.timeout_s, logs=logs)
        if end.succeeded:
            folders.report_outputs(target, 1)
        return end._replace(files=folders.list_few_files(target, 1))


def read_launch(folders: Folders, step: str) -> StepLaunch | None:
    """Return the launch of a step; None: its application has to be read, or its file is in another folder."""
    plain, packed = (folders.run / name for name in (pod_layout.LAUNCHES, pod_layout.PACKED_LAUNCHES))
    if packed.exists():
        document: dict[str, Any] = json.loads(gzip.decompress(packed.read_bytes()))
    elif plain.exists():
        document = json.loads(plain.read_text(encoding="utf-8"))
    else:
        return None
    fields = document["steps"].get(step)
    if fields is None or not (folders.app / fields["mainfile"]).is_file():
        return None
    return StepLaunch(run=document["run"], drive=document["drive"], step=step, **fields)


if __name__ == "__main__":
    main()
