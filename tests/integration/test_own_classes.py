"""Values of the user's own classes, read after their run, where the application's files are not loaded yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.waiting import patient

pytestmark = pytest.mark.processes

PRICES = """
import math
from dataclasses import dataclass

@dataclass
class Prices:
    rows: list[float]
"""
APP = """
import math
import scanflow as sf
{imported}

@sf.step
def load():
    return Prices([1.5, math.nan])

workflow = sf.Workflow(name="w", nodes=[load.bind()])
"""


@pytest.mark.parametrize(
    "name", ["app.py", "platform.py"]
)  # the latter is also one of the standard library that we import
@pytest.mark.parametrize("imported", [PRICES, "from models import Prices"])
def test_a_value_of_an_own_class_is_printed(tmp_path: Path, cli: Cli, name: str, imported: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "models.py").write_text(PRICES)
    (folder / name).write_text(APP.format(imported=imported))
    assert cli("run", f"project/{name}").returncode == 0
    assert cli("output").stdout == 'load = "Prices(rows=[1.5, nan])"\n'
    assert json.loads(cli("output", "--json").stdout) == {"rows": [1.5, None]}


def test_a_value_of_an_own_class_is_returned_to_a_program(tmp_path: Path, cli: Cli, home: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(imported=PRICES))
    assert cli("run", "app.py").returncode == 0
    code = "import scanflow as sf; print(sf.Client().output('load').rows[0])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=patient(120), stdin=subprocess.DEVNULL, check=False
    )
    assert done.stdout == "1.5\n", done.stderr


def test_a_class_that_is_no_longer_there_is_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "app.py").write_text(APP.format(imported=PRICES))
    assert cli("run", "app.py").returncode == 0
    (tmp_path / "app.py").write_text("")
    done = cli("output")
    assert done.returncode == 2
    assert "AttributeError: Can't get attribute 'Prices'" in done.stderr
    assert "run the step again" in done.stderr
    assert len(done.stderr.splitlines()) == 1
