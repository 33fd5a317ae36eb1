"""What ``scanflow backup`` and ``restore`` print."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from scanflow_client.backup.restore import RestoreResult
from scanflow_client.backup.save import BackupResult
from scanflow_client.formatting.text import format_bytes
from scanflow_client.formatting.text_table import Screen


def format_backup(result: BackupResult) -> Screen:
    return [
        f"Saved {result.home}: {result.files} files, {format_bytes(result.size)}, checked.",
        f"It holds tokens and keys: keep it private. Restore it: scanflow restore {shlex.quote(result.file)} --to HOME",
    ]


def format_restore(result: RestoreResult) -> Screen:
    saved = datetime.fromtimestamp(result.created, UTC)
    return [
        f"Restored {result.home}, as it was at {saved:%Y-%m-%d %H:%M:%S} UTC.",
        f"Start it: SCANFLOW_HOME={shlex.quote(result.home)} scanflow up",
    ]
