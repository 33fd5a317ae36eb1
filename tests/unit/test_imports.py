"""Importing is quick and does nothing: each module alone, in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = {"scanflow": CHECKOUT / "scanflow"} | {
    path.name: path for path in sorted(CHECKOUT.glob("*/scanflow_*")) if (path / "__init__.py").exists()
}

HEAVY = frozenset(
    {"fastapi", "kubernetes", "matplotlib", "mlflow", "numpy", "pandas", "scipy", "sklearn", "sqlalchemy", "tensorflow"}
)
"""Libraries that cost tenths of a second or are not installed with scanflow alone."""

OWN = {
    "scanflow_agents": {"fastapi", "numpy"},
    "scanflow_server": {"fastapi", "sqlalchemy"},
    "scanflow_serving": {"numpy"},
}
"""What a program is made of may come along with its modules."""

LIGHT = [
    *"asyncio concurrent.futures difflib httpx logging multiprocessing secrets typing zoneinfo".split(),
    *"pydantic.main pydantic.root_model pydantic.type_adapter".split(),  # pydantic itself loads them when first used
]
"""What nearly every module needs anyway. It is loaded once, so that looking at hundreds of modules takes seconds."""

ALONE = """
import importlib, json, os, sys, threading
before = set(os.listdir("."))
heavy, loaded, names = json.loads(sys.argv[1])
for name in loaded:
    importlib.import_module(name)
heavy = set(heavy) - {module.partition(".")[0] for module in sys.modules}
for name in names:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        told = {}
        try:
            importlib.import_module(name)
        except BaseException as error:
            told["error"] = f"{type(error).__name__}: {error}"
        told["heavy"] = sorted({module.partition(".")[0] for module in sys.modules} & heavy)
        told["threads"] = threading.active_count() - 1
        told["files"] = sorted(set(os.listdir(".")) - before)
        with os.fdopen(theirs, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        print(json.dumps([name, json.load(pipe)]), flush=True)
    os.waitpid(child, 0)
"""


def modules() -> list[str]:
    """Return every module of ours by its dotted name; ``__main__`` is for running, not for importing."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if "__pycache__" not in parts and parts[-1] != "__main__":
                found.append(".".join((package, *parts)).removesuffix(".__init__"))
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Import each module in a process of its own, forked from an interpreter that has none of ours."""
    folder = tmp_path_factory.mktemp("alone")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found: dict[str, dict[str, object]] = {}
    for package in PACKAGES:
        own = OWN.get(package, set())
        names = [name for name in modules() if name.partition(".")[0] == package]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", ALONE, json.dumps([sorted(HEAVY), [*LIGHT, *sorted(own)], names])],
            cwd=folder,
            env=variables | {"HOME": str(folder), "SCANFLOW_HOME": str(folder / "home")},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        found |= dict(json.loads(line) for line in done.stdout.splitlines())
    return found


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_alone_and_brings_nothing_heavy(name: str, told: dict[str, dict[str, object]]) -> None:
    assert told[name] == {"heavy": [], "threads": 0, "files": []}


def test_importing_scanflow_loads_no_part_of_it() -> None:
    code = "import sys, scanflow; print(*sorted(m for m in sys.modules if m.startswith(('scanflow', 'pydantic'))))"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["scanflow"]


def test_the_names_of_scanflow_all_resolve() -> None:
    code = "import scanflow; [getattr(scanflow, name) for name in scanflow.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60, check=True)
