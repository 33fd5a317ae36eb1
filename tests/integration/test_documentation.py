"""Every Python example of the README and the documentation runs, and every YAML example is a valid application."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scanflow.app.application_files import load_yaml
from tests.conftest import COMMAND
from tests.waiting import patient

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TIMEOUT_S = patient(120)


def examples(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="Open MPI is not installed")
def test_the_first_mpi_job_runs_as_it_is_shown(home: Path, tmp_path: Path) -> None:
    """A block that begins with a file's name is that file; a command is run in the folder and prints what is below."""
    text = (ROOT / "docs" / "mpi.md").read_text(encoding="utf-8").partition("## What a job says")[0]
    printed: dict[str, str] = {}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if named := re.match(r"(?:# |/\* )(\w+\.\w+)", block):
            (tmp_path / named[1]).write_text(block)
        for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE) if language == "console" else ():
            program, *arguments = shlex.split(command)
            argv = [*(COMMAND if program == "scanflow" else [program]), *arguments]
            done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            printed[command] = done.stdout
    assert printed["scanflow mpi logs --rank 0"] == "pi is 3.141593\n"
    assert "the program is cpu-bound" in printed["scanflow mpi plan app.py:job --measure"]


@pytest.mark.slow
def test_the_readme_s_blocks_work_pasted_in_order_into_one_folder(home: Path, tmp_path: Path) -> None:
    """A block that begins with a file's name is that file; a command is run in the folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ran = 0
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", block)
            assert named, f"This block does not say which file it is: {block}"
            (tmp_path / named[1]).write_text(block)
        for command in re.findall(r"^\$ (scanflow|python) (.*)$", block, re.MULTILINE) if language == "console" else ():
            program = COMMAND if command[0] == "scanflow" else [sys.executable]
            arguments = [*program, *shlex.split(command[1], comments=True)]
            done = subprocess.run(
                arguments, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            ran += 1
    assert ran >= 7


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if examples(page, "python") and page.name != "README.md"],
    ids=lambda page: page.name,
)
def test_a_pages_python_examples_run_one_after_the_other(page: Path, home: Path, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(examples(page, "python")))
    for example in examples(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", example):
            (tmp_path / named[1]).write_text(example)
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_agents_that_are_shown_can_be_loaded(tmp_path: Path) -> None:
    for example in examples(ROOT / "docs" / "agents.md", "python"):
        if named := re.match(r"# (\w+\.py)\n", example):
            (tmp_path / named[1]).write_text(example)
    command = [sys.executable, "-m", "scanflow_agents", "strategies", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout
    assert {strategy["name"] for strategy in json.loads(done.stdout)["strategies"]} == {"count", "check_predictions"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_example_that_imports_something_imports_all_that_it_uses(page: Path) -> None:
    """Who copies one block alone has what it needs, though it is run after those before it."""
    for example in examples(page, "python"):
        if re.search(r"^(import|from) ", example, re.MULTILINE) and re.search(r"\bsf\.", example):
            assert "import scanflow as sf\n" in example, example


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page, "yaml")], ids=lambda page: page.name)
def test_a_pages_yaml_examples_are_applications(page: Path) -> None:
    for text in examples(page, "yaml"):
        assert load_yaml(text).workflows


def test_there_are_examples_to_run() -> None:
    assert sum(len(examples(page, "python")) for page in PAGES) >= 5


def test_the_first_page_links_all_others() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "index.md").read_text(encoding="utf-8")))
    pages = {
        str(page.relative_to(docs)) for folder in (".", "tasks", "coming-from") for page in (docs / folder).glob("*.md")
    }
    assert linked >= pages - {"index.md"}
