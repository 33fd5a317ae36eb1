"""What a notebook shows while a run goes on, by a real kernel: one output for each cell, which is written again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.conftest import home_in
from tests.notebooks import Kernel

DEFINE = """
import scanflow as sf

@sf.step
def load(n: int = 3) -> list[int]:
    print("loads")
    return list(range(n))

@sf.step
def square(number: int) -> int:
    return 12 // (2 - number) if number else 0

rows = load.bind(n=2)
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[rows, square.map(rows)])])
client = sf.Client()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("notebook")
    with home_in(folder):
        started = Kernel(folder)
        started.run(DEFINE)
        yield started
        started.close()


def test_a_run_is_one_table_that_is_written_in_place(kernel: Kernel) -> None:
    shown, *updates = kernel.run("run = client.run(app)")
    assert shown.kind == "display_data"
    assert {update.kind for update in updates} == {"update_display_data"}, "no line of a log for each step"
    ids = {output.content["transient"]["display_id"] for output in (shown, *updates)}
    assert len(ids) == 1
    assert "starting" in shown.html
    assert "square ×2" in updates[-1].html
    assert "succeeded" in updates[-1].html

    *_, value = kernel.run("run")
    assert value.html == updates[-1].html
    assert " ago" not in value.html, "it would be false as soon as somebody opens the notebook again"
    assert value.content["data"]["text/plain"].startswith("✓ ")


def test_a_cell_that_ends_with_the_run_shows_it_once(kernel: Kernel) -> None:
    *updates, value = kernel.run("client.run(app)")
    assert "<table>" in updates[-1].html
    assert value.kind == "execute_result"
    assert "<table>" not in value.html


def test_a_run_that_fails_shows_its_table_and_then_the_users_frames(kernel: Kernel) -> None:
    outputs, reply = kernel.run_any("client.run(app, parameters={'load.n': 3})")
    assert reply["ename"] == "StepFailedError"
    assert "✗" in outputs[-2].html
    assert "scanflow resume" not in outputs[-2].html + "".join(reply["traceback"]), "a shell has none of its functions"
    shown = "\n".join(reply["traceback"])
    assert "notebook cell:10 in square: return 12 // (2 - number) if number else 0" in shown
    assert "ZeroDivisionError" in shown
    assert re.search(r"Continue from here: client.resume\('[a-z0-9-]+', app=app\)", shown)
    assert "scanflow_client" not in shown


def test_what_is_not_to_be_shown_is_not(kernel: Kernel) -> None:
    assert kernel.run("run = sf.Client(progress=False).run(app)") == []


def test_what_is_captured_is_lines(kernel: Kernel) -> None:
    printed, *_ = kernel.run(
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "    run = client.run(app)\n"
        "print(text.getvalue())"
    )
    assert printed.kind == "stream"
    assert "✓ load" in printed.content["text"]


def test_a_run_that_is_waited_for_is_shown_to_its_end(kernel: Kernel) -> None:
    assert kernel.run("begun = client.run(app, wait=False)") == []
    *_, last = kernel.run("begun = begun.wait()")
    assert "succeeded in" in last.html
