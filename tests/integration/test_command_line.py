"""The command line as a person meets it: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Cli

APP = """
import pathlib
import scanflow as sf

@sf.step
def load(count: int = 2) -> list[int]:
    print("loading")
    return list(range(count))

@sf.step
def train(item: int) -> int:
    if item == 1 and not pathlib.Path("fixed").exists():
        raise ValueError("item 1 is bad")
    return item

@sf.step
def total(values: list[int]) -> int:
    return sum(values)

first = load.bind()
middle = train.map(first)
app = sf.Application(name="demo", workflows=[sf.Workflow(name="w", nodes=[first, middle, total.bind(middle)])])
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def test_a_story_from_init_to_a_first_run(cli: Cli, tmp_path: Path) -> None:
    made = cli("init", "shop")
    assert made.returncode == 0
    assert "Run it: scanflow run shop/app.py" in made.stdout
    again = cli("init", "shop")
    assert again.returncode == 2
    assert "There is a file 'shop/app.py' already" in again.stderr
    checked = cli("check", "shop/app.py")
    assert "✓ shop:training  3 steps in 3 waves" in checked.stdout
    planned = cli("plan", "shop/app.py")
    assert "for each load.result" in planned.stdout
    assert "Nothing was run." in planned.stdout
    assert "There is no run yet" in cli("runs").stdout
    ran = cli("run", "shop/app.py", "-p", "count=3")
    assert ran.returncode == 0, ran.stderr
    assert "✓ train ×3" in ran.stdout
    name = ran.stdout.split()[1]
    assert f"Show it: scanflow show {name}" in ran.stdout
    shown = cli("show")
    assert f"✓ {name}  shop:training  succeeded in" in shown.stdout
    assert "training with rate 0.2" in cli("logs", "@latest", "train.1").stdout
    assert name in cli("runs").stdout


def test_a_failing_step_costs_at_most_twelve_lines_and_ends_with_what_to_do(cli: Cli, app: Path) -> None:
    failed = cli("run")
    assert failed.returncode == 1
    said = failed.stderr.splitlines()
    assert len(said) <= 12
    assert any('app.py:13 in train: raise ValueError("item 1 is bad")' in line for line in said)
    assert any("ValueError: item 1 is bad" in line for line in said)
    assert said[-1].startswith("Continue from here: scanflow resume ")
    assert "Traceback" not in failed.stdout + failed.stderr
    (app.parent / "fixed").touch()
    resumed = cli("resume")
    assert resumed.returncode == 0
    assert "2 tasks kept" in resumed.stdout
    spun = cli("spin", "total", "-p", "values=[3, 4]", "--json")
    assert json.loads(spun.stdout)["state"] == "succeeded"


def test_resume_reads_the_file_again_so_that_a_mended_step_is_what_runs(cli: Cli, app: Path) -> None:
    assert cli("run").returncode == 1
    app.write_text(APP.replace('raise ValueError("item 1 is bad")', "return 100"))
    assert cli("resume").returncode == 0
    record = json.loads(cli("show", "--json").stdout)
    assert Path(record["folder"], "outputs", "total", ".outputs", "result").read_text() == "100"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "ap.py"], 2, "There is no file 'ap.py'. Did you mean 'app.py'?"),
        (["run", "app.py:x"], 2, "has no workflow 'x'. Known: w."),
        (["run", "-p", "cuont=3"], 2, "has no parameter 'cuont'. Did you mean 'count'?"),
        (["run", "-p", "count"], 2, "Write it as name=value"),
        (["run", "-p", "count=many"], 2, "'count' is 'many', which is not int"),
        (["show", "nope"], 2, "There is no run yet"),
        (["resume"], 2, "There is no run yet. Start one: scanflow run app.py"),
        (["logs", "--stream", "stdot"], 2, "Did you mean 'stdout'?"),
        (["rnu"], 2, "No such command"),
        (["--backend", "locl", "runs"], 2, "There is no backend 'locl'"),
    ],
)
def test_wrong_words_get_an_answer_that_helps(cli: Cli, app: Path, arguments: list[str], code: int, says: str) -> None:
    answer = cli(*arguments)
    assert answer.returncode == code
    assert says in answer.stderr
    assert len(answer.stderr.splitlines()) <= 8
    assert "Traceback" not in answer.stderr


def test_an_empty_folder_says_how_to_begin(cli: Cli) -> None:
    answer = cli("run")
    assert answer.returncode == 2
    assert "Make one: scanflow init" in answer.stderr


def test_a_users_file_that_raises_shows_its_own_lines_only(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import scanflow\n\ndef f():\n    return 1 / 0\n\nf()\n")
    answer = cli("check")
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "Error: app.py cannot be loaded:",
        "  app.py:6: f()",
        "  app.py:4 in f: return 1 / 0",
        "  ZeroDivisionError: division by zero",
    ]


def test_a_bad_amount_names_the_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n\nx = sf.Executor(name='x', mainfile='x.py',\n    resources={'memory': '5Gb'})\n"
    )
    answer = cli("check")
    assert "app.py, line 3: Executor 'x'" in answer.stderr
    assert "Did you mean '5Gi'" in answer.stderr


def test_yaml_runs_as_well(cli: Cli, app: Path) -> None:
    (app.parent / "scanflow.yaml").write_text(
        "schema: scanflow/v1\nname: y\nworkflows:\n- name: w\n  nodes:\n"
        "  - {kind: executor, name: load, function: 'app.py:load', parameters: {count: 1}}\n"
        "  - {kind: executor, name: train, function: 'app.py:train', parameters: {item: {$from: item}}, "
        "for_each: {$from: load.result}}\n"
    )
    answer = cli("run", "scanflow.yaml")
    assert answer.returncode == 0, answer.stderr
    assert "✓ train" in answer.stdout


def test_every_answer_is_there_for_programs_too(cli: Cli, app: Path) -> None:
    (app.parent / "fixed").touch()
    record = json.loads(cli("run", "--json").stdout)
    assert [task["task"] for task in record["tasks"]] == ["load", "train.0", "train.1", "total"]
    assert json.loads(cli("show", "--json").stdout) == {**record, "state": "succeeded"}
    assert [one["name"] for one in json.loads(cli("runs", "--json").stdout)] == [record["name"]]
    assert json.loads(cli("plan", "--json").stdout)["waves"] == 3
    assert json.loads(cli("check", "--json").stdout)[0]["workflow"] == "w"
    assert {"Python", "machine", "home folder"} <= {one["what"] for one in json.loads(cli("doctor", "--json").stdout)}


def test_a_home_folder_that_cannot_be_made_is_said_to_be_so(
    cli: Cli, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_HOME", "/proc/nothing/here")
    answer = cli("run")
    assert answer.returncode == 3
    assert "/proc/nothing" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_logs_can_be_cut_short_by_their_reader(cli: Cli, app: Path) -> None:
    (app.parent / "fixed").touch()
    cli("run", "-p", "count=30")
    command = " ".join(f"'{part}'" for part in [*COMMAND, "logs"])
    answer = subprocess.run(
        ["bash", "-c", f"{command} | head -1"], cwd=app.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.stdout == "── load\n"
    assert answer.stderr == ""


def test_in_a_terminal_a_run_is_drawn_as_it_happens(home: Path, app: Path) -> None:
    (app.parent / "fixed").touch()
    text = in_a_terminal(app.parent, "run")
    assert "\x1b[" in text
    assert "✓ train ×2" in text
    assert "Show it: scanflow show" in text


ATTACK = """
import scanflow as sf

@sf.step
def load(token: str = "x") -> dict[str, str]:
    print("\\x1b]0;owned\\x07\\x1b[2Jloading")
    return {"name": "\\x1b]0;owned\\x07\\x1b[31mfox"}

@sf.step
def silent(found: dict[str, str]) -> int:
    if found["name"] == "":
        raise ValueError("\\x1b]0;owned\\x07bad")
    return 3

first = load.bind()
app = sf.Application(name="demo", workflows=[sf.Workflow(name="w", nodes=[first, silent.bind(first)])])
"""


def in_a_terminal(cwd: Path, *words: str) -> str:
    """Return what a command writes to a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    process = subprocess.Popen([*COMMAND, *words], cwd=cwd, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            drawn += os.read(ours, 4096)
        except OSError:  # the other end was closed: that is how a terminal ends
            break
    os.close(ours)
    assert process.wait(60) == 0
    return drawn.decode()


def test_results_are_shown_and_no_step_writes_to_the_terminal_itself(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ATTACK)
    ran = in_a_terminal(tmp_path, "run")
    assert "silent = 3" in ran
    for words in (("logs",), ("output", "@latest", "load"), ("show",)):
        assert "\x1b]0" not in in_a_terminal(tmp_path, *words), words
    assert "loading" in in_a_terminal(tmp_path, "logs", "@latest", "load")
    assert "\x1b]0;owned" in in_a_terminal(tmp_path, "logs", "@latest", "load", "--raw")
    assert "\x1b]0;owned" in cli("logs", "@latest", "load").stdout, "a file gets every byte"
    assert json.loads(cli("output", "@latest", "load", "--json").stdout) == {"name": "\x1b]0;owned\x07\x1b[31mfox"}
    assert json.loads(cli("output", "--json").stdout) == 3
    assert cli("output").stdout == "silent = 3\n"
    assert cli("logs", "@latest", "silent").stderr == "Nothing was written by silent.\n"
    wrong = cli("run", "-p", "token=[1]")
    assert (wrong.returncode, "'token' is ***, which is not str" in wrong.stderr) == (2, True)


def test_shells_complete_the_names_of_runs(cli: Cli, app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (app.parent / "fixed").touch()
    name = json.loads(cli("run", "--json").stdout)["name"]
    monkeypatch.setenv("_SCANFLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"scanflow show {name[:3]}")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert cli().stdout.split() == [name]


def test_help_and_version_answer(cli: Cli) -> None:
    assert "Exit codes" in cli("--help").stdout
    assert cli("--version").stdout.startswith("scanflow 0.")
    assert "Usage" in cli().stdout + cli().stderr
