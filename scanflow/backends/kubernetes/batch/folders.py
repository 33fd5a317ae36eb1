"""The folders of a step's pod, and the files that its program writes. Standard library only, for a quick start."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.log_framing import FINAL_MARK
from scanflow.files.private import write_private
from scanflow.files.walk import iterate_files
from scanflow.outputs import OUTPUTS_FOLDER

MAX_OUTPUTS: Final = 1_000
"""Characters of outputs that are reported to the engine; more are read from the claim."""

MAX_FILES_LENGTH: Final = 500
"""Characters of a list of files that is reported to the engine; more are read by a pod."""

WIDEST_LEFT: Final = 200
"""Largest fan-out whose outputs are reported to the engine."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a pod; other ones in tests."""

    outputs: Path = Path(pod_layout.OUTPUTS)
    run: Path = Path(pod_layout.RUN_FILES)
    keys: Path = Path(pod_layout.KEYS)
    app: Path = Path(pod_layout.APP)
    reported: Path = Path(pod_layout.REPORTED_FOLDER)
    store_secret: Path = Path(pod_layout.STORE_SECRET)
    store: str = ""
    """The address of the environment's outputs in an object store; empty: ``outputs`` is the claim."""

    @classmethod
    def from_environment(cls) -> Folders:
        return cls(store=os.environ.get(pod_layout.STORE_VARIABLE, ""))

    def make(self, run: str) -> Path:
        """Create the folders that a task writes to, and return that of its run's outputs."""
        base = pod_layout.locate_run_outputs(self.outputs, run)
        base.mkdir(parents=True, exist_ok=True)
        self.reported.mkdir(parents=True, exist_ok=True)
        return base

    def write_parameter(self, name: str, text: str) -> None:
        """Write an output parameter."""
        write_private(self.reported / name, text)

    def report_outputs(self, target: Path, width: int) -> None:
        """Report a task's outputs to the engine where they are small, so that reading them takes no pod."""
        folder = target / OUTPUTS_FOLDER
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        if any(name.startswith(".") for name in names) or width > WIDEST_LEFT:
            return
        outputs, remaining = {}, MAX_OUTPUTS
        for name in names:
            content = (folder / name).read_bytes()[: remaining + 1]
            if (remaining := remaining - len(content) - len(name)) < 0:
                return
            outputs[name] = content.decode("utf-8", errors="replace")
        self.write_parameter(pod_layout.OUTPUTS_PARAMETER, json.dumps(outputs))

    def list_few_files(self, target: Path, width: int) -> list[tuple[str, int]] | None:
        """Return the names and bytes of the files that a task left, for its report; None: they are too many for it."""
        files: list[tuple[str, int]] = []
        remaining = MAX_FILES_LENGTH
        for path in iterate_files(target, without=OUTPUTS_FOLDER) if width <= WIDEST_LEFT else ():
            name = path.relative_to(target).as_posix()
            if (remaining := remaining - len(name) - 20) < 0:
                return None
            files.append((name, path.stat().st_size))
        return files if width <= WIDEST_LEFT else None

    def write_report(self, text: str) -> None:
        """Write the report of a task's end, and the last mark of its log."""
        self.write_parameter(pod_layout.REPORT, text)
        sys.stdout.buffer.write(FINAL_MARK)
        sys.stdout.buffer.flush()


def begin_attempt(logs: Path, drive: int) -> bool:
    """Record that an attempt starts, and return whether it starts for the first time.

    Argo recreates a pod that was deleted before it was seen running, and its program may have begun by then.
    """
    logs.mkdir(parents=True, exist_ok=True)
    try:
        (logs / f"begun-{drive}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def create_empty_folder(folder: Path) -> None:
    """Create an output folder, without files of an earlier attempt."""
    if folder.exists():
        import shutil  # few attempts find anything, and all would wait for it

        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
