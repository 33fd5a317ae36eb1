"""A step's pod: where it finds things, and what its program leaves there. Standard library only, so that it starts at
once."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scanflow.backends.kubernetes.batch import layout
from scanflow.backends.kubernetes.batch.framing import LAST
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.private import write_private

MOST_LEFT: Final = 1_000
"""Characters of outputs that are told to the engine; more are read from the claim."""

WIDEST_LEFT: Final = 200
"""Tasks of a fan-out whose outputs are told to the engine."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a pod finds things; elsewhere in tests."""

    outputs: Path = Path(layout.OUTPUTS)
    run: Path = Path(layout.RUN_FILES)
    keys: Path = Path(layout.KEYS)
    app: Path = Path(layout.APP)
    reported: Path = Path(layout.REPORTED)

    def make(self, run: str) -> Path:
        """Make the folders that a task writes to, and return that of its run's outputs."""
        base = layout.outputs_of(self.outputs, run)
        base.mkdir(parents=True, exist_ok=True)
        self.reported.mkdir(parents=True, exist_ok=True)
        return base

    def tell(self, name: str, text: str) -> None:
        """Write an output parameter."""
        write_private(self.reported / name, text)

    def tell_outputs(self, target: Path, width: int) -> None:
        """Tell the engine what a task left, where that is little and plain: whoever asks need not go to the claim."""
        folder = target / OUTPUTS_FOLDER
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        if any(name.startswith(".") for name in names) or width > WIDEST_LEFT:
            return
        left, room = {}, MOST_LEFT
        for name in names:
            content = (folder / name).read_bytes()[: room + 1]
            if (room := room - len(content) - len(name)) < 0:
                return
            left[name] = content.decode("utf-8", errors="replace")
        self.tell(layout.LEFT, json.dumps(left))

    def tell_report(self, text: str) -> None:
        """Write how a task ended, and end its log."""
        self.tell(layout.REPORT, text)
        sys.stdout.buffer.write(LAST)
        sys.stdout.buffer.flush()


def begin_attempt(logs: Path, drive: int) -> bool:
    """Note that an attempt begins, and say whether it does for the first time.

    Argo makes a pod again that is gone before it was seen to run, and its program may have begun by then.
    """
    logs.mkdir(parents=True, exist_ok=True)
    try:
        (logs / f"begun-{drive}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def empty_folder(folder: Path) -> None:
    """Make an output folder, without what an earlier attempt left."""
    if folder.exists():
        import shutil  # few attempts find anything, and all would wait for it

        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
