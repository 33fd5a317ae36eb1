"""The examples of a page of documentation, run as a reader runs them: from top to bottom, in one empty folder.

- A block whose first line names a file (``# loans.py``, ``# steps/clean.py``, ``/* pi.c */``) is that file.
- In a ``console`` block each ``$ command`` is run; the lines below it are its output, and are compared.
- A ``python`` block that names no file is a program of its own; an ``output`` block below it is what it prints.
- ``<!-- not run: reason -->`` before a block leaves it out, and ``<!-- nightly -->`` says that the page takes long.
- ``<!-- run on a cluster -->`` before a block: it is left out, too, but where a test has a cluster.
- ``export NAME=value`` holds for the commands below it, and ``command &`` goes on until the page ends.
- ``<!-- needs: mpicc -->`` on top of a page: it is run only where that program is.
- ``pip install ./folder`` installs a package of the page for the page alone, without what it depends on.

In what is expected, ``...`` stands for anything, and white space is white space (doctest's rules). Names of runs,
ids of actions, durations and ports are not compared; a command that names such an id gets the one of this run.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import COMMAND, home_in
from tests.serving import reserve_port
from tests.waiting import patient

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for folder in ("tasks", "coming-from") for page in (ROOT / "docs" / folder).glob("*.md"))
TIMEOUT_S = 900
PORT = "46666"
"""The port of a server that a page speaks of; the test has another one."""

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\s*\Z")
_ON_CLUSTER = re.compile(r"<!-- run on a cluster -->\s*\Z")
_EXPORT = re.compile(r"export(?: \w+=[^\s;]+)+")
_NEEDS = re.compile(r"<!-- needs: (\S+) -->")
_FILE = re.compile(r"(?:# |/\* |<!-- )([\w./-]+\.\w+)(?: \*/| -->)?\n")
_EXIT = re.compile(r"\s+# exit (\d+)$")
_ID = re.compile(r"\b[0-9a-f]{16}\b")
_CHANGING = (
    (_ID, "ID"),
    (re.compile(r"\b[a-z]+-[a-z]+-\d{3}\b"), "RUN"),
    (re.compile(r"\b(?:\d+h )?(?:\d+m )?\d+(?:\.\d+)? ?(?:µs|us|ms|s|min|h)\b"), "DURATION"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
)
_CHECKER = doctest.OutputChecker()
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    runs: bool = True
    on_cluster: bool = False


@dataclass
class PageRun:
    """One run of a page: what was done, and what differs from what the page says."""

    folder: Path
    port: int
    commands: int = 0
    differences: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """Ids of actions as the page writes them, and as they are in this run."""
    cluster: Mapping[str, str] | None = None
    """The variables of the cluster's test, which go before those that the page exports; None: there is no cluster."""
    exported: dict[str, str] = field(default_factory=dict)
    in_background: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, page: Path) -> None:
        """Run a page's blocks until one of them does not do what the page says."""
        blocks = read_blocks(page.read_text(encoding="utf-8"))
        for number, block in enumerate(blocks):
            if self.differences:
                return
            if not block.runs or (block.on_cluster and self.cluster is None):
                continue
            if named := _FILE.match(block.text):
                self._write(named[1], block.text)
            elif block.language == "console":
                for command, expected in list_commands(block.text):
                    self._run_command(command, expected)
            elif block.language == "python":
                following = blocks[number + 1] if number + 1 < len(blocks) else None
                expected = following.text if following is not None and following.language == "output" else ""
                self._run_python(block.text, expected)

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(PORT, str(self.port)), encoding="utf-8")

    def _run_command(self, line: str, expected: str) -> None:
        wanted = int(match[1]) if (match := _EXIT.search(line)) else 0
        command = _EXIT.sub("", line).replace(PORT, str(self.port))
        for written, printed in self.ids.items():
            command = command.replace(written, printed)
        if command.startswith("scanflow up"):
            command += f" --port {self.port}"
        if _EXPORT.fullmatch(command):
            self.exported |= dict(word.split("=", 1) for word in command.split()[1:])
        elif command.endswith(" &"):
            self._start_in_background(["bash", "-c", f"exec {command.removesuffix(' &')}"])
        else:
            self._compare(line, self._start(["bash", "-c", command]), wanted, expected)

    def _run_python(self, text: str, expected: str) -> None:
        program = self.folder.parent / "block.py"
        program.write_text(text.replace(PORT, str(self.port)), encoding="utf-8")
        done = self._start([sys.executable, str(program)])
        self._compare(f"python:\n{text}", done, 0, expected)

    def _start(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands += 1
        return subprocess.run(
            argv, cwd=self.folder, env=self._build_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=patient(TIMEOUT_S), check=False,
        )  # fmt: skip

    def _start_in_background(self, argv: list[str]) -> None:
        self.commands += 1
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            argv, cwd=self.folder, env=self._build_environment(), stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        self.in_background.append(process)

    def _build_environment(self) -> dict[str, str]:
        programs, site = _make_programs(self.folder.parent / "bin"), self.folder.parent / "site"
        folders = [str(self.folder), str(site), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "COLUMNS": "120",
            **self.exported,
            **(self.cluster or {}),
        }

    def _compare(self, what: str, done: subprocess.CompletedProcess[str], wanted: int, expected: str) -> None:
        if done.returncode != wanted:
            self.differences.append(f"{what}\nended with {done.returncode}, not {wanted}:\n{done.stdout}")
        self.ids = {**dict(zip(_ID.findall(expected), _ID.findall(done.stdout), strict=False)), **self.ids}
        if done.returncode == wanted and expected.strip() and not is_shown(expected, done.stdout):
            self.differences.append(f"{what}\nis to print:\n{expected}\nand prints:\n{done.stdout}")


def end_page(run: PageRun) -> None:
    """End what ``scanflow up`` and commands in the background started on a page that does not end it itself."""
    for process in run.in_background:
        process.terminate()
        process.wait(patient(10))
    subprocess.run([*COMMAND, "down"], cwd=run.folder, capture_output=True, timeout=patient(TIMEOUT_S), check=False)


def read_blocks(text: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    blocks = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        lines = (line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        before = text[: match.start()]
        runs, on_cluster = _NOT_RUN.search(before) is None, _ON_CLUSTER.search(before) is not None
        blocks.append(Block(match["language"], "".join(lines), runs, on_cluster))
    return blocks


def list_commands(text: str) -> list[tuple[str, str]]:
    """Return each command of a ``console`` block, and the output that is shown below it.

    A command goes on where its line ends with a backslash.
    """
    joined = re.sub(r"\\\n\s*>?\s*", "", text)
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def is_shown(expected: str, printed: str) -> bool:
    """Return whether what is printed is what a page shows."""
    return _CHECKER.check_output(_normalize(expected), _normalize(printed), _OPTIONS)


def is_nightly(page: Path) -> bool:
    return "<!-- nightly -->" in page.read_text(encoding="utf-8").partition("```")[0]


def find_needed_program(page: Path) -> str | None:
    """Return the program without which a page cannot be run; None: it needs none."""
    match = _NEEDS.search(page.read_text(encoding="utf-8").partition("```")[0])
    return match[1] if match else None


def _normalize(text: str) -> str:
    for pattern, name in _CHANGING:
        text = pattern.sub(name, text)
    return text.strip() + "\n"


def _make_programs(folder: Path) -> Path:
    """Make the programs that a reader's environment has: those of this test."""
    if not folder.is_dir():
        folder.mkdir()
        program, code, *rest = COMMAND
        scripts = {"scanflow": [program, code, *rest], "python": [program], "pytest": [program, "-m", "pytest"]}
        for name, words in scripts.items():
            quoted = " ".join(f"'{word}'" for word in words)
            (folder / name).write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
            (folder / name).chmod(0o755)
        install = f"'{program}' -m uv pip install --quiet --offline --no-deps --no-build-isolation"
        (folder / "pip").write_text(f"#!/bin/sh\nshift\nexec {install} --target '{folder.parent / 'site'}' \"$@\"\n")
        (folder / "pip").chmod(0o755)
    return folder


def main() -> None:
    """Run pages: ``python -m tests.page_examples docs/tasks/first-minute.md``."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder, home_in(Path(folder)), reserve_port() as port:
            work = Path(folder) / "page"
            work.mkdir()
            run, begun = PageRun(work, port), time.monotonic()
            try:
                run.run(Path(name))
            finally:
                end_page(run)
            print(*run.differences or ["as it says"], f"{name}: {time.monotonic() - begun:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
