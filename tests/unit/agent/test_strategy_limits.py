"""What a strategy may do, as its code says without being run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from scanflow.agent import Strategy, call, primitives
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.agent_records import Guard
from scanflow.agent.strategy_limits import compute_digest, describe_limits, format_calls, matches_target
from scanflow.errors import InvalidError

SERVICE = "serve"
PARAMETERS = {"workflow": "nightly"}


@dataclass
class Options:
    workflow: str = "training"


OPTIONS = Options()


def scale(count: int) -> Act:
    return do.update_workflow_replica("serve", instances=count)


def scale_by_helper(count: int) -> Act:
    return _resize(SERVICE, count)


def _resize(service: str, count: int) -> Act:
    return do.update_workflow_replica(service, instances=count)


def choose(count: int) -> list[Act]:
    acts: list[Act] = []
    if count > 3:
        workflow = OPTIONS.workflow
        acts.append(do.run_workflow(workflow, count=count))
    return [*acts, *(do.stop_workflow("detector") for _ in range(count))]


def take(value: dict[str, str]) -> Act:
    return do.run_workflow(value["workflow"])


def take_any(value: dict[str, str]) -> Act:
    for name in ("a", "b"):
        value = {"workflow": name}
    return do.run_workflow(name if value else "c")


def take_captured(value: Any) -> Act:
    match value:
        case {"service": SERVICE}:  # noqa: N806  it hides the name of the module
            return do.delete_workflow(SERVICE)
    return _replace("serve")


def _replace(service: str) -> Act:
    service = service[::-1]
    return do.delete_workflow(service)


def build(primitive: str, service: str, count: int) -> Act:
    act: Act = getattr(do, primitive)(service, instances=count)
    return act


def recurse(count: int) -> Act:
    return recurse(count - 1) if count else do.stop_workflow("training")


class Scaler:
    service = "serve"

    def grow(self, count: int) -> Act:
        return do.update_workflow_replica(self.service, instances=count)

    def __call__(self, count: int) -> Act:
        return self.grow(count)


def list_calls(then: Any, **fields: Any) -> list[str]:
    strategy = Strategy(name="s", when="count", then=then, **fields)
    return format_calls(describe_limits(strategy, PARAMETERS).calls)


@pytest.mark.parametrize(
    ("then", "calls"),
    [
        (scale, ["update_workflow_replica on service/serve"]),
        (lambda n: do.update_workflow_replica("serve", instances=n), ["update_workflow_replica on service/serve"]),
        (scale_by_helper, ["update_workflow_replica on service/serve"]),
        (functools.partial(_resize, "other"), ["update_workflow_replica on service/other"]),
        (Scaler().grow, ["update_workflow_replica on service/serve"]),
        (Scaler(), ["update_workflow_replica on service/serve"]),
        (
            lambda n: do.run_workflow("low") if n else primitives.run_workflow(f"{SERVICE}-high"),
            ["run_workflow on workflow/low", "run_workflow on workflow/serve-high"],
        ),
        (lambda n, parameters: do.run_workflow(parameters["workflow"], n=n), ["run_workflow on workflow/nightly"]),
        (choose, ["run_workflow on workflow/training", "stop_workflow on workflow/detector"]),
        (lambda n: [call("checker", "look", n), do.run_workflow("x")], ["run_workflow on workflow/x"]),
        (lambda run: do.stop_workflow(run="r1"), ["stop_workflow on run/r1"]),
        (recurse, ["stop_workflow on workflow/training"]),
        (call("checker", "look"), []),
    ],
)
def test_what_a_function_requests_is_found_in_its_code(then: Any, calls: list[str]) -> None:
    assert list_calls(then) == calls


@pytest.mark.parametrize(
    "then",
    [
        take,
        take_any,
        take_captured,
        functools.partial(build, "run_workflow"),
        lambda value: do.run_workflow(value, n=1),
        do.stop_workflow,
        print,
        eval("lambda n: do.run_workflow('training')"),
    ],
)
def test_a_target_that_is_known_only_when_it_runs_is_not_found_and_may_be_declared(then: Any) -> None:
    assert list_calls(then) == []
    declared = list_calls(then, may={"run_workflow": ["workflow/*", "workflow/training"], "stop_workflow": "*"})
    assert declared == ["run_workflow on workflow/*", "run_workflow on workflow/training", "stop_workflow on *"]


def test_what_is_declared_takes_the_place_of_what_the_code_says() -> None:
    assert list_calls(scale, may={"run_workflow": "workflow/a"}) == ["run_workflow on workflow/a"]
    assert list_calls(scale, may={}) == []
    both = [do.run_workflow("training", count=7), scale]
    assert list_calls(both, may={"stop_workflow": "run/*"}) == [
        "run_workflow on workflow/training",
        "stop_workflow on run/*",
    ]


@pytest.mark.parametrize(
    ("may", "why"),
    [
        ({"run_workflw": "workflow/a"}, "not a primitive. Did you mean 'run_workflow'"),
        ({"run_workflow": "training"}, "has the target 'training' for 'run_workflow'. Write 'workflow/NAME'"),
        ({"run_workflow": ["workflow/a", 5]}, "has the target 5"),
        ({"run_workflow": "workflow/a*"}, "has the target 'workflow/a\\*'"),
        ("run_workflow", "'may' cannot be 'run_workflow'"),
    ],
)
def test_what_is_declared_wrongly_is_refused(may: Any, why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        Strategy(name="s", when="count", then=scale, may=may)


def test_an_action_as_a_value_may_be_requested_with_its_arguments_alone() -> None:
    guard = Guard(metric="service.serve.errors", worse="higher")
    strategy = Strategy(
        name="s",
        when="count",
        then=do.run_workflow("training", count=7),
        priority=3,
        autonomy="approve",
        cool_down="10m",
        budget=2,
        guard=guard,
    )
    limits = describe_limits(strategy, {})
    (permitted,) = limits.calls
    assert permitted.arguments == {"workflow": "training", "parameters": {"count": 7}}
    assert (limits.priority, limits.autonomy, limits.cool_down_s) == (3, "approve", 600.0)
    assert (limits.hysteresis_s, limits.budget, limits.budget_window_s, limits.guard) == (0.0, 2, 3600.0, guard)


def test_a_digest_tells_whether_strategies_are_the_same_in_any_order() -> None:
    def describe(then: Callable[..., Any], **fields: Any) -> Any:
        return describe_limits(Strategy(name="s", when="count", then=then, **fields), {})

    other = describe(choose).model_copy(update={"name": "t"})
    assert compute_digest([describe(scale), other]) == compute_digest([other, describe(scale)])
    different: list[Mapping[str, Any]] = [{"priority": 1}, {"autonomy": "observe"}, {"may": {}}, {"budget": 1}]
    digests = {compute_digest([describe(scale, **fields)]) for fields in [{}, *different]}
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("pattern", "targets"),
    [
        ("workflow/a", {"workflow/a"}),
        ("workflow/*", {"workflow/a", "workflow/ab"}),
        ("*", {"workflow/a", "workflow/ab", "service/a"}),
    ],
)
def test_a_pattern_has_one_target_all_of_a_kind_or_all(pattern: str, targets: set[str]) -> None:
    assert {
        target for target in ("workflow/a", "workflow/ab", "service/a") if matches_target(target, pattern)
    } == targets
