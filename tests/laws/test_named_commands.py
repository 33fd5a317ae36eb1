"""What messages and documentation name exists: each command with its options, and each variable of the environment.

They are read out of all text of the product, and tried against the tree of commands and the settings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.images.build_settings import ImageSettings
from scanflow.settings import Settings
from scanflow_server.server_settings import ServerSettings
from scanflow_server.sign_in_settings import SignInSettings
from tests.command_tree import load_command_tree

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("scanflow", "client", "server", "agents")
PAGES = [
    *sorted(CHECKOUT.glob("*.md")),
    *sorted(page for page in (CHECKOUT / "docs").rglob("*.md") if not {"decisions", "reference"} & {*page.parts}),
    *sorted((CHECKOUT / "tutorials").rglob("*.md")),
    *sorted(file for file in (CHECKOUT / "deploy").rglob("*") if file.suffix in {".md", ".txt", ".yaml"}),
]
HOLE = "HOLE"
"""In place of what a message puts in."""

ROOT: Any = load_command_tree()
BEFORE = "\n\"'`(:$;"
"""Before a command that is named as one; ``: `` in messages, ``$ `` in examples."""

END = re.compile(
    r"\s{2,}|</|[`\"';,)]|\.(?:\s|$)|\s(?:#|&&|\||>|and|or|to|for|with|in|is|on|from|again)\s|\s[(<>—–]|: |\\n|\s*$"
)


class Named(NamedTuple):
    place: str
    words: list[str]
    is_certain: bool
    """Written as a command, not only in a sentence."""


def find_commands(place: str, text: str) -> Iterator[Named]:
    """Yield the commands that a text names."""
    text = re.sub(r"\$\((?!scanflow)[^)\n]*\)", HOLE, text)  # what another program prints
    for match in re.finditer(r"(?:\.venv/bin/)?\bscanflow (?=[a-z-])", text):
        before, rest = text[: match.start()], text[match.end() :].partition("\n")[0]
        quoted = before[-1:] in {"'", '"', "`"}
        end = rest.find(before[-1]) if quoted else -1
        if end < 0:
            end = cut.start() if (cut := END.search(rest)) else len(rest)
        is_certain = not before or before[-1] in BEFORE or before.endswith((": ", "$ "))
        yield Named(place, split_usage(rest[:end]), is_certain)


def find_parts(place: str, text: str) -> Iterator[Named]:
    """Yield commands that are named without the program: `services NAME --explain`."""
    for fragment in re.findall(r"`([a-z]+ [^`\n]+)`", text):
        words = split_usage(fragment)
        if words[0] in ROOT.commands and any(re.match(r"-{1,2}[a-z]|@latest|[A-Z]{2,}\b", word) for word in words[1:]):
            yield Named(place, words, True)


def split_usage(text: str) -> list[str]:
    """Return the words of a command line or of its usage; ``[--stop|--start]`` is two options."""
    text = re.split(r" \| (?=[a-z])", text)[0]  # what another program reads
    text = re.sub(r"\\?[|]", "|", text.replace("...", "").replace("…", ""))
    text = re.sub(r"'[^']*'|\"[^\"]*\"", HOLE, text)
    return [word for word in re.split(r"[\s\[\]]+", text) if word and word != "|"]


def find_problem(words: list[str], *, is_certain: bool) -> str:
    """Return what is wrong with a command's words; empty: nothing."""
    command, path, positional = ROOT, "scanflow", 0
    options = collect_options(ROOT)
    rest = list(words)
    while rest:
        word = rest.pop(0).strip("|")
        if word == "--":
            return ""
        if word.startswith("-") and word != "-":
            for name in re.split(r"[|/]", word):
                if not name.startswith("-"):
                    continue
                option = options.get(name.partition("=")[0].rstrip(".,:"))
                if option is None:
                    return f"{path} has no option {name}"
                if not option.is_flag and "=" not in name and name == re.split(r"[|/]", word)[-1] and rest:
                    rest[:1] = re.findall(r"\|(--.*)", rest[0])  # ``--rate R|--trace TRACE``
        elif hasattr(command, "commands") and HOLE in word:
            return ""
        elif hasattr(command, "commands") and not (accepts_names(command) and not names_a_command(command, word)):
            if unknown := [name for name in word.split("|") if name not in command.commands]:
                return f"{path} has no command {unknown[0]}"
            command, path = command.commands[word.partition("|")[0]], f"{path} {word}"
            options = collect_options(command)
        else:
            positional += 1
            if is_certain and positional > count_arguments(command):
                return f"{path} takes no {word}"
    return ""


def names_a_command(group: Any, word: str) -> bool:
    return not group.commands.keys().isdisjoint(word.split("|"))


def accepts_names(group: Any) -> bool:
    """Return whether a group takes a name where it is not one of its commands: ``scanflow models NAME``."""
    return "list" in group.commands and group.name == "models"


def collect_options(command: Any) -> dict[str, Any]:
    parameters = command.get_params(command.make_context(command.name, [], resilient_parsing=True))
    return {name: parameter for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}


def count_arguments(command: Any) -> float:
    command = command.commands["list"] if hasattr(command, "commands") and accepts_names(command) else command
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    return float("inf") if any(argument.nargs == -1 for argument in arguments) else len(arguments)


def read_texts(file: Path) -> Iterator[str]:
    """Yield the texts of a Python file, its docstrings included."""
    inside = set[int]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(map(format_part, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield re.sub(r"\{\w*\}", HOLE, node.value)


def format_part(part: ast.expr) -> str:
    """Return a part of an f-string; what formats options may put in any number of words."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    return "" if "options" in ast.unparse(part) else HOLE


@cache
def load_sources() -> list[tuple[str, str]]:
    """Return all texts of the product's code, with the path of the file that each is in."""
    files = [file for folder in FOLDERS for file in sorted((CHECKOUT / folder).rglob("*.py"))]
    return [(str(file.relative_to(CHECKOUT)), text) for file in files for text in read_texts(file)]


@cache
def load_pages() -> list[tuple[str, str]]:
    return [(str(page.relative_to(CHECKOUT)), page.read_text(encoding="utf-8")) for page in PAGES]


def test_every_command_that_is_named_exists_with_its_options() -> None:
    texts = [*load_sources(), *load_pages()]
    named = [entry for place, text in texts for entry in (*find_commands(place, text), *find_parts(place, text))]
    problems = {
        f"{place}: {' '.join(words)}: {problem}"
        for place, words, is_certain in named
        if (is_certain or words[0] in ROOT.commands) and (problem := find_problem(words, is_certain=is_certain))
    }
    assert "\n".join(sorted(problems)) == ""
    assert len(named) > 500


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("See: scanflow services show NAME", "scanflow services takes no NAME"),
        ("`services SERVICE --explain`", "scanflow services has no option --explain"),
        ("Write scanflow runs --all.", "scanflow runs has no option --all"),
        ("Start it: scanflow serve app.py", "scanflow has no command serve"),
        ("`scanflow token renew NAME`", "scanflow token has no command renew"),
        ("scanflow mpi plan app.py --nodes 2 --depth 3", "scanflow mpi plan has no option --depth"),
        ("`scanflow plan --backend kubernetes app.py`", "scanflow plan has no option --backend"),
        ("See: scanflow logs {run} {step}. Continue: scanflow resume {run}", ""),
        ("`models promote|reject NAME VERSION [--why TEXT]`", ""),
        ("`characterize [--cores N,N] -- COMMAND... | SERVICE`", ""),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, problem: str) -> None:
    text = re.sub(r"\{\w*\}", HOLE, text)
    problems = [
        find_problem(words, is_certain=True) for _, words, _ in (*find_commands("", text), *find_parts("", text))
    ]
    assert problems
    assert "".join(problems) == problem


SETTINGS: dict[type[BaseModel], str] = {
    Settings: "SCANFLOW_",
    ImageSettings: "SCANFLOW_",
    ServerSettings: "SCANFLOW_",
    KubernetesSettings: "SCANFLOW_KUBERNETES_",
    SignInSettings: "SCANFLOW_OIDC_",
}
VARIABLE = re.compile(r"\bSCANFLOW_[A-Z][A-Z_]*[A-Z]\b")


def test_every_variable_that_is_named_is_read_or_set() -> None:
    variables = {f"{prefix}{field.upper()}" for model, prefix in SETTINGS.items() for field in model.model_fields}
    variables |= {f"SCANFLOW_SERVER_{field.upper()}" for field in ServerSettings.model_fields}
    nightly = [
        *(CHECKOUT / "tests" / "science").glob("*.py"),
        CHECKOUT / "tests" / "integration" / "test_home_kills.py",
    ]
    texts = [text for file in nightly for text in read_texts(file)]
    variables |= {text for text in (*(text for _, text in load_sources()), *texts) if VARIABLE.fullmatch(text)}
    scripts = [text for place, text in load_sources() if place.startswith("scanflow/backends/local/mpi/")]
    variables |= {name for text in scripts for name in re.findall(r"\b(SCANFLOW_MPI_\w+)=", text)}
    named = {(place, name) for place, text in (*load_sources(), *load_pages()) for name in VARIABLE.findall(text)}
    assert sorted(f"{place}: {name}" for place, name in named if name not in variables) == []
