"""Summarises tracebacks: the user's own frames and the root cause, read from the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from scanflow.text.printable import make_printable

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<where>.+))?')
_CAUSES = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3.")
_GROUP_HEADER = "Exception Group " + _HEADER
_MARGIN = re.compile(r"^ *[|+] ")
_BRANCH = re.compile(r"^ *\+-")
MAX_FRAMES = 3
MAX_CAUSE_LINES = 4
_LAST_LINES = 2
"""Number of lines shown of a program without a traceback."""

WIDTH = 160
CAUSE_WIDTH = 400
"""Messages often name the reason last, so a longer one is cut in the middle."""


def read_text(text: str, *own_folders: str) -> tuple[tuple[str, ...], str]:
    """Return the user's own frames, the innermost last, and the root cause: the innermost of chained exceptions.

    Frames of installed packages, of the standard library and of ``own_folders`` are left out. Text without a traceback
    gives its last lines.
    """
    text = make_printable(text)
    lines = ["", *text.splitlines()]
    if _GROUP_HEADER in text:  # its members are drawn as a tree
        lines = [_MARGIN.sub("", line).replace(_GROUP_HEADER, _HEADER) for line in lines if not _BRANCH.match(line)]
    starts = [index for index, line in enumerate(lines) if line.startswith(_HEADER)]
    if not starts:  # a script that Python cannot read has no traceback, only the place
        starts = [index - 1 for index, line in enumerate(lines) if _FRAME.fullmatch(line)][-1:]
    if not starts:
        last_lines = [line.rstrip() for line in lines if line.strip()]
        return (), "\n".join(_cut_middle(line) for line in last_lines[-_LAST_LINES:])
    first = _find_chain_start(lines, starts)
    frames, cause = _read_traceback(lines[first:])
    last_cause = _read_traceback(lines[starts[-1] :])[1]
    if not cause:
        cause = last_cause
    elif last_cause and last_cause != cause:
        cause = [*cause[: MAX_CAUSE_LINES - 1], f"which led to: {last_cause[0]}"]
    users = [frame for file, frame in frames if not _is_foreign(file, own_folders)]
    summary = "\n".join(_cut_middle(line) for line in cause[:MAX_CAUSE_LINES])
    return tuple(_cut(frame) for frame in users[-MAX_FRAMES:]), summary


def _find_chain_start(lines: Sequence[str], starts: Sequence[int]) -> int:
    """Return the index of the last exception chain's first traceback, which is the root cause."""
    first = starts[-1]
    for before, after in zip(reversed(starts[:-1]), reversed(starts[1:]), strict=False):
        if not any(line in _CAUSES for line in lines[before:after]):
            break
        first = before
    return first


def _read_traceback(lines: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    frames: list[tuple[str, str]] = []
    cause: list[str] = []
    for index, line in enumerate(lines[1:], start=1):
        if match := _FRAME.match(line):
            source = lines[index + 1].strip() if index + 1 < len(lines) and lines[index + 1].startswith("    ") else ""
            where = f" in {match['where']}" if match["where"] and match["where"] != "<module>" else ""
            tail = f": {source}" if source and not _FRAME.match(lines[index + 1]) else ""
            frames.append((match["file"], f"{PurePath(match['file']).name}:{match['line']}{where}{tail}"))
        elif line in _CAUSES or line.startswith(_HEADER):
            break
        elif line and (cause or not line.startswith(" ")):  # a message's further lines may be indented
            cause.append(line.removeprefix("scanflow.errors.").rstrip())
        elif not line and cause:
            break
    return frames, cause


def _is_foreign(file: str, own_folders: Sequence[str]) -> bool:
    if any(PurePath(file).is_relative_to(folder) for folder in own_folders):
        return True
    return any(sign in file for sign in _LIBRARY_PATHS)


def _cut_middle(line: str) -> str:
    half = CAUSE_WIDTH // 2
    return line if len(line) <= CAUSE_WIDTH else f"{line[:half]}…{line[-(half - 1) :]}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
