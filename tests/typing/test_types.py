"""The public API's types: mypy, strict as everywhere here, finds in ``public_api.py`` what is wrong, and only that."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
IGNORED = re.compile(r"# type: ignore\[[a-z-]+\](?=  # .)")


def mypy(*files: Path) -> subprocess.CompletedProcess[str]:
    assert importlib.util.find_spec("mypy"), "This test needs mypy. Install it: make env"
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", *map(str, files)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)


def test_the_public_api_is_typed_as_it_says_and_refuses_what_it_should(tmp_path: Path) -> None:
    source = HERE / "public_api.py"
    text = source.read_text(encoding="utf-8")
    bare = tmp_path / "without_ignores.py"
    bare.write_text(IGNORED.sub("#", text), encoding="utf-8")
    done = mypy(source, bare)
    wrong = {int(line) for line in re.findall(r"without_ignores\.py:(\d+): error:", done.stdout)}
    meant = {number for number, line in enumerate(text.splitlines(), 1) if IGNORED.search(line)}
    assert wrong == meant, done.stdout + done.stderr
    assert "public_api.py" not in done.stdout, done.stdout
    assert len(meant) >= 15
    assert text.count("type: ignore") == len(meant), "An ignore names its code and its reason."
