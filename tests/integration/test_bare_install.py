"""The wheel alone in an empty environment: how large it is with what it needs, and what can be done with that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import release
from tests.waiting import patient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT_BYTES = 60_000_000
"""Of packages and their byte code, as the file system counts blocks."""

NEEDS = {
    "up": "server",
    "demo": "local,tensorflow,server,agents",
    "models": "local",
    "drift check app.py app.py": "drift",
    "pki init": "server",
    "--backend kubernetes runs": "kubernetes",
}
"""Commands that need an extra, and which."""


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "SCANFLOW_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=patient(300),
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, at the locked versions, and with byte code as pip writes it."""
    folder = tmp_path_factory.mktemp("bare")
    wheel = release.build(release.CHECKOUT, folder, "wheel", epoch=release.read_commit_time())
    uv, lock = (sys.executable, "-m", "uv"), release.CHECKOUT / "requirements" / "dev.txt"
    python = folder / "venv" / "bin" / "python"
    for words in (
        ("venv", "--python", str(Path(sys.executable).resolve()), str(folder / "venv")),
        (
            "pip",
            "install",
            "--link-mode=copy",
            "--compile-bytecode",
            f"--python={python}",
            f"--constraint={lock}",
            wheel,
        ),
    ):
        installed = run(*uv, *words, folder=folder)
        assert installed.returncode == 0, installed.stderr
    return folder / "venv"


def test_the_bare_install_is_small(environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    sizes: dict[str, int] = {}
    for path in packages.rglob("*"):
        name = path.relative_to(packages).parts[0]
        sizes[name] = sizes.get(name, 0) + path.lstat().st_blocks * 512
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    assert sum(sizes.values()) <= LIMIT_BYTES, f"{sum(sizes.values()):,} bytes; the largest: {largest}"


def test_workflows_run_and_other_commands_name_their_extra(environment: Path, tmp_path: Path) -> None:
    scanflow = environment / "bin" / "scanflow"
    for words in (["--help"], ["init"], ["check"], ["run"], ["show"]):
        assert (words, run(scanflow, *words, folder=tmp_path).returncode) == (words, 0)
    for line, extras in NEEDS.items():
        result = run(scanflow, *line.split(), folder=tmp_path)
        assert (line, result.returncode) == (line, 2), result.stderr
        assert f"[{extras}]" in result.stderr
