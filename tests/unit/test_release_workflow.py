"""The workflows of CI call what exists, and use each action by its major version."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
TOOLS = {"gh", "mkdir", "mv"}
"""Programs that the machines of CI have."""


def read_steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def list_targets() -> set[str]:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    return {name for line in re.findall(r"^([a-z][a-z -]*):(?!=)", makefile, re.MULTILINE) for name in line.split()}


def find_problem(command: str) -> str | None:
    """Return what does not exist in a line of a step; None: all does."""
    for part in command.split(" && "):
        program, *words = shlex.split(part)
        if program == "make":
            unknown = {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)} - list_targets()
            if unknown:
                return f"no target {', '.join(unknown)}"
        elif program == "bash" or program.startswith(".ci/"):
            script = CHECKOUT / (words[0] if program == "bash" else program)
            if not (script.is_file() and os.access(script, os.X_OK)):
                return f"no program {script.name}"
        elif program not in TOOLS:
            return f"no program {program}"
    return None


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.stem))
def test_each_step_of_a_workflow_calls_what_exists(file: Path) -> None:
    steps = read_steps(file)
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    assert commands
    assert {command: find_problem(command) for command in commands} == dict.fromkeys(commands)
    actions = [step["uses"] for step in steps if "uses" in step]
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action)] == []


@pytest.mark.parametrize("command", ["make relaese-files", ".ci/absent 1", "mkdir a && twine upload a"])
def test_a_step_that_calls_what_does_not_exist_is_found(command: str) -> None:
    assert find_problem(command) is not None


def test_a_release_waits_for_the_gate_and_its_jobs_may_only_do_their_part() -> None:
    workflow = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # "on" is a truth value in YAML 1.1
    assert all("gate" in jobs[name]["needs"] for name in ("index", "images", "docs"))
    assert set(jobs["release"]["needs"]) == {"index", "images", "docs"}
    writers = {name for name, job in jobs.items() if job.get("permissions", {}).get("contents") == "write"}
    assert writers == {"docs", "release"}


def test_the_citation_names_this_version_and_what_the_work_is_built_on() -> None:
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license", "references"} <= citation.keys()
    assert f'version = "{citation["version"]}"' in (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(reference.keys() >= {"type", "title", "authors"} for reference in citation["references"])
    types = {reference["type"] for reference in citation["references"]}
    assert types <= {"article", "conference-paper", "report", "thesis"}
