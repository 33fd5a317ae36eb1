"""Every path that CONTRIBUTING.md names is there, so that its map leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
MADE = (".venv/", "dist/", "site/")
"""What commands make, and no checkout has."""


def find_missing_paths(text: str) -> list[str]:
    """Return the paths of a page that lead nowhere. A bare name of a file may lie beside a path of the same line."""
    missing = []
    for line in text.splitlines():
        words = [word for code in re.findall(r"`([^`]+)`", line) for word in code.split()]
        paths = [word for word in words if re.fullmatch(r"[\w.-]+/[\w./-]*", word) and not word.startswith(MADE)]
        folders = [CHECKOUT, *(CHECKOUT / path for path in paths), *((CHECKOUT / path).parent for path in paths)]
        names = [word for word in words if re.fullmatch(r"[\w-]+\.(?:py|md|toml)", word)]
        missing += [path for path in paths if not (CHECKOUT / path).exists()]
        missing += [name for name in names if not any((folder / name).is_file() for folder in folders)]
    return missing


def test_every_path_that_is_named_exists() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(re.findall(r"`tests/[\w/]+\.py`", text)) > 20
    assert find_missing_paths(text) == []


def test_a_path_that_leads_nowhere_is_named() -> None:
    text = "`tests/nowhere.py`, and `absent.py` beside it; `tests/server.py`, and `serving.py` beside it; `bash .ci/no`"
    assert find_missing_paths(text) == ["tests/nowhere.py", ".ci/no", "absent.py"]
