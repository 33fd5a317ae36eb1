"""What is said of a failed step: the user's own frames and the root cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.text.failures import MAX_FRAMES, Failure, parse_failure
from scanflow.text.tracebacks import CAUSE_WIDTH
from tests.waiting import patient

TRACEBACK = """Traceback (most recent call last):
  File "{folder}/x.py", line 1, in <module>
    call()
ValueError: bad
"""


def run_for_failure(tmp_path: Path, code: str) -> Failure:
    file = tmp_path / "train.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=patient(120))
    assert done.returncode
    return parse_failure(done.stderr, summary=f"exit {done.returncode}")


DIVIDED = "def fit(x):\n    return 1 / x\n\nfit(0)\n"
LED_TO = """
def load():
    open('/nowhere/x')

try:
    load()
except OSError as error:
    raise RuntimeError('no data') from error
"""
SURVIVED = """
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
raise ValueError('real')
"""
GROUP = """
def one():
    raise ValueError('first')

try:
    one()
except ValueError as error:
    errors = [error]
raise ExceptionGroup('many', errors)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "frame", "cause"),
    [
        (DIVIDED, "train.py:2 in fit: return 1 / x", ["ZeroDivisionError: division by zero"]),
        (
            LED_TO,
            "train.py:3 in load: open('/nowhere/x')",
            [
                "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'",
                "which led to: RuntimeError: no data",
            ],
        ),
        (
            "try:\n    {}['a']\nexcept KeyError:\n    None + 1\n",
            "train.py:2: {}['a']",
            ["KeyError: 'a'", "which led to: TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'"],
        ),
        (SURVIVED, "train.py:7: raise ValueError('real')", ["ValueError: real"]),
        ("x = 1\ndef fit(:\n    pass\n", "train.py:2: def fit(:", ["SyntaxError: invalid syntax"]),
        ("import helper\n", "helper.py:1: x = (", ["SyntaxError: '(' was never closed"]),
        (
            GROUP,
            "train.py:3 in one: raise ValueError('first')",
            ["ValueError: first", "which led to: ExceptionGroup: many (1 sub-exception)"],
        ),
        (
            "raise ExceptionGroup('many', [ValueError('first')])\n",
            "train.py:1: raise ExceptionGroup('many', [ValueError('first')])",
            ["ValueError: first", "which led to: ExceptionGroup: many (1 sub-exception)"],
        ),
        (
            "raise ValueError('one\\n  two\\nthree\\n    four\\nfive')\n",
            "train.py:1: raise ValueError('one\\n  two\\nthree\\n    four\\nfive')",
            ["ValueError: one", "  two", "three", "… five"],
        ),
    ],
)
def test_a_failure_is_reported_by_its_frames_and_its_root_cause(
    tmp_path: Path, code: str, frame: str, cause: list[str]
) -> None:
    (tmp_path / "helper.py").write_text("x = (\n")
    failure = run_for_failure(tmp_path, code)
    assert failure.frames[-1] == frame
    assert failure.cause.splitlines() == cause
    assert failure.lines() == [*failure.frames, *cause]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Traceback (most recent call last):\nscanflow.errors.InvalidError: bad\n", "InvalidError: bad"),
        ("starting\n\nreading\nfatal: out of memory\n\n", "reading\nfatal: out of memory"),
        ("", ""),
        (TRACEBACK.replace("bad", "\x1b]0;owned\x07\x1b[31mbad\x1b[0m"), "ValueError: bad"),
    ],
)
def test_what_a_program_wrote_last_is_its_cause(text: str, cause: str) -> None:
    assert parse_failure(text, summary="exit 9").cause == cause


@pytest.mark.processes
def test_frames_of_the_standard_library_are_left_out(tmp_path: Path) -> None:
    failure = run_for_failure(tmp_path, "import json\njson.loads('{')\n")
    assert failure.frames == ("train.py:2: json.loads('{')",)
    assert failure.cause.startswith("json.decoder.JSONDecodeError: ")


def test_a_long_message_keeps_its_end_where_the_reason_often_is() -> None:
    reason = "must be an int in the range [1, inf). Got 2.0 instead."
    text = f"{TRACEBACK.format(folder='/a')}"[: -len("ValueError: bad\n")] + f"ValueError: {{}} {reason}\n"
    assert parse_failure(text.format("x" * 150), summary="").cause.endswith(reason)
    assert parse_failure(text.format("x" * 10_000), summary="").cause.endswith(reason)


@pytest.mark.processes
def test_a_deep_recursion_keeps_the_innermost_frames(tmp_path: Path) -> None:
    failure = run_for_failure(
        tmp_path, "def a(n):\n    if n == 0:\n        raise ValueError('deep')\n    a(n - 1)\n\na(50)\n"
    )
    assert len(failure.frames) == MAX_FRAMES
    assert failure.frames[-1] == "train.py:3 in a: raise ValueError('deep')"


def test_frames_of_scanflows_own_runner_are_left_out_and_those_of_a_folder_beside_it_are_not(tmp_path: Path) -> None:
    own, beside = tmp_path / "scanflow", tmp_path / "scanflow-demo"
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{folder}/x.py", line {line}, in main\n    call()\n' for line, folder in enumerate((own, beside), 1)
    )
    assert parse_failure(text + "ValueError: bad\n", summary="", own_folder=str(own)).frames == (
        "x.py:2 in main: call()",
    )


USERS = "/home/me/importlib", "/home/me/lib/python3-course", "/home/me/my-site-packages"
INSTALLED = (
    *("/usr/lib/python3.11", "/v/lib/python3.12/site-packages/numpy", "/usr/lib/python3/dist-packages/yaml"),
    "<frozen runpy>",
)


@pytest.mark.parametrize("folder", [*USERS, *INSTALLED])
def test_what_was_installed_is_not_the_users_and_what_only_looks_so_is(folder: str) -> None:
    frames = ("x.py:1: call()",) if folder in USERS else ()
    assert parse_failure(TRACEBACK.format(folder=folder), summary="").frames == frames


def test_a_line_of_a_megabyte_is_cut() -> None:
    for text in ("x" * 1_000_000, "Traceback (most recent call last):\nValueError: " + "x" * 1_000_000):
        cause = parse_failure(text, summary="").cause
        assert len(cause) == CAUSE_WIDTH
        assert "…" in cause


pieces = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/a/x.py", line 3, in f',
        "    f()",
        "ValueError: bad",
        "",
        "  | x",
        "    ~~^^",
        "The above exception was the direct cause of the following exception:",
        '  File "x", line 1',
        "[Previous line repeated 3 more times]",
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/a/x.py", line 3, in f',
        "  +-+---------------- 1 ----------------",
    ]
)


@given(st.lists(pieces | st.text(max_size=20), max_size=20))
def test_whatever_a_program_wrote_is_reported_in_a_few_short_lines(lines: list[str]) -> None:
    lines_ = parse_failure("\n".join(lines), summary="exit 1").lines()
    assert len(lines_) <= 8
    assert all(len(line) <= CAUSE_WIDTH + 20 for line in lines_)
