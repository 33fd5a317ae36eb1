"""The tabular tutorial as a person follows it: each command of its page, with the real server, service and agents."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.deployer.remote_home import read_up_state
from tests.conftest import COMMAND, Cli
from tests.integration.tutorial_steps import TUTORIALS
from tests.waiting import patient

TUTORIAL = TUTORIALS / "tabular"
PATIENCE_S = patient(400)

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1200),  # about a minute, on a machine that has nothing else to do
    pytest.mark.skipif(
        find_spec("sklearn") is None or find_spec("mlflow") is None, reason="scikit-learn or mlflow is not installed"
    ),
]


def commands() -> list[list[str]]:
    """Return what the tutorial's page tells to type, without what is said of it."""
    (block,) = re.findall(r"```console\n(.*?)```", (TUTORIAL / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()]


@pytest.fixture
def followed_tutorial(cli: Cli, home: Path, tmp_path: Path) -> Iterator[Path]:
    folder = shutil.copytree(TUTORIAL, tmp_path / "tabular")
    yield folder
    ended = cli("down", timeout_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr


def run_command(command: list[str], folder: Path) -> str:
    program, *arguments = command
    whole = [*({"scanflow": COMMAND, "python": [sys.executable]}[program]), *arguments]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def get_next_event(client: sf.Client, after: int, *types: str) -> tuple[str, Any]:
    """Return the type and the data of the next event of one of these types."""
    for event in client.events_after(after, type=types, timeout_s=PATIENCE_S):
        return event.type, event.data
    raise AssertionError(f"In vain waited for one of {types}.")


def test_each_command_of_the_page_leads_on_to_a_model_that_was_judged_and_promoted(
    home: Path, followed_tutorial: Path
) -> None:
    *before, young, older, more, watch = commands()
    assert [arguments[1:2] for arguments in before] == [["up"], ["run"], ["deploy"], ["agents"]]
    assert watch == ["scanflow", "events", "--follow"]
    for command in before:
        run_command(command, followed_tutorial)
    up = read_up_state(home)
    assert up is not None
    client = sf.Client(up.server.url)

    after = client.newest_event()
    run_command(young, followed_tutorial)
    ended, detection = get_next_event(client, after, "run.succeeded", "run.failed")
    assert (ended, detection["workflow"]) == ("run.succeeded", "detector")
    assert not client.events(type=["drift.found", "drift.suspected"]), "young people are no drift"

    after = client.newest_event()
    run_command(older, followed_tutorial)
    get_next_event(client, after, "run.succeeded", "run.failed")
    run_command(more, followed_tutorial)
    _, drift = get_next_event(client, after, "drift.found")
    assert drift["columns"][0]["name"] == "age"
    verdict, judged = get_next_event(client, after, "model.promoted", "model.rejected", "run.failed")
    assert verdict == "model.promoted", judged

    promotion = client.intents(agent="executor", primitive="upgrade_workflow", limit=1)
    assert promotion, client.intents()
    output = run_command(["scanflow", "why", promotion[0].id], followed_tutorial)
    assert "Replace version 1" in output
    assert "drift in `age`" in output
