"""A failure is the user's: whatever is raised, wherever, the user's innermost frame, the root cause and a next command.

The oracle is Python itself: the chain of exceptions and the frames that the exception objects have.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scanflow.application_loading import load_application
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.names import StepName
from scanflow.settings import Settings
from scanflow.text.failures import Failure, parse_failure
from scanflow_client.formatting.run_text import MAX_FAILURE_LINES, format_failure

ORIGINS = {
    "raise": 'raise ValueError("bad")',
    "division": "return 1 / 0",
    "of a library": 'import json; return json.loads("{")',
    "chained in a library": 'import zoneinfo; return zoneinfo.ZoneInfo("No/Where")',
    "compiled": 'import pandas; return pandas.DataFrame({"a": [1]})["nothere"]',
    "of a package that is not there": "import nothere_at_all",
    "syntax error of a module": "import broken_module",
    "text that is no Python": 'return compile("x = (", "<text>", "exec")',
    "own class": "raise Broken(3)",
    "class whose text cannot be made": "raise Unspeakable()",
    "long message": 'raise RuntimeError("y" * 80_000)',
    "long message of many lines": 'raise RuntimeError("\\n".join(f"line {n}" for n in range(5000)))',
    "message with blank lines": 'raise ValueError("first\\n\\nsecond\\n  third\\n")',
    "message that begins with a newline": 'raise ValueError("\\nall fits failed")',
    "message that is empty": "raise ValueError",
    "message with escape sequences": 'raise ValueError("\\x1b]0;owned\\x07\\x1b[31mred\\x1b[0m\\r\\x00 bad")',
    "message like a frame": """raise ValueError('bad\\n  File "x.py", line 3, in f\\n    f()')""",
    "message that quotes a traceback": "raise RuntimeError('5 fits failed with this error:\\n' + quote())",
    "with notes": 'error = KeyError("k"); error.add_note("a note\\nof two lines"); raise error',
    "recursion": "return endless(1)",
    "recursion of two": "return ping(1)",
    "exit with a text": 'import sys; sys.exit("no data")',
    "exit with a number": "raise SystemExit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "memory": 'raise MemoryError("4 GiB")',
    "assertion": "assert 1 == 2, 'differs'",
    "of another process": "raise_remote()",
    "generated code": "return Checked(-1)",
}
"""What fails, as the body of a function."""

WAYS = {
    "called": "{call}",
    "decorated": "decorate(lambda: {call})()",
    "property": "Lazy(lambda: {call}).value",
    "generator": "list(generate(lambda: {call}))",
    "comprehension": "[{call} for _ in range(2)]",
    "thread": "in_thread(lambda: {call})",
    "library": "sorted([2, 1], key=lambda _: {call})",
    "task group": "in_task_group(lambda: {call})",
    "raised from": "raise_from(lambda: {call})",
    "raised while handled": "raise_while_handled(lambda: {call})",
    "raised from None": "raise_from_none(lambda: {call})",
    "raised in a group": "raise_in_group(lambda: {call})",
    "raised again": "raise_again(lambda: {call})",
    "library within a library": "json_default(lambda: {call})",
    "after a survived one": "survive() or {call}",
}
"""How it is called, as an expression."""

UNFIT_FOR_A_LOOP = {"exit with a text", "exit with a number", "interrupt", "recursion", "recursion of two"}
"""These end the loop, or its own code fails too."""

HELPERS = """
import asyncio, concurrent.futures, functools, json, sys, traceback
from dataclasses import dataclass

class Broken(Exception):
    def __init__(self, code):
        super().__init__(f"broken {code}")

class Unspeakable(Exception):
    def __str__(self):
        raise TypeError("no text")

@dataclass
class Checked:
    size: int
    def __post_init__(self):
        if self.size < 0:
            raise ValueError("negative")

def endless(n):
    return endless(n + 1)

def ping(n):
    return pong(n + 1)

def pong(n):
    return ping(n + 1)

def quote():
    try:
        {}["quoted"]
    except KeyError:
        return traceback.format_exc()

def raise_remote():
    from multiprocessing.pool import RemoteTraceback
    try:
        1 / 0
    except ZeroDivisionError as error:
        text = traceback.format_exc()
        remote = ZeroDivisionError(*error.args)
    remote.__cause__ = RemoteTraceback('\\n\"\"\"\\n' + text + '\"\"\"')
    raise remote

def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return functools.lru_cache(wrapper)

class Lazy:
    def __init__(self, function):
        self.function = function
    @functools.cached_property
    def value(self):
        return self.function()

def generate(function):
    yield 1
    yield function()

def in_thread(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()

def in_task_group(function):
    async def fail():
        return function()
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
    return asyncio.run(main())

def raise_from(function):
    try:
        return function()
    except BaseException as error:
        raise RuntimeError("no data") from error

def raise_while_handled(function):
    try:
        return function()
    except BaseException:
        return None + 1

def raise_from_none(function):
    try:
        return function()
    except BaseException:
        raise RuntimeError("instead") from None

def raise_in_group(function):
    errors = []
    for attempt in range(2):
        try:
            function()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("many", errors) if errors else RuntimeError("not caught")

def raise_again(function):
    try:
        return function()
    except BaseException as error:
        raise error

def json_default(function):
    return json.dumps({1, 2}, default=lambda _: function())

def survive():
    try:
        [][3]
    except IndexError:
        traceback.print_exc()
        sys.stderr.write("it goes on\\n")

"""


def write_module(folder: Path, origin: str, ways: Sequence[str]) -> Path:
    """Write a module whose ``step`` fails; return its path."""
    call, lines = "fail()", [HELPERS, f"def fail():\n    {ORIGINS[origin]}\n"]
    for number, way in enumerate(ways):
        lines.append(f"def way_{number}():\n    return {WAYS[way].format(call=call)}\n")
        call = f"way_{number}()"
    lines.append(f"def step():\n    return {call}\n")
    (folder / "broken_module.py").write_text("def f(:\n")
    path = folder / "train.py"
    path.write_text("\n".join(lines))
    return path


def import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"law_{path.parent.name}".replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def catch(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001  KeyboardInterrupt and SystemExit, too
        return error
    raise AssertionError("nothing was raised")


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those before it, the root cause first; of a group the first member's."""
    members = error.exceptions[:1] if isinstance(error, BaseExceptionGroup) else ()
    before = [error.__cause__] if error.__cause__ or error.__suppress_context__ else [error.__context__]
    for inner in (*members, *(cause for cause in before if cause is not None)):
        yield from iterate_causes(inner)
    yield error


def find_user_lines(error: BaseException, folder: Path) -> list[str]:
    """Return the innermost frame of the user's in each exception, the root cause first, as ``train.py:12 ``."""
    innermost = []
    for cause in iterate_causes(error):
        lines = [
            f"{Path(frame.filename).name}:{frame.lineno} "
            for frame in traceback.extract_tb(cause.__traceback__)
            if Path(frame.filename).is_relative_to(folder)
        ]
        if isinstance(cause, SyntaxError) and Path(cause.filename or "").is_relative_to(folder):
            lines.append(f"{Path(cause.filename or '').name}:{cause.lineno}: ")
        innermost += lines[-1:]
    return innermost


def show(failure: Failure) -> list[str]:
    step = StepName("train")
    task = TaskRecord(task=step, step=step, state="failed", attempts=1, failure=failure)
    fields = {"name": "brave-hare-1", "app": "a", "team": "t", "workflow": "w", "folder": "/f", "created": 0.0}
    return format_failure(RunRecord(**fields, state="failed", tasks=(task,)))  # type: ignore[arg-type]


def check(folder: Path, origin: str, ways: Sequence[str]) -> str:
    """Return what is wrong with what is shown of a failure; empty: nothing."""
    folder.mkdir()
    sys.path.insert(0, str(folder))
    sys.modules.pop("broken_module", None)
    try:
        error = catch(import_file(write_module(folder, origin, ways)).step)
        text = "".join(traceback.format_exception(error))
    finally:
        sys.path.remove(str(folder))
    own_folder = str(Path(parse_failure.__code__.co_filename).parent)
    lines = show(parse_failure(text, summary="exit code 1", own_folder=own_folder))
    shown, frames = "\n".join(lines), find_user_lines(error, folder)
    root = next(iterate_causes(error))
    if type(root).__name__ == "RemoteTraceback":
        frames, root = [f"train.py:{find_line(folder, '1 / 0')} "], ZeroDivisionError()
    if origin == "message that quotes a traceback":
        frames.append(f"train.py:{find_line(folder, '{}[')} ")
    problems = [
        (not any(frame in shown for frame in frames[:1] + frames[-1:]), f"no frame of {frames}"),
        (type(root).__name__ not in shown and origin != "message that quotes a traceback", "not the root cause's type"),
        (len(lines) > MAX_FAILURE_LINES, f"{len(lines)} lines"),
        (max(map(len, lines)) > 420, "a long line"),
        (not shown.isprintable() and "\x1b" in shown, "escape sequences"),
        ("scanflow resume brave-hare-1" not in lines[-1], "no next command"),
        (any("site-packages" in line or "/lib/python3" in line for line in lines[1:3]), "a frame of a library"),
    ]
    wrong = ", ".join(problem for is_wrong, problem in problems if is_wrong)
    return f"{origin!r} by {ways}: {wrong}\n{shown}\n{text[-1500:]}" if wrong else ""


def find_line(folder: Path, code: str) -> int:
    lines = (folder / "train.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if code in line)


@pytest.mark.parametrize("origin", ORIGINS)
def test_whatever_is_raised_is_shown_by_the_users_frame_and_its_root_cause(tmp_path: Path, origin: str) -> None:
    chosen = random.Random(origin)
    fit = sorted(WAYS.keys() - ({"task group"} if origin in UNFIT_FOR_A_LOOP else set()))
    ways = [("called",), ("raised from",), *((way,) for way in chosen.sample(fit, 3))]
    assert "\n\n".join(filter(None, (check(tmp_path / str(n), origin, way) for n, way in enumerate(ways)))) == ""


STEPS = {
    "function": "sf.Workflow(name='w', nodes=[sf.step(step).bind()])",
    "in process": "sf.Workflow(name='w', nodes=[sf.step(in_process=True)(step).bind()])",
    "script": "sf.Workflow(name='w', nodes=[sf.Executor(name='step', mainfile='train.py')])",
}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "origin"),
    [
        *itertools.product(STEPS, ["compiled", "long message"]),
        ("function", "exit with a text"),
        ("script", "recursion"),
    ],
)
def test_each_kind_of_step_is_shown_so(tmp_path: Path, settings: Settings, kind: str, origin: str) -> None:
    path = write_module(tmp_path, origin, ["raised from"])
    path.write_text(f"{path.read_text()}\nif __name__ == '__main__':\n    step()\n")
    (tmp_path / "app.py").write_text(f"import scanflow as sf\nfrom train import step\nworkflow = {STEPS[kind]}\n")
    app, file, _ = load_application(str(tmp_path / "app.py"))
    record = EmbeddedDeployer(settings).run(RunRequest(app, source=file))
    lines = format_failure(record)
    shown = "\n".join(lines)
    assert f"  train.py:{find_line(tmp_path, ORIGINS[origin])} in fail: " in shown
    assert {"compiled": "KeyError: 'nothere'", "long message": "RuntimeError: yyy"}.get(origin, "") in shown
    assert "which led to: RuntimeError: no data" in shown
    assert lines[-1] == f"Continue from here: scanflow resume {record.name}"
    assert len(lines) <= MAX_FAILURE_LINES


@pytest.mark.slow
@pytest.mark.parametrize("origin", ORIGINS)
def test_whatever_is_raised_by_any_two_ways_is_shown_so_too(tmp_path: Path, origin: str) -> None:
    most = 0 if origin in UNFIT_FOR_A_LOOP else 1  # a loop within a loop is refused
    pairs = [pair for pair in itertools.product(WAYS, WAYS) if pair.count("task group") <= most]
    assert "\n\n".join(filter(None, (check(tmp_path / str(n), origin, way) for n, way in enumerate(pairs)))) == ""
