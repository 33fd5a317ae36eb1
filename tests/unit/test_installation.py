"""What is said of installing an extra fits how this copy was installed, and never names another project's package."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import scanflow
from scanflow import installation
from scanflow.installation import Installation, explain_install, format_advice, format_command, suggest_install
from scanflow.settings import Settings
from scanflow_client import doctor

CHECKOUT = Path(__file__).resolve().parents[2]
PRODUCT = ("scanflow", "client", "server", "agents")
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHON = "/opt/my env/bin/python"
SUFFIXES = {".ipynb", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
FILES = {"Dockerfile", "Makefile", "cluster", "install", "leftovers", "nightly", "packages", "run"}
WHEEL = "file:///my%20files/scanflow_mlops-0.1.0-py3-none-any.whl"


def iterate_texts(*places: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file that people or machines read."""
    for place in places:
        path = CHECKOUT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            is_text = file.suffix in SUFFIXES or file.name in FILES
            if is_text and file.is_file() and "__pycache__" not in file.parts:
                yield str(file.relative_to(CHECKOUT)), file.read_text(encoding="utf-8")


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str | None) -> None:
    """Have a distribution installed in a folder that is first on the path."""
    folder = tmp_path / "scanflow_mlops-9.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: scanflow-mlops\nVersion: 9.0.0\n")
    if direct_url is not None:
        (folder / "direct_url.json").write_text(direct_url)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("direct_url", "what"),
    [
        (None, ["scanflow-mlops[local,server]"]),
        ({"url": "file:///my%20code/flow", "dir_info": {"editable": True}}, ["-e", "/my code/flow[local,server]"]),
        ({"url": "file:///code", "dir_info": {}}, ["scanflow-mlops[local,server] @ file:///code"]),
        ({"url": WHEEL, "archive_info": {}}, [f"scanflow-mlops[local,server] @ {WHEEL}"]),
        (
            {"url": "https://ada:pass@example.org/flow.git", "vcs_info": {"vcs": "git", "commit_id": "0f3c"}},
            ["scanflow-mlops[local,server] @ git+https://example.org/flow.git@0f3c"],
        ),
        (
            {"url": "https://${USER}:${PASS}@example.org/all.zip", "archive_info": {}, "subdirectory": "flow"},
            ["scanflow-mlops[local,server] @ https://${USER}:${PASS}@example.org/all.zip#subdirectory=flow"],
        ),
    ],
)
def test_the_command_takes_an_extra_from_where_the_copy_came_from(direct_url: Any, what: list[str]) -> None:
    here = Installation(direct_url=direct_url, executable=PYTHON, pip_on_path=True)
    command = format_command(here, ["local", "server"])
    assert command is not None
    assert shlex.split(command) == ["pip", "install", *what]
    if what[0] != "-e":
        requirement = Requirement(what[0])  # PEP 508
        assert (requirement.name, requirement.extras) == ("scanflow-mlops", {"local", "server"})


@pytest.mark.parametrize(
    ("here", "program"),
    [
        (Installation(executable=PYTHON, pip_on_path=True), ["pip", "install"]),
        (Installation(executable=PYTHON), [PYTHON, "-m", "pip", "install"]),
        (Installation(executable=PYTHON, has_pip=False), ["uv", "pip", "install", "--python", PYTHON]),
        (Installation(executable="/p", has_pip=False, uv="/my uv"), ["/my uv", "pip", "install", "--python", "/p"]),
    ],
)
def test_the_command_installs_into_the_environment_that_runs(here: Installation, program: list[str]) -> None:
    assert shlex.split(format_command(here, ["serving"]) or "") == [*program, "scanflow-mlops[serving]"]
    assert shlex.split(format_command(here, [], package="skops") or "") == [*program, "skops"]


def test_in_an_image_another_image_is_named_instead_of_a_command() -> None:
    wheel = f"file://{installation.IMAGE_WHEELS}/scanflow_mlops-0.1.0-py3-none-any.whl"
    here = Installation(direct_url={"url": wheel, "archive_info": {}}, executable=PYTHON)
    assert format_command(here, ["tensorflow"]) is None
    assert format_advice(here, ["tensorflow"]) == (
        "Use an image that has the extra tensorflow: name its packages in requirements= and run: scanflow build"
    )
    assert "the extras local and server: name their packages" in format_advice(here, ["local", "server"])
    assert "has skops: name it in requirements=" in format_advice(here, [], package="skops")


def test_in_the_environment_of_a_step_its_requirements_are_named_instead_of_a_command() -> None:
    here = Installation(executable=PYTHON, linked=True)
    assert format_command(here, ["tensorflow"]) is None
    assert format_advice(here, ["tensorflow"]) == (
        "Name the packages of the extra tensorflow in requirements= of the step or service."
    )
    assert format_advice(here, [], package="skops") == "Name skops in requirements= of the step or service."


def test_a_wheel_is_known_by_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, json.dumps({"url": WHEEL, "archive_info": {}}))
    assert suggest_install("serving").endswith(f" 'scanflow-mlops[serving] @ {WHEEL}'")
    assert explain_install("serving") == f"Install it: {suggest_install('serving')}"
    assert explain_install("serving", "local").startswith("Install them: ")


@pytest.mark.parametrize("direct_url", [None, "{", "[]"])
def test_a_copy_without_a_source_came_from_an_index(
    direct_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, direct_url)
    assert suggest_install("serving").endswith(" 'scanflow-mlops[serving]'")


def test_a_checkout_that_is_only_on_the_path_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "DISTRIBUTION", "no-such-distribution")
    assert shlex.split(suggest_install("serving"))[-2:] == ["-e", f"{CHECKOUT}[serving]"]


def test_packages_that_are_linked_into_an_environment_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "DISTRIBUTION", "no-such-distribution")
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "site-packages" / "scanflow" / "installation.py"))
    assert explain_install("serving").startswith("Name the packages of the extra serving in requirements=")
    assert suggest_install(package="skops").startswith("Name skops in requirements=")


@pytest.mark.parametrize("on_path", [True, False])
def test_pip_on_the_path_is_named_only_if_it_is_this_environment_s(
    on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, None)
    own, other = tmp_path / "own" / "bin", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "pip").touch(mode=0o755)
    (tmp_path / "pip.py").touch()  # this environment has it
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setattr(sys, "prefix", str(own.parent))
    monkeypatch.setenv("PATH", str(own if on_path else other))
    program = "pip" if on_path else f"{own / 'python'} -m pip"
    assert suggest_install("serving") == f"{program} install 'scanflow-mlops[serving]'"


def test_an_environment_without_pip_names_the_uv_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert suggest_install("serving").startswith(f"uv pip install --python {tmp_path}/python ")
    (tmp_path / "uv").touch(mode=0o755)  # beside the interpreter, and not on the path
    assert suggest_install("serving").startswith(f"{tmp_path}/uv pip install --python {tmp_path}/python ")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").touch(mode=0o755)
    assert suggest_install("serving").startswith(f"uv pip install --python {tmp_path}/python ")


def test_the_distribution_is_called_so_and_is_what_runs() -> None:
    assert PROJECT["name"] == installation.DISTRIBUTION == "scanflow-mlops"
    assert PROJECT["version"] == version(installation.DISTRIBUTION) == scanflow.__version__
    (command,) = entry_points(group="console_scripts", name="scanflow")
    assert command.dist is not None
    assert command.dist.name == installation.DISTRIBUTION


def test_every_python_that_is_tested_is_among_the_classifiers() -> None:
    gate = (CHECKOUT / ".github" / "workflows" / "gate.yml").read_text(encoding="utf-8")
    tested = re.findall(r'"(3\.\d+)"', gate)
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert named == tested


def test_nothing_sends_people_to_another_project_s_package() -> None:
    wrong = re.compile(r"(?<![\w-])scanflow\[[a-z]|pip install[^\n`;&]*?(?<![\w/.:-])scanflow(?![\w/.-])")
    assert wrong.search(f"pip install --upgrade {scanflow.__name__}")
    assert not wrong.search("pip install 'scanflow-mlops[serving]'; scanflow up")
    pages = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "requirements/install")
    places = (*pages, *PRODUCT, "docs", "tutorials", "deploy", "tests", ".ci", ".github")
    texts = dict(iterate_texts(*places))
    assert {"README.md", "docs/services.md", "deploy/images/base/Dockerfile", "requirements/install"} <= texts.keys()
    assert [(path, match[0]) for path, text in texts.items() for match in wrong.finditer(text)] == []


def test_the_doctor_suggests_what_fits_this_copy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    advice = {finding.what: finding.advice for finding in doctor.examine(Settings(home=home))}
    assert advice["serving"] == suggest_install("serving")
    assert advice["mlflow"] == suggest_install("local")
    assert advice["tensorflow"] == suggest_install("tensorflow")


def test_every_message_about_installing_comes_from_one_place() -> None:
    own = {"scanflow/installation.py", "scanflow/images/recipe.py", "scanflow/images/build_settings.py"}
    paths = {path for path, text in iterate_texts(*PRODUCT) if re.search(r"\bpip install\b", text)}
    assert paths - own == set()


def test_every_extra_that_a_message_names_is_one() -> None:
    extras, named = set(PROJECT["optional-dependencies"]), set[str]()
    for path, text in iterate_texts(*PRODUCT):
        if path.endswith(".py") and "_install(" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {
                    "explain_install",
                    "suggest_install",
                }:
                    named |= {str(word.value) for word in node.args if isinstance(word, ast.Constant)}
    assert len(named) > 4
    assert named - extras == set()
