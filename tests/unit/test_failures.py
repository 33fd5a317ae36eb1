"""What is said of a failed step: the user's own frames and the root cause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.failures import MAX_FRAMES, Failure, failure_from_text
from scanflow.tracebacks import CAUSE_WIDTH

TRACEBACK = """Traceback (most recent call last):
  File "{folder}/x.py", line 1, in <module>
    call()
ValueError: bad
"""


def failure_of(tmp_path: Path, code: str, *, own_folder: str = "") -> Failure:
    file = tmp_path / "train.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode
    return failure_from_text(done.stderr, summary=f"exit {done.returncode}", own_folder=own_folder)


def test_a_failure_is_told_by_its_own_frames_and_its_exception(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "def fit(x):\n    return 1 / x\n\nfit(0)\n")
    assert failure.summary == "exit 1"
    assert failure.frames == ("train.py:4: fit(0)", "train.py:2 in fit: return 1 / x")
    assert failure.cause == "ZeroDivisionError: division by zero"
    assert failure.lines() == [*failure.frames, failure.cause]


def test_frames_of_the_standard_library_are_left_out(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "import json\njson.loads('{')\n")
    assert failure.frames == ("train.py:2: json.loads('{')",)
    assert failure.cause.startswith("json.decoder.JSONDecodeError: ")


def test_the_root_cause_comes_before_what_it_led_to(tmp_path: Path) -> None:
    failure = failure_of(
        tmp_path,
        "def load():\n    open('/nowhere/x')\n\ntry:\n    load()\nexcept OSError as error:\n"
        "    raise RuntimeError('no data') from error\n",
    )
    assert failure.frames[-1] == "train.py:2 in load: open('/nowhere/x')"
    assert failure.cause.splitlines() == [
        "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'",
        "which led to: RuntimeError: no data",
    ]


def test_a_failure_while_handling_another_names_both(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "try:\n    {}['a']\nexcept KeyError:\n    undefined\n")
    assert failure.cause.splitlines()[0] == "KeyError: 'a'"
    assert failure.cause.splitlines()[1].startswith("which led to: NameError: name 'undefined' is not defined")


def test_an_earlier_failure_that_was_printed_and_survived_is_not_the_cause(tmp_path: Path) -> None:
    failure = failure_of(
        tmp_path,
        "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "raise ValueError('real')\n",
    )
    assert failure.frames == ("train.py:6: raise ValueError('real')",)
    assert failure.cause == "ValueError: real"


def test_a_script_that_python_cannot_read_says_where(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "x = 1\ndef fit(:\n    pass\n")
    assert failure.frames == ("train.py:2: def fit(:",)
    assert failure.cause == "SyntaxError: invalid syntax"


def test_a_module_that_python_cannot_read_says_where(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("x = (\n")
    failure = failure_of(tmp_path, "import helper\n")
    assert failure.frames == ("train.py:1: import helper", "helper.py:1: x = (")
    assert failure.cause == "SyntaxError: '(' was never closed"


def test_a_group_of_failures_tells_of_one_of_them(tmp_path: Path) -> None:
    failure = failure_of(
        tmp_path,
        "def one():\n    raise ValueError('first')\n\nerrors = []\ntry:\n    one()\nexcept ValueError as error:\n"
        "    errors.append(error)\nraise ExceptionGroup('many', errors)\n",
    )
    assert failure.frames == ("train.py:6: one()", "train.py:2 in one: raise ValueError('first')")
    assert failure.cause == "ValueError: first"


def test_a_group_without_frames_tells_what_was_in_it(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "raise ExceptionGroup('many', [ValueError('first')])\n")
    assert failure.cause.splitlines() == ["ExceptionGroup: many (1 sub-exception)", "ValueError: first"]


def test_a_message_of_many_lines_is_cut_to_its_first_ones(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "raise ValueError('one\\n  two\\nthree\\n    four\\nfive')\n")
    assert failure.cause.splitlines() == ["ValueError: one", "  two", "three", "    four"]


def test_a_long_message_keeps_its_end_where_the_reason_often_is() -> None:
    reason = "must be an int in the range [1, inf). Got 2.0 instead."
    text = f"{TRACEBACK.format(folder='/a')}"[: -len("ValueError: bad\n")] + f"ValueError: {{}} {reason}\n"
    assert failure_from_text(text.format("x" * 150), summary="").cause.endswith(reason)
    assert failure_from_text(text.format("x" * 10_000), summary="").cause.endswith(reason)


def test_escape_sequences_of_a_program_are_no_part_of_its_failure() -> None:
    text = TRACEBACK.format(folder="/a").replace("bad", "\x1b]0;owned\x07\x1b[31mbad\x1b[0m")
    assert failure_from_text(text, summary="").cause == "ValueError: bad"


def test_a_deep_recursion_keeps_the_innermost_frames(tmp_path: Path) -> None:
    failure = failure_of(
        tmp_path, "def a(n):\n    if n == 0:\n        raise ValueError('deep')\n    a(n - 1)\n\na(50)\n"
    )
    assert len(failure.frames) == MAX_FRAMES
    assert failure.frames[-1] == "train.py:3 in a: raise ValueError('deep')"


def test_frames_of_scanflows_own_runner_are_left_out_and_those_of_a_folder_beside_it_are_not(tmp_path: Path) -> None:
    own, beside = tmp_path / "scanflow", tmp_path / "scanflow-demo"
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{folder}/x.py", line {line}, in main\n    call()\n' for line, folder in enumerate((own, beside), 1)
    )
    assert failure_from_text(text + "ValueError: bad\n", summary="", own_folder=str(own)).frames == (
        "x.py:2 in main: call()",
    )


@pytest.mark.parametrize("folder", ["/home/me/importlib", "/home/me/lib/python3-course", "/home/me/my-site-packages"])
def test_a_users_folder_that_looks_like_pythons_is_still_the_users(folder: str) -> None:
    assert failure_from_text(TRACEBACK.format(folder=folder), summary="").frames == ("x.py:1: call()",)


@pytest.mark.parametrize(
    "folder",
    [
        "/usr/lib/python3.11",
        "/v/lib/python3.12/site-packages/numpy",
        "/usr/lib/python3/dist-packages/yaml",
        "<frozen runpy>",
    ],
)
def test_what_was_installed_is_not_the_users(folder: str) -> None:
    assert failure_from_text(TRACEBACK.format(folder=folder), summary="").frames == ()


def test_our_own_errors_are_told_without_the_name_of_their_module() -> None:
    text = "Traceback (most recent call last):\nscanflow.errors.InvalidError: bad\n"
    assert failure_from_text(text, summary="").cause == "InvalidError: bad"


def test_a_program_without_a_traceback_is_told_by_its_last_words() -> None:
    text = "starting\n\nreading\nfatal: out of memory\n\n"
    assert failure_from_text(text, summary="exit 9").cause == "reading\nfatal: out of memory"


def test_a_program_that_said_nothing_is_told_by_its_summary() -> None:
    assert failure_from_text("", summary="exit 9") == Failure(summary="exit 9")


def test_a_line_of_a_megabyte_is_cut() -> None:
    for text in ("x" * 1_000_000, "Traceback (most recent call last):\nValueError: " + "x" * 1_000_000):
        cause = failure_from_text(text, summary="").cause
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
def test_whatever_a_program_wrote_is_told_in_a_few_short_lines(lines: list[str]) -> None:
    told = failure_from_text("\n".join(lines), summary="exit 1").lines()
    assert len(told) <= 8
    assert all(len(line) <= CAUSE_WIDTH + 20 for line in told)
