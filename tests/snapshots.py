"""Text that people see, kept as files: ``REGENERATE_GOLDEN=1 pytest …`` writes them again; look at the difference."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden" / "screens"


def assert_snapshot(name: str, text: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert path.is_file(), f"There is no {path.name}. Write it: REGENERATE_GOLDEN=1 pytest …"
    expected = path.read_text(encoding="utf-8")
    assert text + "\n" == expected, f"{path.name} differs. Meant? REGENERATE_GOLDEN=1 pytest …"
