"""Summarises tracebacks: the user's own frames and the root cause, read from the text."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from scanflow.text.printable import make_printable

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<where>.+))?')
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3.")
_COMPILED = frozenset({".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".h", ".rs"})
"""Sources that a library was compiled from; it names them by a relative path."""

_TYPED = ("<stdin>", "<ipython-input")
"""What people type has no file; other names in angle brackets are of generated code."""

_GROUP_HEADER = "Exception Group " + _HEADER
_MARGIN = re.compile(r"^( *)[|+] ?")
_GROUP_MARGIN = 2
_BRANCH = re.compile(r"^ *\+-")
_GROUP_END = re.compile(r"^ *\+-+$")
_SURVIVED = ("Exception ignored ", "Exception in thread ", "--- Logging error ---")
"""Begin of the line before the traceback of an exception that does not end the program."""

_QUOTES = re.compile(r"""(?:[\w.]*RemoteTraceback: ?|\"{3}|'{3})?$""")
"""Lines around the traceback of another process of a pool."""

MAX_FRAMES = 3
MAX_CAUSE_LINES = 4
_LAST_LINES = 2
"""Number of lines shown of a program without a traceback."""

TAIL_BYTES = 1_048_576
"""Of a program's standard error. Its traceback is at its end, and a message may be long."""

WIDTH = 160
CAUSE_WIDTH = 400
"""Messages often name the reason last, so a longer one is cut in the middle."""


@dataclass(slots=True)
class _Raised:
    """An exception: its frames, the innermost last, and the lines of its type and message."""

    level: int
    """Above that of the group that it is a member of, or of the message that quotes it."""

    begins_member: bool = False
    frames: list[tuple[str, str]] = field(default_factory=list)
    message: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Report:
    """Exceptions of which each led to the next, or contains it, in the order of the text."""

    survived: bool
    raised: list[_Raised] = field(default_factory=list)

    def list_chains(self) -> list[list[_Raised]]:
        """Return the innermost chains, such as the members of a group, and last the exceptions around them."""
        deepest = max(raised.level for raised in self.raised)
        chains: list[list[_Raised]] = []
        for raised in self.raised:
            if raised.level == deepest:
                if raised.begins_member or not chains:
                    chains.append([])
                chains[-1].append(raised)
        return [*chains, [raised for raised in self.raised if raised.level < deepest]]

    def get_outcome(self) -> _Raised:
        """Return the exception that ended the program."""
        lowest = min(raised.level for raised in self.raised)
        return [raised for raised in self.raised if raised.level == lowest][-1]


def read_text(text: str, *own_folders: str) -> tuple[tuple[str, ...], str]:
    """Return the user's own frames, the innermost last, and the root cause: the innermost of chained exceptions.

    Frames of installed packages, of the standard library and of ``own_folders`` are left out. If that leaves none of
    the root cause, which was raised within a library, they are those of the nearest exception that it led to. Text
    without a traceback gives its last lines.
    """
    lines = make_printable(text).splitlines()
    reports = list(_read_reports(lines))
    if not reports:
        last_lines = [line.rstrip() for line in lines if line.strip()]
        return (), "\n".join(_cut_middle(line) for line in last_lines[-_LAST_LINES:])
    report = next((report for report in reversed(reports) if not report.survived), reports[-1])
    *chains, around = report.list_chains()

    def select_frames(chain: Sequence[_Raised]) -> list[str]:
        own = ([text for file, text in raised.frames if not _is_foreign(file, own_folders)] for raised in chain)
        return next(filter(None, own), [])

    root = next(filter(select_frames, chains), chains[0])
    users = select_frames([*root, *reversed(around)])[::-1]
    users = list(dict.fromkeys(users))[:MAX_FRAMES][::-1]  # those of a recursion once
    cause = next((raised.message for raised in root if raised.message), [])
    outcome = report.get_outcome().message[:1]
    led_to = [f"which led to: {line}" for line in outcome if line not in cause[:1]]
    room = MAX_CAUSE_LINES - len(led_to)
    if len(cause) > room:
        cause = [*cause[: room - 1], f"… {cause[-1].strip()}"]
    return tuple(map(_cut, users)), "\n".join(map(_cut_middle, [*cause, *led_to]))


def _read_reports(lines: Sequence[str]) -> Iterator[_Report]:
    """Yield what is reported of exceptions; what was printed between them is left out."""
    if not any(_HEADER in line for line in lines):  # a script that Python cannot read has no traceback, only the place
        places = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
        lines = [_HEADER, *lines[places[-1] :]] if places else []
    report: _Report | None = None
    raised: _Raised | None = None
    link, before, in_group, quotes = "", "", False, 0
    for place, whole_line in enumerate(lines):
        in_group = in_group or _GROUP_HEADER in whole_line
        line, margin = _cut_margin(whole_line) if in_group else (whole_line, 0)
        if in_group and _BRANCH.match(whole_line):
            raised, link = None, "" if _GROUP_END.match(whole_line) else "member"
        elif line in _CHAINED:
            raised, link = None, "chained"
        elif line.startswith((_HEADER, _GROUP_HEADER)) or (link == "member" and not _QUOTES.match(line)):
            is_quoted = not link and before.endswith(":") and not before.startswith(_SURVIVED)
            if report is None or not (link or is_quoted):
                if report is not None:
                    yield report
                report, quotes = _Report(survived=before.startswith(_SURVIVED)), 0
                in_group = _GROUP_HEADER in whole_line
            elif is_quoted:
                quotes += 1
            raised = _Raised(max(0, margin - _GROUP_MARGIN) + quotes, begins_member=link == "member")
            report.raised.append(raised)
            link = ""
            if _HEADER not in line:  # a member that was never raised
                raised.message.append(_clean(line))
        elif raised is not None:
            raised = _read_line(raised, line, lines[place + 1 : place + 2], in_group=in_group)
        before = line
    if report is not None:
        yield report


def _read_line(raised: _Raised, line: str, following: Sequence[str], *, in_group: bool) -> _Raised | None:
    """Read a line of an exception's text; return None at its end."""
    if not raised.message and (match := _FRAME.match(line)):
        source = next((_cut_margin(text)[0] if in_group else text for text in following), "")
        source = source.strip() if source.startswith("    ") and not _FRAME.match(source) else ""
        if not source and _is_cell(match["file"]):  # the kernel has its cells, which a step's process has not
            source = linecache.getline(match["file"], int(match["line"])).strip()
        where = f" in {match['where']}" if match["where"] and match["where"] != "<module>" else ""
        tail = f": {source}" if source else ""
        raised.frames.append((match["file"], f"{_name_file(match['file'])}:{match['line']}{where}{tail}"))
    elif line.startswith(_SURVIVED) or (not line and raised.message):
        return None
    elif not _QUOTES.match(line) and (raised.message or not line.startswith(" ")):  # further lines may be indented
        raised.message.append(_clean(line))
    return raised


def _cut_margin(line: str) -> tuple[str, int]:
    """Return a line of a group without the tree that its members are drawn as, and the width of its margin."""
    match = _MARGIN.match(line)
    return (line[match.end() :], len(match[1])) if match else (line, 0)


def _name_file(file: str) -> str:
    """Return a file's name; a notebook's cell has none, but a number that nobody has seen."""
    return "notebook cell" if _is_cell(file) else PurePath(file).name


def _is_cell(file: str) -> bool:
    return PurePath(file).parent.name.startswith("ipykernel_")


def _clean(line: str) -> str:
    return line.removeprefix("scanflow.errors.").rstrip()


def _is_foreign(file: str, own_folders: Sequence[str]) -> bool:
    path = PurePath(file)
    if any(path.is_relative_to(folder) for folder in own_folders):
        return True
    if file.startswith("<"):
        return not file.startswith(_TYPED)
    compiled = path.suffix in _COMPILED and not path.is_absolute()
    return compiled or any(sign in file for sign in _LIBRARY_PATHS)


def _cut_middle(line: str) -> str:
    half = CAUSE_WIDTH // 2
    return line if len(line) <= CAUSE_WIDTH else f"{line[:half]}…{line[-(half - 1) :]}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
