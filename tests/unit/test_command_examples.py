"""Each command's help has examples, and each example is one that the command takes."""

from __future__ import annotations

import re
import shlex
from functools import partial
from typing import Any

import pytest
from typer import Context

from scanflow.errors import InvalidError
from scanflow_client.cli.command_help import split_examples
from tests.command_tree import is_group, iterate_commands, load_command_tree


def list_leaves(root: Any) -> list[tuple[str, Any]]:
    """Return each command that is no group, with its words after ``scanflow``."""
    return [(path, command) for path, command in iterate_commands(root) if not is_group(command)]


COMMANDS = dict(list_leaves(load_command_tree()))


def build_parser() -> Any:
    """Return the tree of commands, each of which returns its path and does nothing."""
    root = load_command_tree()
    root.callback = None
    for path, command in list_leaves(root):
        command.callback = partial(return_path, path)
    return root


def return_path(path: str, **_: object) -> str:
    return path


PARSER = build_parser()


def parse_arguments(words: list[str]) -> str:
    """Parse a command line as the program does; return its command's path.

    Raises typer's error for an unknown command or option, a missing argument, or a value that is none.
    """
    return str(PARSER.main(words, prog_name="scanflow", standalone_mode=False))


def extract_arguments(line: str) -> list[str]:
    """Return the words after ``scanflow`` of a line for a shell."""
    match = re.search(r"(?:^|\$\()scanflow (.*?)(?:\)$| [|>] .*|$)", line)
    assert match is not None, f"{line!r} has no command of scanflow"
    return shlex.split(match[1])


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_an_example_of_its_own(path: str) -> None:
    lines = (COMMANDS[path].epilog or "").splitlines()
    assert lines, f"Add 'Examples:' with an indented command line to the docstring of `scanflow {path}`."
    parsed = [parse_arguments(extract_arguments(line)) for line in lines]
    assert parsed == [path] * len(lines)


@pytest.mark.parametrize(
    "words", ["runs --every", "models promote cnn", "models promote cnn three", "serve app.py", "load digits -c many"]
)
def test_an_example_that_the_command_does_not_take_is_found(words: str) -> None:
    with pytest.raises(Exception, match=r"No such|Missing|valid integer"):
        parse_arguments(words.split())


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_command_begins_with_a_sentence_ends_with_examples_and_fits_100_columns(path: str) -> None:
    command = COMMANDS[path]
    lines = command.get_help(Context(command, info_name=f"scanflow {path}", terminal_width=100)).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].startswith("  ")
    assert command.help.partition("\n\n")[0].rstrip().endswith(".")
    assert lines[-len(command.epilog.splitlines()) - 1] == "Examples:"


def test_examples_are_taken_out_of_a_docstring() -> None:
    text = "Run it.\n\nIt takes a while.\n\nExamples:\n    scanflow run app.py\n    scanflow run b.py\n"
    assert split_examples(text) == ("Run it.\n\nIt takes a while.", "scanflow run app.py\nscanflow run b.py")
    assert split_examples("Run it.\n\nExamples: none.") == ("Run it.\n\nExamples: none.", "")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["run", "--backend", "kubernetes", "app.py"], "scanflow --backend kubernetes run app.py"),
        (
            ["plan", "app.py", "--backend=kubernetes", "-p", "a=b c"],
            "scanflow --backend=kubernetes plan app.py -p 'a=b c'",
        ),
        (["mpi", "plan", "app.py", "--backend", "local"], "scanflow --backend local mpi plan app.py"),
        (["run", "--version"], "scanflow --version run"),
    ],
)
def test_an_option_that_stands_before_commands_is_moved_there(words: list[str], advice: str) -> None:
    with pytest.raises(InvalidError) as refused:
        parse_arguments(words)
    assert str(refused.value).endswith(f"stands before the command. Write: {advice}")
    if "--version" not in words:
        parse_arguments(extract_arguments(advice))


def test_an_option_of_a_command_that_scanflow_has_too_stays_where_it_is() -> None:
    assert parse_arguments(["doctor", "--backend", "local"]) == "doctor"
    assert parse_arguments(["characterize", "--", "program", "--backend", "x"]) == "characterize"
