"""The command line as a person meets it: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from pathlib import Path

import pytest

from scanflow_server.dashboard.page_cells import FIRST_RUN
from tests.conftest import COMMAND, Cli
from tests.waiting import patient

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


def test_what_empty_pages_say_makes_the_first_run(cli: Cli, quick_cli: Cli) -> None:
    init, run = (command.split()[1:] for command in FIRST_RUN.split(" && "))
    assert (quick_cli(*init).returncode, cli(*run).returncode) == (0, 0)
    assert "example:training" in quick_cli("runs").stdout


def test_a_session_from_init_to_a_first_run(cli: Cli, quick_cli: Cli) -> None:
    result = quick_cli("init", "shop")
    assert result.returncode == 0
    assert "Next: scanflow run shop/app.py" in result.stdout
    again = quick_cli("init", "shop")
    assert again.returncode == 2
    assert "'shop/app.py'" in again.stderr
    assert "exist already" in again.stderr
    checked = quick_cli("check", "shop/app.py")
    assert "✓ shop:training  3 steps in 3 waves" in checked.stdout
    planned = quick_cli("plan", "shop/app.py", "--graph")
    assert [line.strip() for line in planned.stdout.splitlines()[:5]] == ["· load", "│", "· train ×?", "│", "· select"]
    assert "for each load.result" in planned.stdout
    assert "Nothing was run." in planned.stdout
    assert "There is no run yet" in quick_cli("runs").stdout
    ran = cli("run", "shop/app.py", "-p", "count=3")
    assert ran.returncode == 0, ran.stderr
    assert "✓ train ×3" in ran.stdout
    name = ran.stdout.split()[1]
    assert f"Show it: scanflow show {name}" in ran.stdout
    shown = quick_cli("show", "--graph")
    assert f"✓ {name}  shop:training  succeeded in" in shown.stdout
    assert [line.strip() for line in shown.stdout.splitlines()[2:7]] == ["✓ load", "│", "✓ train ×3", "│", "✓ select"]
    assert "training with rate 0.2" in quick_cli("logs", "@latest", "train.1").stdout
    assert name in quick_cli("runs").stdout


def test_a_failing_step_costs_at_most_twelve_lines_and_ends_with_what_to_do(cli: Cli, app: Path) -> None:
    failed = cli("run")
    assert failed.returncode == 1
    lines = failed.stderr.splitlines()
    assert len(lines) <= 12
    assert any('app.py:13 in train: raise ValueError("item 1 is bad")' in line for line in lines)
    assert any("ValueError: item 1 is bad" in line for line in lines)
    assert "scanflow resume " in lines[-1]
    assert "Traceback" not in failed.stdout + failed.stderr
    app.write_text(APP.replace('raise ValueError("item 1 is bad")', "return 100"))
    resumed = cli("resume")
    assert (resumed.returncode, "2 tasks kept" in resumed.stdout) == (0, True)
    assert cli("output").stdout == "total = 100\n", "the file was read again"
    refused = cli("spin", "total", "-p", "values=[3, 4]")
    assert (refused.returncode, "total.values" in refused.stderr) == (2, True)
    spun = cli("spin", "total", "-p", "total.values=[3, 4]", "--json")
    assert json.loads(spun.stdout)["state"] == "succeeded"
    assert cli("output").stdout == "total = 7\n"


TEXTS = """
import scanflow as sf

@sf.step
def text(version: str, sha="x") -> list[str]:
    sf.output_dir().joinpath("notes.txt").write_text(version)
    return [version, sha]

@sf.step
def shout(item: str) -> str:
    print(item)
    return item

nodes = [text.bind("1.0"), shout.map(["a", "b"]), shout.options(name="none").map([])]
nodes.append(sf.Executor(name="script", mainfile="script.py", parameters={"version": None, "sha": 1}))
app = sf.Application(name="texts", workflows=[sf.Workflow(name="w", nodes=nodes)])
"""


def test_text_stays_text_and_a_run_shows_its_files_and_all_logs_of_a_fan_out(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TEXTS)
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv[1:])\n")
    ran = cli("run", "-p", "version=1.10", "-p", "sha=1234567e100")
    assert ran.returncode == 0, ran.stderr
    assert cli("logs", "@latest", "script").stdout == "['--version', '1.10', '--sha', '1234567e100']\n"
    shown = cli("output", "@latest", "text").stdout
    assert shown == 'text = ["1.10", "1234567e100"]\nFiles of text: notes.txt (4 B)\n'
    assert "Files of text: notes.txt (4 B)" in cli("show").stdout
    assert [file["name"] for file in json.loads(cli("show", "--json").stdout)["files"]] == ["notes.txt"]
    assert cli("logs", "@latest", "shout").stdout == "── shout.0\na\n── shout.1\nb\n"
    assert cli("output", "@latest", "none").stdout == "none = []\n"
    assert "pending" not in cli("show").stdout


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
    ],
)
def test_wrong_arguments_get_an_answer_that_helps(
    quick_cli: Cli, app: Path, arguments: list[str], code: int, says: str
) -> None:
    answer = quick_cli(*arguments)
    assert answer.returncode == code
    assert says in answer.stderr
    assert len(answer.stderr.splitlines()) <= 8
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "Create one: scanflow init"),
        ("def f():\n    return 1 / 0\n\nf()\n", "  app.py:4: f()\n  app.py:2 in f: return 1 / 0\n  ZeroDivisionError"),
        (
            "import scanflow as sf\n\nx = sf.Executor(name='x', mainfile='x.py', timeout='5 q')\n",
            "app.py, line 3: Exec",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_shows_its_own_lines_only(
    quick_cli: Cli, tmp_path: Path, code: str | None, message: str
) -> None:
    if code is not None:
        (tmp_path / "app.py").write_text(code)
    answer = quick_cli("check")
    assert (answer.returncode, message in answer.stderr) == (2, True), answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_file_that_parses_arguments_finds_none_of_ours(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import argparse\nimport sys\nimport scanflow as sf\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--limit', type=int, default=10)\n"
        "limit = parser.parse_args().limit\n\n"
        "@sf.step\ndef work(by: int = 1) -> list:\n    return [limit * by, sys.argv[1:]]\n\n"
        "app = sf.Application(name='argued', workflows=[sf.Workflow(name='w', nodes=[work.bind()])])\n"
    )
    ended = cli("run", "-p", "by=3")
    assert (ended.returncode, "work = [30, []]" in ended.stdout) == (0, True)


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


def test_every_answer_is_there_for_programs_shells_and_pagers_too(
    cli: Cli, quick_cli: Cli, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app.parent / "fixed").touch()
    drawn = in_a_terminal(app.parent, "run", "-p", "count=30")
    assert "\x1b[" in drawn
    assert "✓ train ×30" in drawn
    assert "Show it: scanflow show" in drawn
    command = " ".join(f"'{part}'" for part in [*COMMAND, "logs"])
    piped = subprocess.run(
        ["bash", "-c", f"{command} | head -1"], cwd=app.parent, capture_output=True, text=True, timeout=patient(120)
    )
    assert (piped.stdout, piped.stderr) == ("── load\n", "")
    record = json.loads(cli("run", "--json").stdout)
    assert [task["task"] for task in record["tasks"]] == ["load", "train.0", "train.1", "total"]
    assert json.loads(quick_cli("show", "--json").stdout) == {**record, "state": "succeeded"}
    assert json.loads(quick_cli("runs", "--json").stdout)[0]["name"] == record["name"]
    assert json.loads(quick_cli("plan", "--json").stdout)["waves"] == 3
    assert json.loads(quick_cli("check", "--json").stdout)[0]["workflow"] == "w"
    document = json.loads(quick_cli("doctor", "--json").stdout)
    assert {"Python", "machine", "home folder"} <= {finding["what"] for finding in document}
    monkeypatch.setenv("_SCANFLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"scanflow show {record['name']}")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert cli().stdout.split() == [record["name"]]


def test_a_home_folder_that_cannot_be_made_is_said_to_be_so(
    quick_cli: Cli, app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_HOME", "/proc/nothing/here")
    answer = quick_cli("run")
    assert answer.returncode == 3
    assert "/proc/nothing" in answer.stderr
    assert "Traceback" not in answer.stderr


ATTACK = """
import scanflow as sf

@sf.step
def load(token: int = 1) -> dict[str, str]:
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
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    process = subprocess.Popen([*COMMAND, *words], cwd=cwd, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], patient(120))[0]:
        try:
            drawn += os.read(ours, 4096)
        except OSError:  # the other end was closed: that is how a terminal ends
            break
    os.close(ours)
    assert process.wait(patient(60)) == 0
    return drawn.decode()


@pytest.mark.slow
def test_no_step_writes_to_the_terminal_itself(cli: Cli, quick_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ATTACK)
    assert "silent = 3" in in_a_terminal(tmp_path, "run")
    for words in (("logs",), ("output", "@latest", "load"), ("show",)):
        assert "\x1b]0" not in in_a_terminal(tmp_path, *words), words
    assert "loading" in in_a_terminal(tmp_path, "logs", "@latest", "load")
    assert "\x1b]0;owned" in in_a_terminal(tmp_path, "logs", "@latest", "load", "--raw")
    assert "\x1b]0;owned" in cli("logs", "@latest", "load").stdout, "a file gets every byte"
    document = json.loads(quick_cli("output", "@latest", "load", "--json").stdout)
    assert document == {"name": "\x1b]0;owned\x07\x1b[31mfox"}
    assert json.loads(quick_cli("output", "--json").stdout) == 3
    assert quick_cli("output").stdout == "silent = 3\n"
    assert cli("logs", "@latest", "silent").stderr == "There is no output of silent.\n"
    wrong = quick_cli("run", "-p", "token=[1]")
    assert (wrong.returncode, "'token' is ***, which is not int" in wrong.stderr) == (2, True)


def test_help_and_version_answer(quick_cli: Cli) -> None:
    assert "Exit codes" in quick_cli("--help").stdout
    assert quick_cli("--version").stdout.startswith("scanflow 0.")
    bare = quick_cli()
    assert "Usage" in bare.stdout + bare.stderr
    wrong = quick_cli("--backend", "locl", "runs")
    assert (wrong.returncode, "There is no backend 'locl'" in wrong.stderr) == (2, True)
