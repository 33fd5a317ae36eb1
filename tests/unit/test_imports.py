"""Importing is quick and does nothing, whichever module comes first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import patient

pytestmark = pytest.mark.processes

CHECKOUT = Path(__file__).resolve().parents[2]
ARITHMETIC = ("scanflow.drift", "scanflow.tables")
PACKAGES = {"scanflow": CHECKOUT / "scanflow", **{name: CHECKOUT / name.replace(".", "/") for name in ARITHMETIC}} | {
    path.name: path for path in sorted(CHECKOUT.glob("*/scanflow_*")) if (path / "__init__.py").exists()
}

HEAVY = frozenset(
    {"fastapi", "kubernetes", "matplotlib", "mlflow", "numpy", "pandas", "scipy", "sklearn", "sqlalchemy", "tensorflow"}
)
"""Libraries that cost tenths of a second or are not installed with scanflow alone."""

OWN = {
    "scanflow.drift": {"numpy", "scipy"},
    "scanflow.tables": {"numpy", "pandas"},
    "scanflow_agents": {"numpy"},
    "scanflow_server": {"fastapi", "sqlalchemy"},
    "scanflow_serving": {"numpy"},
}
"""What a program, or a part of the library that is all arithmetic, is made of may come along with its modules."""

WATCHED = """
import builtins, importlib, importlib.util, json, os, sys, threading
before = set(os.listdir("."))
heavy, loaded, names = json.loads(sys.argv[1])
for name in loaded:
    importlib.import_module(name)
heavy = set(heavy) - {module.partition(".")[0] for module in sys.modules}
told = {"circles": [], "heavy": []}
original = builtins.__import__

def watch(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if importer.startswith("scanflow"):
        base = importlib.util.resolve_name("." * level + name, globals["__package__"])
        for wanted in (base, *(f"{base}.{part}" for part in fromlist or ())):
            spec = getattr(sys.modules.get(wanted), "__spec__", None)
            if getattr(spec, "_initializing", False) and not f"{importer}.".startswith(f"{wanted}."):
                told["circles"].append(f"{importer} imports {wanted}")
        if base.partition(".")[0] in heavy:
            told["heavy"].append(f"{importer} imports {base}")
    return original(name, globals, locals, fromlist, level)

builtins.__import__ = watch
for name in names:
    importlib.import_module(name)
told["brought"] = sorted({module.partition(".")[0] for module in sys.modules} & heavy)
told["threads"] = threading.active_count() - 1
told["files"] = sorted(set(os.listdir(".")) - before)
print(json.dumps(told))
"""
"""Where no module imports one that is still being imported, each can be imported first, and so alone."""


def modules(package: str) -> list[str]:
    """Return every module of a package by its dotted name; ``__main__`` and ``programs`` are for running, not for
    importing."""
    modules_ = []
    for path in sorted(PACKAGES[package].rglob("*.py")):
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        if not {"__pycache__", "programs"} & {*parts} and parts[-1] != "__main__":
            modules_.append(".".join((package, *parts)).removesuffix(".__init__"))
    return [name for name in modules_ if package != "scanflow" or not name.startswith(ARITHMETIC)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported_alone_and_brings_nothing_heavy(package: str, tmp_path: Path) -> None:
    text = json.dumps([sorted(HEAVY), sorted(OWN.get(package, ())), modules(package)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WATCHED, text],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"HOME": str(tmp_path), "SCANFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=patient(300),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"circles": [], "heavy": [], "brought": [], "threads": 0, "files": []}


def test_importing_scanflow_loads_no_part_of_it() -> None:
    code = "import sys, scanflow; print(*sorted(m for m in sys.modules if m.startswith(('scanflow', 'pydantic'))))"
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=patient(120), check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["scanflow"]


def test_the_names_of_scanflow_all_resolve() -> None:
    code = "import scanflow; [getattr(scanflow, name) for name in scanflow.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=patient(120), check=True)


ASK_FOR_AN_ENVIRONMENT = """
from pathlib import Path
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.step_environment import find_prepared_environment
find_prepared_environment(Path("nowhere"), "shop", "data")
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import scanflow_serving.routes, prometheus_client",
            "pydantic mlflow tensorflow sklearn pandas grpc yaml onnxruntime",
        ),
        ("import scanflow.transport.server_client, scanflow.backends.kubernetes.cluster", "httpx httpcore rich click"),
        (ASK_FOR_AN_ENVIRONMENT, "mlflow sqlalchemy httpx2 requests scanflow.knowledge.memory"),
    ],
    ids=["the core of an instance", "calls to servers and to a cluster", "asking whether an environment is prepared"],
)
def test_what_is_to_stay_small_brings_none_of_the_large_libraries(code: str, absent: str) -> None:
    code += f"\nimport sys\nprint(*set({absent.split()}) & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(120), check=True
    )
    assert done.stdout == "\n"
