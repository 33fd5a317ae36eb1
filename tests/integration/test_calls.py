"""What a step has of its own, wherever it runs: its function as it was bound, its inputs, its folder, its variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.local.batch.step_programs import can_fork
from scanflow.deployer import EmbeddedDeployer, RunRequest, functions_by_value
from scanflow.errors import InvalidError, UsageError
from scanflow.settings import Settings

PROGRAM = "__main__"


def give_to(program: ModuleType, function: Any) -> Any:
    """Make a function the running program's own, as a cell of a notebook does, and return it as a step."""
    function.__module__, function.__qualname__ = PROGRAM, function.__name__
    step = sf.step(function)
    setattr(program, function.__name__, step)
    return step


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(functions_by_value, "begun_runs", {})
    module = ModuleType(PROGRAM)
    monkeypatch.setitem(sys.modules, PROGRAM, module)
    return module


@pytest.fixture
def deployer(home: Path) -> EmbeddedDeployer:
    return EmbeddedDeployer(Settings(home=home))


def application(*nodes: Any, folder: Path) -> sf.Application:
    return sf.Application(name="own", app_dir=folder, workflows=[sf.Workflow(name="w", nodes=nodes)])


@pytest.mark.processes
def test_a_function_that_is_mended_in_its_cell_is_the_one_that_a_resumed_run_calls(
    deployer: EmbeddedDeployer, program: ModuleType, tmp_path: Path
) -> None:
    def train() -> int:
        raise ValueError("not yet")

    app = application(give_to(program, train).bind(), folder=tmp_path)
    failed = deployer.run(RunRequest(app))
    assert failed.state == "failed"

    def return_seven() -> int:
        return 7

    return_seven.__name__ = "train"
    give_to(program, return_seven)
    assert deployer.run(RunRequest(run=failed.name)).state == "succeeded"
    assert deployer.outputs(failed.name, "train") == {"result": 7}


@pytest.mark.processes
def test_another_process_resumes_with_another_function_of_that_name_only_if_it_says_so(
    deployer: EmbeddedDeployer, program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> int:
        raise ValueError("not yet")

    failed = deployer.run(RunRequest(application(give_to(program, train).bind(), folder=tmp_path)))
    monkeypatch.setattr(functions_by_value, "begun_runs", {})

    def return_eight() -> int:
        return 8

    return_eight.__name__ = "train"
    app = application(give_to(program, return_eight).bind(), folder=tmp_path)
    with pytest.raises(UsageError, match=r"another function 'train' than this program.*client\.resume\(run, app=app\)"):
        deployer.run(RunRequest(run=failed.name))
    assert deployer.run(RunRequest(app, run=failed.name)).state == "succeeded"
    assert deployer.outputs(failed.name, "train") == {"result": 8}


def test_a_function_that_can_neither_be_named_nor_pickled_is_refused_before_anything_runs(
    deployer: EmbeddedDeployer, tmp_path: Path
) -> None:
    opened = (tmp_path / "file").open("w")

    def write() -> int:
        return opened.write("x")

    app = application(sf.step(write).bind(), folder=tmp_path)
    with opened, pytest.raises(InvalidError, match=r"step 'write' .* cannot be pickled: .*Create that object inside"):
        deployer.plan(RunRequest(app))
    assert deployer.runs() == []


def look() -> tuple[str, str | None, str | None, bool]:
    step = os.environ.get("SCANFLOW_STEP")
    return str(Path.cwd()), step, os.environ.get("SCANFLOW_TEAM"), Path(os.environ["SCANFLOW_OUTPUT_DIR"]).is_dir()


def litter() -> str:
    os.environ["LEFT_BEHIND"] = "x"
    os.chdir("/")
    return str(Path.cwd())


@pytest.mark.processes
@pytest.mark.parametrize("is_there", [True, False])
def test_a_step_in_the_process_sees_the_folder_and_the_variables_that_one_in_its_own_sees(
    deployer: EmbeddedDeployer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if is_there:
        monkeypatch.chdir(tmp_path)
    here, before = str(Path.cwd()), dict(os.environ)
    steps = [
        sf.step(function).options(name=name, in_process=True).bind()
        for name, function in (("inside", look), ("litter", litter), ("again", look))
    ]
    run = deployer.run(RunRequest(application(*steps, sf.step(look).options(name="outside").bind(), folder=tmp_path)))
    seen = {name: deployer.outputs(run.name, name)["result"] for name in ("inside", "again", "outside")}  # type: ignore[call-overload]
    assert seen == {name: (str(tmp_path), name, "default", True) for name in seen}
    assert (str(Path.cwd()), dict(os.environ)) == (here, before), "and leaves nothing behind"


@pytest.mark.processes
def test_a_run_that_a_step_in_the_process_starts_has_its_turn(deployer: EmbeddedDeployer, tmp_path: Path) -> None:
    inner = application(sf.step(look).options(name="inner", in_process=True).bind(), folder=tmp_path)

    def outer() -> list[Any]:
        name = deployer.run(RunRequest(inner)).name
        return [os.environ["SCANFLOW_STEP"], deployer.outputs(name, "inner")["result"][1]]  # type: ignore[call-overload]

    run = deployer.run(RunRequest(application(sf.step(outer).options(in_process=True).bind(), folder=tmp_path)))
    assert run.state == "succeeded", run.tasks
    assert deployer.outputs(run.name, "outer") == {"result": ["outer", "inner"]}


def leave() -> int:
    sys.exit(0)


def leave_at_once() -> int:
    os._exit(0)


@pytest.mark.processes
@pytest.mark.parametrize("function", [leave, leave_at_once])
def test_a_function_that_ends_its_process_has_failed_and_is_run_again_by_resume(
    deployer: EmbeddedDeployer, tmp_path: Path, function: Any
) -> None:
    run = deployer.run(RunRequest(application(sf.step(function).options(name="leave").bind(), folder=tmp_path)))
    failure = run.tasks[0].failure
    assert (run.state, failure is not None and failure.summary) == ("failed", "ended without a result")
    assert failure is not None
    assert "Return from it instead" in failure.cause
    assert deployer.run(RunRequest(run=run.name)).tasks[0].attempts == 2


def tell_zone() -> str:
    import time

    return time.strftime("%z", time.gmtime(0)) and str(time.timezone)


@pytest.mark.processes
def test_variables_that_are_read_when_an_interpreter_starts_have_their_effect(
    deployer: EmbeddedDeployer, tmp_path: Path
) -> None:
    node = sf.step(tell_zone).options(env={"TZ": "Asia/Tokyo"}).bind()
    assert not can_fork(node)
    run = deployer.run(RunRequest(application(node, folder=tmp_path)))
    assert deployer.outputs(run.name, "tell-zone") == {"result": str(-9 * 3600)}


class Named:
    """Has no order, and a text of its own in each process."""


def numbers(kind: str) -> Any:
    return {f"item-{number}" for number in range(8)} if kind == "texts" else {Named(), Named()}


@sf.step
def keep(x: str) -> str:
    return x


@pytest.mark.processes
def test_a_set_is_fanned_out_in_one_order_and_one_without_any_is_refused(
    deployer: EmbeddedDeployer, tmp_path: Path
) -> None:
    source = sf.step(numbers).bind("texts")
    run = deployer.run(RunRequest(application(source, keep.map(source), folder=tmp_path)))
    results = [output["result"] for output in deployer.outputs(run.name, "keep")]  # type: ignore[index]
    assert results == [f"item-{number}" for number in range(8)]
    source = sf.step(numbers).bind("objects")
    run = deployer.run(RunRequest(application(source, keep.map(source), folder=tmp_path)))
    assert [task.failure.cause for task in run.tasks if task.failure] == [
        (
            "The step 'keep' runs for each item of a set, whose items have no order that stays the same. Return a "
            "list, as in sorted(items)."
        )
    ]


@pytest.mark.parametrize("in_process", [True, False])
def test_an_error_with_text_that_is_no_utf_8_is_a_failure_like_any_other(
    deployer: EmbeddedDeployer, tmp_path: Path, in_process: bool
) -> None:
    def read() -> int:
        raise FileNotFoundError(os.fsdecode(b"data-\xff.csv"))

    run = deployer.run(RunRequest(application(sf.step(read).options(in_process=in_process).bind(), folder=tmp_path)))
    [task] = run.tasks
    assert (run.state, task.state) == ("failed", "failed")
    assert task.failure is not None
    assert "FileNotFoundError: data-" in task.failure.cause


def test_a_function_may_take_the_streams_of_its_process_away(deployer: EmbeddedDeployer, tmp_path: Path) -> None:
    def close() -> int:
        sys.__dict__["stdout"] = None
        return 6

    run = deployer.run(RunRequest(application(sf.step(close).bind(), folder=tmp_path)))
    assert (run.state, deployer.outputs(run.name, "close")) == ("succeeded", {"result": 6})


def test_a_list_of_steps_is_a_list_of_what_they_return(deployer: EmbeddedDeployer, tmp_path: Path) -> None:
    def return_same(x: int) -> int:
        return x

    def total(xs: list[int], named: dict[str, int]) -> int:
        return sum(xs) + named["a"]

    first, second = (sf.step(return_same).options(name=f"one{number}").bind(number) for number in (1, 2))
    node = sf.step(total).bind([first, second], named={"a": second})
    run = deployer.run(RunRequest(application(first, second, node, folder=tmp_path)))
    assert deployer.outputs(run.name, "total") == {"result": 5}


@pytest.mark.parametrize("make", [lambda: memoryview(b"a"), lambda: {"file": Path(os.devnull).open()}])  # noqa: SIM115
def test_what_a_pickle_would_make_another_type_of_is_refused(
    deployer: EmbeddedDeployer, tmp_path: Path, make: Any
) -> None:
    run = deployer.run(RunRequest(application(sf.step(make).options(name="make").bind(), folder=tmp_path)))
    [task] = run.tasks
    assert task.failure is not None
    assert "cannot be pickled" in task.failure.cause
