"""What is shipped, tried: the wheel alone in an empty environment. Run it: ``python -m tests.wheel``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
EXTRAS = {
    "scanflow_serving": "serving",
    "scanflow.drift": "drift",
    "scanflow.tables": "drift",
    "scanflow.http.connections": "serving",
    "scanflow.http.tls_server": "serving",
    "scanflow.load": "serving",
    "scanflow.protos": "serving",
    "scanflow.tuning": "serving",
    "scanflow.backends.kubernetes": "kubernetes",
    "scanflow_agents": "agents",
    "scanflow_server": "server",
}
"""Packages, or single modules, that need an extra, in the order in which these are installed; the others need none."""

HELLO = """
import scanflow as sf

@sf.step
def greet(name: str) -> str:
    return f"hello, {name}"

@sf.step(in_process=True)
def shout(text: str) -> str:
    return text.upper()

greeting = greet.bind("world")
app = sf.Application(
    name="hello", team="wheel", workflows=[sf.Workflow(name="hello", nodes=[greeting, shout.bind(greeting)])]
)
"""

IMPORT_ALL = """
import importlib, pathlib, sys, warnings
warnings.simplefilter("error")
failed, names = [], []
packages, others = (words.split() for words in sys.argv[1:])
for package in packages:
    file = pathlib.Path(importlib.import_module(package).__file__)
    folder = file.parent
    assert folder.is_relative_to(sys.prefix), f"{package} was imported from {folder}, not from the wheel"
    if file.name != "__init__.py":
        names.append(package)
        continue
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join((package, *parts)).removesuffix(".__init__")
        ours = not any(f"{name}.".startswith(f"{other}.") for other in others)
        # What users' folders and experiments run and serve, and modules that are programs, are not imported.
        if ours and not {"project_templates", "tutorials", "programs", "__main__"} & {*parts}:
            names.append(name)
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (name.startswith("scanflow.testing.") and error.name in ("pytest", "lightkube")):  # for users' tests
            failed.append(f"{name}: {error}")
    except BaseException as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
if failed:
    sys.exit("\\n".join(failed))
print(f"{len(names)} modules of {' and '.join(packages)} import from the wheel")
"""


RENDER_REPORT = """
from scanflow.reports.page import render_report
from scanflow_client.formatting.screen_html import render_screen
assert "<strong>" in render_screen(["title", "line"])
assert "</html>" in render_report(title="t", events=[], versions=[])
"""
RENDER_LOGIN = """
from scanflow_server.dashboard.page_html import render
assert "</html>" in render("login", title="t", after="/", problem="", provider="")
"""


def main() -> None:
    """Build, install and use the wheel; the first thing that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        wheel = _build(folder)
        python = _install(wheel, folder / "venv")
        packages = {path.name for path in (CHECKOUT / "scanflow", *CHECKOUT.glob("*/scanflow_*")) if path.is_dir()}
        _run([python, "-I", "-c", IMPORT_ALL, " ".join(sorted(packages - set(EXTRAS))), " ".join(EXTRAS)], folder)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "hello.py").write_text(HELLO)
        scanflow = python.with_name("scanflow")
        _run([scanflow, "--help"], elsewhere, quiet=True)
        _run([scanflow, "run", "hello.py"], elsewhere)
        _run([scanflow, "init", "first"], elsewhere)
        _run([scanflow, "run", "first/app.py"], elsewhere)
        _run([python, "-I", "-c", RENDER_REPORT], elsewhere)
        _check_suggestion(scanflow, wheel, elsewhere)
        for package, extra in EXTRAS.items():
            _follow_suggestion(python, wheel, extra)
            _run([python, "-I", "-c", IMPORT_ALL, package, ""], folder)
        _run([python, "-I", "-c", RENDER_LOGIN], elsewhere)
    print(f"{wheel.name}: built, installed alone, imported and run")


def _build(folder: Path) -> Path:
    dist = CHECKOUT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", dist], CHECKOUT, quiet=True)
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist], source, quiet=True)
    (wheel,) = dist.glob("*.whl")
    return wheel


def _install(wheel: Path, venv: Path) -> Path:
    _run([_uv(), "venv", "--quiet", "--python", Path(sys.executable).resolve(), venv], CHECKOUT)
    python = venv / "bin" / "python"
    _add(python, str(wheel))
    return python


def _add(python: Path, what: str) -> None:
    lock = CHECKOUT / "requirements" / "dev.txt"
    _run([_uv(), "pip", "install", "--quiet", "--python", python, "--constraint", lock, what], CHECKOUT)


def _check_suggestion(scanflow: Path, wheel: Path, folder: Path) -> None:
    """Check that a command whose extra is missing names this wheel and this environment."""
    environment = _build_environment(folder)
    done = subprocess.run([scanflow, "up"], cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode == 0 or _format_arguments(scanflow.with_name("python"), wheel, "server") not in done.stderr:
        sys.exit(f"The wheel is not fit to ship: `scanflow up` does not say how to add the server:\n{done.stderr}")


def _follow_suggestion(python: Path, wheel: Path, extra: str) -> None:
    """Add an extra by the command that the wheel suggests, held to the locked versions."""
    code = f"from scanflow.installation import suggest_install; print(suggest_install({extra!r}))"
    command = _run([python, "-I", "-c", code], python.parent, quiet=True).strip()
    if not command.endswith(_format_arguments(python, wheel, extra)):
        sys.exit(f"The wheel is not fit to ship: {command!r} does not add the extra {extra!r} to it.")
    lock = CHECKOUT / "requirements" / "dev.txt"
    _run([*shlex.split(command), "--quiet", "--constraint", lock], CHECKOUT)


def _format_arguments(python: Path, wheel: Path, extra: str) -> str:
    return shlex.join(["pip", "install", "--python", str(python), f"scanflow-mlops[{extra}] @ {wheel.as_uri()}"])


def _uv() -> str:
    return shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "uv"


def _build_environment(folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    path = f"{Path(_uv()).parent}{os.pathsep}{os.environ['PATH']}"  # a command that is suggested may begin with uv
    return environment | {"SCANFLOW_HOME": str(folder / "home"), "PATH": path}


def _run(command: list[str | Path], folder: Path, *, quiet: bool = False) -> str:
    """Run a command and return what it printed, if it is to print nothing here."""
    environment = _build_environment(folder)
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=quiet, text=True)
    if done.returncode != 0:
        words = " ".join(Path(word).name for word in command[:3])
        sys.exit(f"{done.stderr or ''}The wheel is not fit to ship: `{words} …` exited with {done.returncode}.")
    return done.stdout or ""


if __name__ == "__main__":
    main()
