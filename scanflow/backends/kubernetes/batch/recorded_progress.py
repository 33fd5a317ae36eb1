"""The progress of a run in its ConfigMap: what homes need that did not drive it, once its Workflows are gone."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from scanflow.backends.kubernetes.batch.pod_layout import PROGRESS
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.pickles import is_inside
from scanflow.backends.run_records import RunState, TaskRecord
from scanflow.errors import InvalidError
from scanflow.files.private import create_private_folder, write_private

MAX_BYTES: Final = 300_000
"""Bytes of the compressed progress: that of more tasks is kept without them, and only by the homes that saw the run."""


class RecordedProgress(BaseModel):
    """The state of a run at the start or end of a drive."""

    model_config = ConfigDict(frozen=True)

    drive: int
    state: RunState
    """``running`` at a drive's start."""

    seconds: float | None = None
    error: str | None = None
    tasks: tuple[TaskRecord, ...] | None = None
    """None: there are too many."""

    files: Mapping[str, str] = {}
    """Small files below the folder of the run's outputs, by path: those of an MPI job, whose results are only there."""

    def pack(self) -> str:
        """Return the progress for a ConfigMap, in base64; without its tasks and files where they are too many."""
        packed = gzip.compress(self.model_dump_json(exclude_defaults=True).encode(), mtime=0)
        if len(packed) > MAX_BYTES and (self.tasks or self.files):
            return self.model_copy(update={"tasks": None, "files": {}}).pack()
        return base64.b64encode(packed).decode()

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self | None:
        """Read the progress in a run's ConfigMap; None: it has none.

        Raises:
            InvalidError: another program or version wrote it.
        """
        packed = (manifest.get("binaryData") or {}).get(PROGRESS)
        if packed is None:
            return None
        try:
            return cls.model_validate_json(gzip.decompress(base64.b64decode(packed)))
        except (ValueError, OSError, EOFError) as error:
            raise InvalidError(
                f"The progress in the ConfigMap {manifest['metadata']['name']!r} was not written by this version of "
                "scanflow. Use the version that the run was started with."
            ) from error

    def write_files(self, outputs: Path) -> None:
        """Write the files below the folder of a run's outputs."""
        for name, text in self.files.items():
            path = outputs / name
            if is_inside(path, outputs):
                create_private_folder(path.parent)
                write_private(path, text)
