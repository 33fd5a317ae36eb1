"""Actuators: what a function returns becomes a call to another agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scanflow.agent.actions import call
from scanflow.agent.actuators.actuator import actuator
from scanflow.agent.context import current, use_context
from scanflow.agent.sensors.firing import Firing, fire
from scanflow.agent.sensors.sensor import sensor
from scanflow.errors import InvalidError, UsageError
from tests.unit.agent.agent_builders import Kept, context
from tests.unit.app.app_builders import make_unchecked, message

to_checker = actuator(path="/sensors/check_predictions", depender="checker")


@to_checker
def return_arguments(args, kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  as in the thesis
    return args, kwargs


@to_checker
def return_named(run_ids: list[str], least: int = 1) -> dict[str, Any]:
    return {"run_ids": run_ids, "least": least}


@to_checker
async def later(run_id: str) -> tuple[list[str], dict[str, Any]]:
    await asyncio.sleep(0)
    return [run_id], {}


CALLS = [
    (lambda: return_arguments(run_ids=["a"]), call("checker", "check_predictions", run_ids=["a"])),
    (lambda: return_arguments("a", 2), call("checker", "check_predictions", "a", 2)),
    (lambda: return_named(["a"], least=3), call("checker", "check_predictions", run_ids=["a"], least=3)),
    (lambda: later("a"), call("checker", "check_predictions", "a")),
]


@pytest.mark.parametrize(("act", "wanted"), CALLS)
def test_an_actuator_that_is_awaited_calls_the_agent(act: Callable[[], Any], wanted: object) -> None:
    tracker = Kept()

    async def fire_sensor() -> Any:
        with use_context(context(caller=tracker)):
            return await act()

    assert asyncio.run(fire_sensor()) == {"sample": "s1"}
    assert tracker.done == [wanted]


def test_an_actuator_in_a_plain_sensor_returns_when_the_agent_has_accepted() -> None:
    tracker = Kept()

    @sensor
    def count() -> Any:
        return return_named(["a"])

    async def run() -> Any:
        return await fire(count, Firing(context=context(caller=tracker, loop=asyncio.get_running_loop())))

    assert asyncio.run(run()) == {"sample": "s1"}
    assert tracker.done == [call("checker", "check_predictions", run_ids=["a"], least=1)]


def test_the_call_is_there_as_a_value_without_any_firing() -> None:
    assert return_named.call(["a"]) == call("checker", "check_predictions", run_ids=["a"], least=1)
    assert return_arguments.call(1, b=2) == call("checker", "check_predictions", 1, b=2)


def act_without_loop(act: Callable[[], Any]) -> Any:
    """Act as a plain function in a firing does: with no loop in its thread."""
    with use_context(context(caller=Kept())):
        return act()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda: return_named(["a"]), "The actuator 'return_named' was called outside of a firing"),
        (lambda: act_without_loop(lambda: return_named(["a"])), "this context has no event loop"),
        (lambda: act_without_loop(lambda: later("a")), "The actuator 'later' is async. Call it from an async sensor"),
        (lambda: later.call("a"), "The actuator 'later' is async, so it cannot return a call as a value."),
        (lambda: return_named.call(ids=1), "The actuator 'return_named': missing a required argument: 'run_ids'."),
        (lambda: to_checker(lambda: 3).call(), "returned 3. Return 'args, kwargs'"),
        (lambda: to_checker(lambda: ["a"]).call(), "returned ['a']. Return 'args, kwargs'"),
        (lambda: to_checker(lambda: {"a": {1}}).call(), "is a set, which cannot be serialized"),
        (lambda: actuator(path="/checks/x", depender="checker"), "names no sensor. Write path='/sensors/NAME'."),
        (lambda: actuator(path="/sensors/a-b", depender="checker"), "Write 'a_b' instead."),
        (lambda: actuator(path="/sensors/x", depender="The Checker"), "Write 'the-checker' instead."),
        (lambda: make_unchecked(lambda: to_checker(3)), "@actuator decorates functions; 3 is not a function."),  # type: ignore[arg-type]
        (current, "There is no context here"),
    ],
)
def test_what_cannot_be_done_says_why(act: Callable[[], object], reason: str) -> None:
    with pytest.raises(UsageError) as error:
        act()
    assert reason in message(error)


def test_without_a_caller_nothing_is_done() -> None:
    async def fire_sensor() -> None:
        with use_context(context()):
            await return_named(["a"])

    with pytest.raises(UsageError, match="this context has no caller"):
        asyncio.run(fire_sensor())


def test_nothing_returned_is_a_call_without_arguments() -> None:
    assert to_checker(lambda: None).call() == call("checker", "check_predictions")
    with pytest.raises(InvalidError, match="too many positional arguments"):
        to_checker(lambda: None).call(1)
