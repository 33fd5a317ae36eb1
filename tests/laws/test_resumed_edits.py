"""A program that was edited before it was resumed: each result is that of the program as it is now, or its step, or one
before it, is named as changed.

The oracle is a run of the edited program from its start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.memory import Memory
from scanflow.backends.run_records import Event, RunStarted
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.graphs import list_ancestors
from scanflow.settings import Settings
from tests.laws.strategies import SEEDED

SOURCE = """
import dataclasses, functools
import scanflow as sf
RATE = {rate}
KINDS = {kinds}
TABLE = {{"a": [1, ({table},)]}}

def scale(by):
    def decorate(function):
        @functools.wraps(function)
        def inner(*args, **named):
            return [by, {wrapped}, function(*args, **named)]
        return inner
    return decorate

def helper(x):
    return [deeper(x), {helper}]

def deeper(x):
    return [x, {deeper}]

@dataclasses.dataclass
class Model:
    size: int = {size}
    def apply(self, x):
        return [x, self.size, {method}]

@sf.step(in_process=True)
def first(x={default}):
    return [RATE, x]

@sf.step(in_process=True)
@scale({by})
def second(x):
    return [helper(x), sorted(KINDS)]

@sf.step(in_process=True)
def third(x, y):
    return [Model().apply(x), y, TABLE]

@sf.step(in_process=True)
def item(x, y):
    return [x, {body}, y]

@sf.step(in_process=True)
def last(**values):
    if not mended():
        raise ValueError("not mended yet")
    return values

a = first.options(name="a").bind({given})
b = second.options(name="{name}").bind(a)
c = third.options(name="c", when=a.output.equals([{compared}, 1])).bind(b, {constant})
d = item.options(name="d").map({items}, b)
e = last.options(name="e").bind(c=c, d=d, b=b)
app = sf.Application(name="edited", workflows=[sf.Workflow(name="w", nodes=[a, b, c, d, e])])
"""
SLOTS: dict[str, list[str]] = {
    "rate": ["1", "2", "1.0"],
    "kinds": ["{'p', 'q'}", "{'q', 'p'}", "{'p'}"],
    "table": ["1", "2"],
    "wrapped": ["1", "2"],
    "helper": ["1", "2"],
    "deeper": ["1", "2"],
    "size": ["1", "2"],
    "method": ["1", "2"],
    "default": ["1", "2"],
    "by": ["1", "2"],
    "body": ["1", "2"],
    "given": ["", "1", "3"],
    "name": ["b", "bb"],
    "compared": ["1", "2"],
    "constant": ["1", "2", "True"],
    "items": ["[1, 2]", "[2, 1]", "[1, 2, 3]", "[1]", "[]", "[1, True]", "[2, 1, 1]", "[b, 1]"],
}
PLAIN = {slot: texts[0] for slot, texts in SLOTS.items()}
EACH = [{**PLAIN, slot: text} for slot, texts in SLOTS.items() for text in texts[1:]]
AT_THE_GATE = [{"helper": "2"}, {"by": "2", "size": "2"}, {"items": "[2, 1, 1]"}, {"name": "bb"}, {"compared": "2"}]
IN_MEMORY = [{"items": "[2, 1, 1]", "name": "bb"}, {"compared": "2"}]  # which names no changed code


def draw_edits(least: int) -> st.SearchStrategy[dict[str, str]]:
    """Return the texts of up to three slots."""
    slots = st.lists(st.sampled_from(sorted(SLOTS)), min_size=least, max_size=3, unique=True)
    return slots.flatmap(lambda chosen: st.fixed_dictionaries({slot: st.sampled_from(SLOTS[slot]) for slot in chosen}))


def build(slots: dict[str, str], folder: Path, *, is_mended: bool) -> sf.Application:
    namespace: dict[str, Any] = {"__name__": "edited_program", "mended": lambda: is_mended}
    exec(compile(SOURCE.format(**slots), "edited_program.py", "exec", dont_inherit=True), namespace)
    app: sf.Application = namespace["app"].replace(app_dir=str(folder))
    return app


def read_outputs(deployer: EmbeddedDeployer, run: str) -> dict[str, Any]:
    record = deployer.show(run)
    assert record.state == "succeeded", [(task.task, task.failure) for task in record.tasks if task.failure]
    states = {task.step: task.state for task in record.tasks}
    return {step: ("skipped",) if state == "skipped" else deployer.outputs(run, step) for step, state in states.items()}


def check(deployer: EmbeddedDeployer, folder: Path, before: dict[str, str], after: dict[str, str]) -> None:
    failed = deployer.run(RunRequest(build(before, folder, is_mended=False)))
    assert failed.state == "failed"
    app, events = build(after, folder, is_mended=True), list[Event]()
    resumed = deployer.run(RunRequest(app, run=failed.name), observe=events.append)
    edited = next(event for event in events if isinstance(event, RunStarted)).edited
    named = {text.partition(" ")[0] for text in edited}
    expected = read_outputs(deployer, deployer.run(RunRequest(app)).name)
    outputs = read_outputs(deployer, resumed.name)
    parents = app.workflow().parents
    assert outputs.keys() == expected.keys()
    for step in outputs:
        if not named & {step, *list_ancestors(parents, step)}:
            assert repr(outputs[step]) == repr(expected[step]), (step, edited)


@pytest.mark.parametrize("edit", AT_THE_GATE, ids=str)
def test_an_edited_program_goes_on_as_it_is_now(home: Path, tmp_path: Path, edit: dict[str, str]) -> None:
    check(EmbeddedDeployer(Settings(home=home)), tmp_path, PLAIN, PLAIN | edit)


@pytest.mark.parametrize("edit", IN_MEMORY, ids=str)
def test_so_it_does_in_memory(home: Path, tmp_path: Path, edit: dict[str, str]) -> None:
    chosen = Settings(home=home)
    check(EmbeddedDeployer(chosen, backend=Memory(chosen)), tmp_path, PLAIN, PLAIN | edit)


@pytest.mark.slow
def test_so_does_every_edit_and_any_few_of_them(home: Path, tmp_path: Path) -> None:
    deployer = EmbeddedDeployer(Settings(home=home))
    for after in EACH:
        check(deployer, tmp_path, PLAIN, after)

    @seed(1)
    @settings(SEEDED, derandomize=False, max_examples=100)
    @given(draw_edits(0), draw_edits(1))
    def try_edits(before: dict[str, str], after: dict[str, str]) -> None:
        check(deployer, tmp_path, PLAIN | before, PLAIN | before | after)

    try_edits()
