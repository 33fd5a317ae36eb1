"""Programs that the law of workflows makes: steps of functions and values as people bring them, and what Python gives.

A program is a few numbers and names, so that it can be written to a file and built in another process.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import scanflow as sf
from tests.laws import operations
from tests.laws.operations import is_same

MODES: Mapping[str, dict[str, Any]] = {"process": {}, "in process": {"in_process": True}, "cached": {"cache": True}}


@dataclass(frozen=True)
class Call:
    """One step of a program: a function, the earlier steps that it takes, and how it runs."""

    function: str
    takes: tuple[int, ...]
    mode: str
    maps: bool = False


@dataclass(frozen=True)
class Program:
    values: tuple[int, ...]
    """Places in ``VALUES``, which the first steps return."""

    calls: tuple[Call, ...]
    is_literal: bool = False
    """Whether the first steps get their values as parameters, those that a definition can hold."""

    def compute(self) -> list[Any]:
        """Return the results of all steps as Python gives them."""
        results = [copy.deepcopy(operations.VALUES[place]) for place in self.values]
        for call in self.calls:
            function = find_function(call)
            arguments = [copy.deepcopy(results[place]) for place in call.takes]
            if call.maps:
                results.append([function(copy.deepcopy(item)) for item in arguments[0]])
            else:
                results.append(function(*arguments))
            results[-1] = copy.deepcopy(results[-1])
        return results

    def build(
        self, prefix: str = "s", wrap: Callable[[int, Callable[..., Any]], Callable[..., Any]] = lambda _, call: call
    ) -> list[Any]:
        """Return the nodes of all steps; ``wrap`` changes the function of the step with a number."""
        nodes = [self._build_first(f"{prefix}{index}", place) for index, place in enumerate(self.values)]
        for call in self.calls:
            function = wrap(len(nodes), find_function(call))
            step = sf.step(function).options(name=f"{prefix}{len(nodes)}", **MODES[call.mode])
            takes = [nodes[place] for place in call.takes]
            nodes.append(step.map(takes[0]) if call.maps else step.bind(*takes))
        return nodes

    def _build_first(self, name: str, place: int) -> Any:
        value = copy.deepcopy(operations.VALUES[place])
        if self.is_literal:
            try:
                return sf.step(operations.keep).options(name=name).bind(value)
            except ValueError:  # a definition would change it, and says so
                pass
        return sf.step(make_source(value)).options(name=name).bind()


def make_source(value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    return give


def find_function(call: Call) -> Callable[..., Any]:
    functions = {**operations.FUNCTIONS, "pair": operations.pair, "listed": operations.list_values}
    return functions[call.function]


def build_application(programs: Sequence[Program], **wraps: Any) -> sf.Application:
    """Return an application with one workflow that has all programs side by side."""
    nodes = [node for index, program in enumerate(programs) for node in program.build(f"p{index}-s", **wraps)]
    return sf.Application(name="law", workflows=[sf.Workflow(name="programs", nodes=nodes)])


def find_differences(programs: Sequence[Program], read: Callable[[str], Any]) -> Iterator[str]:
    """Yield what steps gave that their calls do not; ``read`` returns the result of a step."""
    for index, program in enumerate(programs):
        for place, value in enumerate(program.compute()):
            try:
                result = read(f"p{index}-s{place}")
            except Exception as error:  # noqa: BLE001  whatever it is, it is no result
                result = error
            if not is_same(result, value):
                yield f"step s{place} gave {result!r}, the call {value!r}, in {program}"


def dump_programs(programs: Sequence[Program]) -> str:
    return json.dumps([asdict(program) for program in programs])


def load_programs(text: str) -> list[Program]:
    return [
        Program(
            tuple(program["values"]),
            tuple(
                Call(call["function"], tuple(call["takes"]), call["mode"], call["maps"]) for call in program["calls"]
            ),
            program["is_literal"],
        )
        for program in json.loads(text)
    ]


def may_be_mapped(value: Any) -> bool:
    return type(value) in {list, tuple, deque} and len(value) < 4


class KillingAt:
    """Has the step with a number, of all that a batch has, kill the process that drives the run, once.

    Made where an application's file is loaded, which is in that process.
    """

    def __init__(self, folder: Path, place: int) -> None:
        self._folder, self._left = folder, place

    def __call__(self, _place: int, function: Callable[..., Any]) -> Callable[..., Any]:
        self._left -= 1
        return kill_once(self._folder / "killed", os.getpid(), function) if self._left == -1 else function


def kill_once(mark: Path, pid: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that kills a process the first time, and does what ``function`` does."""

    def call(*arguments: Any, **named: Any) -> Any:
        if not mark.exists():
            mark.touch()
            os.kill(pid, signal.SIGKILL)
        return function(*arguments, **named)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call
