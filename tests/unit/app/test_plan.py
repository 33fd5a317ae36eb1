"""What a workflow would do and take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.plan import UNBOUNDED, Plan, plan_workflow
from tests.unit.app.app_builders import batch, script, workflows

load, left, right = script("load"), script("left"), script("right")


def make_sized(name: str, cpu: float | None, memory: str | None, **fields: Any) -> sf.Executor:
    return script(name, resources=sf.Resources(cpu=cpu, memory=memory), **fields)


def plan_on(workflow: sf.Workflow, *, cores: int, memory: int = 64 * 2**30) -> Plan:
    return plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=memory)


@given(workflows(), st.integers(1, 128))
def test_the_plan_has_each_step_once_in_the_order_of_the_waves(workflow: sf.Workflow, cores: int) -> None:
    plan = plan_on(workflow, cores=cores)
    assert tuple(step.name for step in plan.steps) == tuple(name for wave in workflow.levels for name in wave)
    assert [step.wave for step in plan.steps] == sorted(step.wave for step in plan.steps)
    assert plan.waves == len(workflow.levels)
    assert all(step.after == workflow.parents[step.name] for step in plan.steps)
    assert 0 <= plan.peak_cores <= cores
    assert plan.unsized == sum(step.resources.memory is None for step in workflow.steps)


def test_steps_of_one_wave_add_up_and_those_of_two_do_not() -> None:
    side_by_side = batch(make_sized("a", 2, "1Gi"), make_sized("b", 3, "2Gi"))
    plan = plan_on(side_by_side, cores=16)
    assert (plan.peak_cores, plan.peak_memory_bytes) == (5, 3 * 2**30)
    after = batch(*side_by_side.steps, edges=side_by_side.steps[0] >> side_by_side.steps[1])
    plan = plan_on(after, cores=16)
    assert (plan.peak_cores, plan.peak_memory_bytes) == (3, 2 * 2**30)


@pytest.mark.parametrize(("cores", "at_once"), [(1, 1), (4, 4), (100, 5)])
def test_a_fan_out_counts_as_many_tasks_as_fit(cores: int, at_once: int) -> None:
    plan = plan_on(batch(make_sized("a", 1, "1Gi", for_each=range(5))), cores=cores)
    assert (plan.steps[0].width, plan.peak_cores, plan.peak_memory_bytes) == (5, at_once, at_once * 2**30)


@pytest.mark.parametrize(
    ("steps", "gpus"),
    [
        ((script("a", resources=sf.Resources(gpu=1)), script("b", resources=sf.Resources(gpu=0.5)), load), 1.5),
        ((script("a", resources=sf.Resources(gpu=2), for_each=range(3)),), 6),
        ((load, script("a", resources=sf.Resources(gpu=1), for_each=load)), float(UNBOUNDED)),
        ((script("a", resources=sf.Resources(gpu="1g.10gb")),), 0),
        ((load,), 0),
    ],
)
def test_the_gpus_of_one_wave_add_up(steps: tuple[sf.Executor, ...], gpus: float) -> None:
    assert plan_on(batch(*steps), cores=8).peak_gpus == gpus


def test_a_fan_out_known_at_run_time_may_fill_the_machine() -> None:
    plan = plan_on(batch(load, make_sized("a", 2, "1Gi", for_each=load)), cores=8)
    assert (plan.steps[1].width, plan.peak_cores, plan.peak_memory_bytes) == (None, 8, 4 * 2**30)


def test_a_fan_out_over_nothing_takes_nothing() -> None:
    plan = plan_on(batch(make_sized("a", 2, "1Gi", for_each=[])), cores=8)
    assert (plan.steps[0].width, plan.peak_cores, plan.peak_memory_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"for_each": load}, "for each load.result"),
        ({"for_each": [1, 2]}, "for each of 2"),
        ({"when": load["ok"].equals(True)}, "when load.ok == true"),
        ({"requirements": "r.txt"}, "own environment"),
        ({"retries": 1}, "1 retry"),
        ({"retries": 2}, "2 retries"),
        ({"timeout": "1m30s"}, "at most 90 s"),
        ({"cache": "v2"}, "cached"),
        ({"image": "python"}, "image not used here"),
    ],
)
def test_what_is_special_about_a_step_is_noted(fields: dict[str, Any], note: str) -> None:
    assert plan_on(batch(load, script("a", **fields)), cores=1).steps[1].notes == (note,)


def test_what_runs_is_the_script_or_the_function() -> None:
    function = sf.Executor(name="f", function="steps.py:train", in_process=True)
    plan = plan_on(batch(load, function), cores=1)
    assert [step.runs for step in plan.steps] == ["load.py", "steps.py:train"]
    assert plan.steps[1].notes == ("in process",)


def test_memory_that_is_not_there_is_waited_for_but_one_step_alone_gets_what_it_asks() -> None:
    both = batch(make_sized("a", 1, "6Gi"), make_sized("b", 1, "6Gi"))
    assert plan_on(both, cores=2, memory=8 * 2**30).peak_memory_bytes == 8 * 2**30
    assert plan_on(both, cores=2, memory=2**30).peak_memory_bytes == 6 * 2**30
