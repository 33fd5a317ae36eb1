"""A workflow is its calls: each step's result is, in value and type, that of calling its function on copies.

Hypothesis makes programs of functions and values as people bring them. The oracle is Python: the functions called in
order, each on a deep copy of what it takes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, seed, settings

import scanflow as sf
from scanflow.backends.memory import Memory
from scanflow.deployer import Deployer, EmbeddedDeployer, RemoteDeployer, RunRequest
from scanflow.settings import Settings
from tests.conftest import home_in
from tests.laws import operations
from tests.laws.operations import ANNOTATED, FUNCTIONS, VALUES, is_same
from tests.laws.strategies import SEEDED, programs
from tests.laws.workflow_programs import MODES, Call, Program, make_source
from tests.server import ServerProcess


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with home_in(tmp_path_factory.mktemp("laws")) as folder:
        yield folder


@pytest.fixture(scope="module", params=["memory", "local"])
def deployer(request: pytest.FixtureRequest, home: Path) -> Deployer:
    settings = Settings(home=home)
    return EmbeddedDeployer(settings, backend=Memory(settings) if request.param == "memory" else None)


@pytest.fixture(scope="module", params=["memory", "local", pytest.param("server", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest, home: Path) -> Deployer:
    if request.param == "server":
        server: ServerProcess = request.getfixturevalue("server")
        return RemoteDeployer(server.url, server.token)
    settings = Settings(home=home)
    return EmbeddedDeployer(settings, backend=Memory(settings) if request.param == "memory" else None)


def check(deployer: Deployer, program: Program) -> None:
    expected = program.compute()
    run = deployer.run(
        RunRequest(sf.Application(name="law", workflows=[sf.Workflow(name="program", nodes=program.build())]))
    )
    assert run.state == "succeeded", [task.failure for task in run.tasks if task.failure]
    for place, value in enumerate(expected):
        outputs = deployer.outputs(run.name, f"s{place}")
        result = [output["result"] for output in outputs] if isinstance(outputs, list) else outputs["result"]
        assert is_same(result, value), f"step s{place} gave {result!r}, the call {value!r}"


def find_value(value: object) -> int:
    return list(map(repr, VALUES)).index(repr(value))


NOTHING = Program(
    (find_value([]), find_value(())),
    (
        Call("keep", (0,), "process", maps=True),
        Call("change", (2,), "in process", maps=True),
        Call("listed", (2, 3), "cached"),
        Call("decorated", (1,), "cached", maps=True),
        Call("keep", (5,), "process"),
    ),
)
NESTED = Program(
    (find_value([1, (2, [3])]), find_value([[]])),
    (
        Call("closure of 1", (0,), "process", maps=True),
        Call("method", (2,), "cached", maps=True),
        Call("keep", (3,), "in process", maps=True),
        Call("keep", (1,), "process", maps=True),
    ),
)


@settings(SEEDED, max_examples=12)
@given(program=programs())
@example(program=NOTHING)
@example(program=NESTED)
def test_a_workflow_is_its_calls(deployer: Deployer, program: Program) -> None:
    check(deployer, program)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_a_thousand_workflows_are_their_calls(deployer: Deployer, number: int) -> None:
    @seed(number)
    @settings(SEEDED, derandomize=False, max_examples=200)
    @given(program=programs())
    def hold(program: Program) -> None:
        check(deployer, program)

    hold()


def choose_mode(mode: str, index: int) -> str:
    return sorted(MODES)[index % len(MODES)] if mode == "all" else mode


EACH = pytest.mark.parametrize("mode", ["all", *(pytest.param(mode, marks=pytest.mark.slow) for mode in sorted(MODES))])
"""All ways to run a step in turn; nightly, each for every one."""


@EACH
def test_every_value_reaches_the_next_step_as_it_was_returned(anywhere: Deployer, mode: str) -> None:
    places = range(len(VALUES))
    check(anywhere, Program(tuple(places), tuple(Call("keep", (i,), choose_mode(mode, i)) for i in places)))


@EACH
def test_every_function_runs_as_it_was_bound(anywhere: Deployer, mode: str) -> None:
    calls = (Call(name, (0,), choose_mode(mode, i)) for i, name in enumerate(sorted(FUNCTIONS)))
    check(anywhere, Program((find_value([1, (2, [3])]),), tuple(calls)))


@EACH
def test_an_annotation_checks_and_changes_nothing(anywhere: Deployer, mode: str) -> None:
    nodes, expected = [], {}
    for index, (function, value) in enumerate(ANNOTATED.values()):
        source = sf.step(make_source(value)).options(name=f"s{index}").bind()
        checked = sf.step(function).options(name=f"t{index}", **MODES[choose_mode(mode, index)])
        nodes += [source, checked.bind(source)]
        expected[f"t{index}"] = function(copy.deepcopy(value))
    run = anywhere.run(RunRequest(sf.Application(name="law", workflows=[sf.Workflow(name="w", nodes=nodes)])))
    assert run.state == "succeeded", [(task.step, task.failure) for task in run.tasks if task.failure]
    for step, value in expected.items():
        result = anywhere.outputs(run.name, step)["result"]  # type: ignore[call-overload]
        assert is_same(result, value), f"{list(ANNOTATED)[int(step[1:])]}: {result!r} is not {value!r}"


@EACH
def test_a_constant_beside_what_a_step_returned_has_its_own_meaning(anywhere: Deployer, mode: str) -> None:
    options = MODES[choose_mode(mode, 1)]
    returned = sf.step(make_source("2024-01-01")).options(name="returned").bind()
    by_key = sf.step(make_source({"day": "2024-01-01"})).options(name="by-key").bind()
    alone = sf.step(operations.name_type).options(**options)
    listed = sf.step(operations.name_types).options(**options)
    mapped = sf.step(operations.name_types_by_key).options(**options)
    pointed = sf.step(operations.name_point).options(**options)
    nodes = [
        returned,
        by_key,
        pointed.options(name="point").bind([returned, "2024-01-02"]),
        alone.options(name="constant").bind("2024-01-02"),
        alone.options(name="key").bind(by_key["day"]),
        listed.options(name="list").bind([returned, "2024-01-02"]),
        mapped.options(name="mapping").bind({"a": "2024-01-02", "b": returned}),
        alone.options(name="items").map([returned, "2024-01-02"]),
        alone.options(name="parts").map([{"day": "2024-01-02"}, {"day": returned}, by_key], day=sf.item["day"]),
    ]
    run = anywhere.run(RunRequest(sf.Application(name="law", workflows=[sf.Workflow(name="w", nodes=nodes)])))
    assert run.state == "succeeded", [(task.step, task.failure) for task in run.tasks if task.failure]
    results = {node.name: anywhere.outputs(run.name, node.name) for node in nodes[2:]}
    assert {
        name: [output["result"] for output in outputs] if isinstance(outputs, list) else outputs["result"]
        for name, outputs in results.items()
    } == {
        "constant": "date",
        "key": "str",
        "point": "Stay(arrival='2024-01-01', departure=datetime.date(2024, 1, 2))",
        "list": ["str", "date"],
        "mapping": {"a": "date", "b": "str"},
        "items": ["str", "date"],
        "parts": ["date", "str", "str"],
    }


def test_a_set_is_fanned_out_by_the_text_of_its_items(anywhere: Deployer) -> None:
    fruits = ["apple", "cherry", "fig", "grape", "lemon", "pear", "plum"]
    source = sf.step(make_source({*fruits, 10, 9})).options(name="source").bind()
    copied = sf.step(FUNCTIONS["keep"]).options(name="copied").map(source)
    again = sf.step(FUNCTIONS["keep"]).options(name="again", in_process=True).map(copied)
    run = anywhere.run(
        RunRequest(sf.Application(name="law", workflows=[sf.Workflow(name="w", nodes=[source, copied, again])]))
    )
    for step in ("copied", "again"):
        outputs = anywhere.outputs(run.name, step)
        assert [task["result"] for task in outputs] == [10, 9, *fruits]  # type: ignore[index]


def look(value: list[Any]) -> bool:
    value[0].append(2)
    return value[0] is value[-1]


def test_what_a_value_has_twice_stays_one(anywhere: Deployer) -> None:
    shared = [1]
    nodes = []
    for number, value in enumerate(([shared, shared], [[1], [1]])):
        source = sf.step(make_source(value)).options(name=f"source{number}").bind()
        for mode, fields in MODES.items():
            node = sf.step(look).options(name=f"look{number}-{mode.replace(' ', '-')}", **fields).bind(source)
            nodes += [*([source] if source not in nodes else []), node]
    run = anywhere.run(RunRequest(sf.Application(name="law", workflows=[sf.Workflow(name="w", nodes=nodes)])))
    for number, expected in enumerate([True, False]):
        for mode in MODES:
            outputs = anywhere.outputs(run.name, f"look{number}-{mode.replace(' ', '-')}")
            assert outputs["result"] == expected, (number, mode)  # type: ignore[call-overload]
