"""Folders of files, written and read back whole: what contract suites compare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ODD_NAMES = (
    "weights.bin",
    "naïve läyer.txt",
    "数据/表 1.csv",
    "deep/er/and-deeper/x+y=z@1,2;3(4)[5]{6}'7'&8.txt",
    ".hidden",
)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
