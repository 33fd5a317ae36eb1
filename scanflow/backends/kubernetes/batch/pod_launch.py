"""Launch a step whose command line is known before its run, without reading the application in its pod.

For a step without references, conditions, items and cache the run's ConfigMap has the options and variables. Its pod
imports only the standard library, in a tenth of the time of the application's models. Other steps, and failures, are
handled by :mod:`~scanflow.backends.kubernetes.batch.pod_task`.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.folders import Folders, begin_attempt, create_empty_folder
from scanflow.backends.kubernetes.batch.process import ProcessEnd, run_process


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
