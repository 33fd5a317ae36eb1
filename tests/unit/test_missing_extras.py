"""A command that needs a package which is not installed says which extra brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import patient

pytestmark = pytest.mark.processes

WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None\nfrom scanflow_client.cli.main import main; main()"


def run_without(package: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *arguments],
        cwd=folder,
        env={**os.environ, "SCANFLOW_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=patient(120),
    )


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("numpy", "drift", ("drift", "check", "a.csv", "a.csv")),
        ("cryptography", "server", ("pki", "init")),
        ("lightkube", "kubernetes", ("--backend", "kubernetes", "runs")),
    ],
)
def test_a_missing_package_is_an_error_that_names_its_extra(
    tmp_path: Path, package: str, extra: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n2\n")
    result = run_without(package, *arguments, folder=tmp_path)
    assert result.returncode == 2
    assert f"needs {package}, which is not installed" in result.stderr
    assert f"[{extra}]" in result.stderr


def test_a_package_that_no_extra_brings_is_a_defect(tmp_path: Path) -> None:
    result = run_without("scanflow_client.formatting.run_text", "runs", folder=tmp_path)
    assert result.returncode == 4
