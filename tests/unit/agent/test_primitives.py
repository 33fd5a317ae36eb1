"""The primitives: the catalogue says what they are, the functions check what they are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.agent import primitives as do
from scanflow.agent.actions import Act, Call, call
from scanflow.errors import InvalidError, NotFoundError
from tests.unit.app.app_builders import keys, make_unchecked, message, names, plain_values

TABLE_5_4 = {
    ("application", "batch"): "runWorkflow stopWorkflow upgradeWorkflow updateWorkflowAffinity updateWorkflowResource",
    (
        "infrastructure",
        "batch",
    ): "runExecutor stopExecutor upgradeExecutor updateExecutorAffinity updateExecutorResource",
    ("application", "online"): (
        "deployWorkflow deleteWorkflow upgradeWorkflow updateWorkflowAffinity updateWorkflowResource "
        "updateWorkflowReplica updateWorkflowTraffic"
    ),
    ("infrastructure", "online"): "applyWorkflowInstance deleteWorkflowInstance duplicateWorkflowInstance",
}
OF_MPI = {("application", "mpi"): "runWorkflow stopWorkflow runAutoconfigWorkflow"}
OF_TUNING = {("infrastructure", "online"): "tuneWorkflow"}


def snake(name: str) -> str:
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name)


def test_the_catalogue_is_the_thesis_table() -> None:
    printed, more = (
        {(*cell, snake(name)) for table in tables for cell, text in table.items() for name in text.split()}
        for tables in ((TABLE_5_4,), (OF_MPI, OF_TUNING))
    )
    assert len(printed) == 20
    assert {(row.layer, row.kind, row.name) for row in do.CATALOGUE} == printed | more
    assert len(do.CATALOGUE) == len(printed) + len(more)
    assert {act.primitive for act, *_ in ACTS} == {row.name for row in do.CATALOGUE}, "each is tried below"


def test_each_row_says_what_it_does_and_what_it_takes() -> None:
    for row in do.CATALOGUE:
        assert row.what.endswith(".")
        assert row.fields
        assert row.parameters[0].name == "workflow"
        assert all(parameter.what and parameter.type for parameter in row.parameters)
        assert json.loads(row.model_dump_json())["name"] == row.name


SCALING = {"metric": "rps", "target": 20, "max": 3}
ACTS: list[tuple[Act, str, dict[str, Any]]] = [
    (do.run_workflow("training", retrain=True), "workflow/training running", {"parameters": {"retrain": True}}),
    (do.run_workflow("training"), "workflow/training running", {}),
    (
        do.run_autoconfig_workflow("hpcc", policy="granularity", nodes=4, size=1000),
        "workflow/hpcc running",
        {"policy": "granularity", "nodes": 4, "parameters": {"size": 1000}},
    ),
    (do.stop_workflow("training", run="calm-otter-417"), "run/calm-otter-417 running", {"run": "calm-otter-417"}),
    (
        do.upgrade_workflow("digits", model="models:/cnn/3"),
        "service/digits model",
        {"kind": "online", "model": "models:/cnn/3"},
    ),
    (
        do.upgrade_workflow("training", parameters={"epochs": 3}),
        "workflow/training parameters",
        {"kind": "batch", "parameters": {"epochs": 3}},
    ),
    (
        do.update_workflow_affinity("training", "cpumem", kind="batch"),
        "workflow/training affinity",
        {"affinity": "cpumem", "kind": "batch"},
    ),
    (
        do.update_workflow_resource("digits", cpu="500m", memory="1024Mi"),
        "service/digits resource",
        {"cpu": 0.5, "memory": "1Gi", "kind": "online"},
    ),
    (
        do.run_executor("training", "load-data", days=3),
        "workflow/training load-data.running",
        {"executor": "load-data", "run": "@latest", "parameters": {"days": 3}},
    ),
    (
        do.stop_executor("training", "cnn1", run="calm-otter-417"),
        "workflow/training cnn1.running",
        {"executor": "cnn1", "run": "calm-otter-417"},
    ),
    (
        do.upgrade_executor("training", "load-data", days=30),
        "workflow/training load-data.parameters",
        {"executor": "load-data", "parameters": {"days": 30}},
    ),
    (
        do.update_executor_affinity("training", "cnn1", "cpu"),
        "workflow/training cnn1.affinity",
        {"executor": "cnn1", "affinity": "cpu"},
    ),
    (
        do.update_executor_resource("training", "cnn1", gpu=1),
        "workflow/training cnn1.resource",
        {"executor": "cnn1", "gpu": 1},
    ),
    (
        do.deploy_workflow("digits", instances=2, cores=1.5),
        "service/digits running replicas resource",
        {"instances": 2, "cores": 1.5},
    ),
    (do.delete_workflow("digits"), "service/digits running", {}),
    (
        do.update_workflow_replica("digits", metric="rps", target=100, max=4),
        "service/digits replicas",
        {"metric": "rps", "target": 100.0, "max": 4},
    ),
    (
        do.update_workflow_traffic("digits", "models:/cnn@challenger", weight=0.1),
        "service/digits traffic",
        {"model": "models:/cnn@challenger", "weight": 0.1, "shadow": False},
    ),
    (
        do.apply_workflow_instance("digits", instances=8, cores=4, affinity="cpumem"),
        "service/digits replicas resource affinity",
        {"instances": 8, "cores": 4.0, "affinity": "cpumem"},
    ),
    (do.delete_workflow_instance("digits", instance="2"), "service/digits replicas", {"count": 1, "instance": "2"}),
    (do.duplicate_workflow_instance("digits", count=3), "service/digits replicas", {"count": 3}),
    (
        do.tune_workflow("digits", file="x.npy", goal="latency", minutes=5),
        "service/digits tuning",
        {"file": "x.npy", "goal": "latency", "trials": 20, "minutes": 5.0, "seconds": 3.0, "connections": 16},
    ),
]


@pytest.mark.parametrize(("act", "writes", "arguments"), ACTS, ids=lambda act_: getattr(act_, "primitive", ""))
def test_a_primitive_says_what_it_writes_and_can_be_read_back(act: Act, writes: str, arguments: dict[str, Any]) -> None:
    assert " ".join([act.target, *act.fields]) == writes
    assert act.arguments == {"workflow": act.workflow, **arguments}
    assert do.parse_act(act.primitive, json.loads(json.dumps(act.arguments))) == act
    kind = "online" if act.target.startswith("service/") else act.workflow_kind or "batch"
    (row,) = [row for row in do.CATALOGUE if (row.name, row.kind) == (act.primitive, kind)]
    assert {field.rpartition(".")[2] for field in act.fields} <= {field.rpartition(".")[2] for field in row.fields}
    assert set(act.arguments) <= {parameter.name for parameter in row.parameters}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: make_unchecked(do.deploy_workflow, workflow="digits", instnces=2),
            "The primitive 'deploy_workflow' has no argument 'instnces'. Did you mean 'instances'?",
        ),
        (lambda: make_unchecked(do.deploy_workflow), "The primitive 'deploy_workflow' needs the argument 'workflow'."),
        (
            lambda: make_unchecked(do.deploy_workflow, workflow="digits", instances="two"),
            "The primitive 'deploy_workflow': instances cannot be 'two'. Expected: whole number.",
        ),
        (
            lambda: make_unchecked(do.duplicate_workflow_instance, workflow="digits", count=True),
            "The primitive 'duplicate_workflow_instance': count cannot be True. Expected: whole number.",
        ),
        (
            lambda: make_unchecked(do.update_workflow_affinity, workflow="digits", affinity="gpu"),
            "affinity cannot be 'gpu'. Expected: any of any, cpu, cpumem, cpumempin.",
        ),
        (lambda: do.delete_workflow("My Service"), "The workflow name 'My Service' cannot be used"),
        (lambda: do.upgrade_workflow("digits", model="cnn"), "Write 'models:/cnn@champion' or 'models:/cnn/1'."),
        (lambda: do.upgrade_workflow("digits"), "takes parameters: parameters={'epochs': 3}."),
        (lambda: do.upgrade_workflow("digits", kind="online"), "takes a model: model='models:/name/3'."),
        (lambda: do.upgrade_executor("training", "load"), "needs a parameter to set"),
        (lambda: do.update_workflow_resource("digits"), "changes nothing. Set cpu=, memory= or gpu=."),
        (lambda: do.update_workflow_resource("digits", memory="5Gb"), "has the unknown unit 'Gb'"),
        (lambda: do.update_workflow_replica("digits"), "takes either a number"),
        (lambda: do.update_workflow_replica("digits", instances=2, metric="rps"), "takes either a number"),
        (lambda: do.update_workflow_replica("digits", metric="rps"), "Scaling needs the field 'target'."),
        (
            lambda: do.update_workflow_traffic("digits", "models:/cnn/1", weight=1.5),
            "weight cannot be 1.5: it should be less",
        ),
        (lambda: do.apply_workflow_instance("digits"), "changes nothing"),
        (lambda: do.apply_workflow_instance("digits", instances=-1), "instances cannot be -1: it should be"),
        (lambda: do.apply_workflow_instance("digits", cores=0), "cores cannot be 0: it should be greater than 0"),
        (lambda: do.delete_workflow_instance("digits", count=2, instance="a"), "either a name or a count"),
        (lambda: do.run_workflow("training", parameters={"a": 1}, a=2), "The parameter 'a' is given twice."),
        (lambda: do.run_workflow("training", data={1}), "is a set, which cannot be serialized"),
        (lambda: do.stop_workflow("training", run=" "), "The run has no name."),
        (lambda: do.parse_act("run_workflw", {}), "no primitive 'run_workflw'. Did you mean 'run_workflow'?"),
        (lambda: call("My Agent", "check"), "The agent name 'My Agent' cannot be used"),
        (lambda: call("checker", "check-it"), "Write 'check_it' instead."),
        (lambda: call("checker", "check", {1}), "the argument 1 is a set, which cannot be serialized."),
        (lambda: call("checker", "check", data=float("nan")), "the parameter 'data' is nan"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_to_write(make: Callable[[], object], reason: str) -> None:
    with pytest.raises((InvalidError, NotFoundError)) as error:
        make()
    assert reason in message(error)


def test_arguments_beyond_the_first_have_names() -> None:
    with pytest.raises(InvalidError, match="takes only these positional arguments: workflow"):
        do.run_workflow("training", 3)  # type: ignore[call-arg,arg-type]  # which is the point
    with pytest.raises(InvalidError, match="got the argument 'workflow' twice"):
        do.run_workflow("training", workflow="other")  # type: ignore[misc]


def test_what_decides_on_instances_is_replaced_or_taken_away() -> None:
    act = do.update_workflow_replica("digits", scaling=SCALING)
    assert (act.target, act.fields) == ("service/digits", ("replicas",))
    assert act.arguments == {"workflow": "digits", "scaling": SCALING}
    assert do.parse_act(act.primitive, act.arguments) == act
    assert do.update_workflow_replica("digits", scaling=None).arguments == {"workflow": "digits", "scaling": None}
    act = do.update_workflow_replica("digits", scaling=None, instances=4)
    assert act.arguments == {"workflow": "digits", "scaling": None, "instances": 4}
    assert "scaling" not in do.update_workflow_replica("digits", instances=4).arguments


def test_what_only_an_inverse_has_is_refused_to_others_and_none_says_nothing() -> None:
    with pytest.raises(InvalidError, match="'update_workflow_affinity' has no argument 'nodes'"):
        do.parse_act("update_workflow_affinity", {"workflow": "digits", "affinity": "cpu", "nodes": {"cnn": None}})
    act = do.update_executor_resource("training", "load", cpu=2, memory=None)
    assert act.arguments == {"workflow": "training", "executor": "load", "cpu": 2.0}
    fields = {**act.arguments, "memory": None}
    assert do.parse_act("update_executor_resource", fields, inverse=True).arguments == fields  # a limit is taken away


@given(names, st.dictionaries(keys.filter(lambda key: key not in {"workflow", "parameters"}), plain_values, max_size=3))
def test_any_parameters_of_a_run_come_back_as_they_were(workflow: str, parameters: dict[str, Any]) -> None:
    act = do.run_workflow(workflow, parameters=parameters)
    assert act == do.run_workflow(workflow, **parameters)
    assert do.parse_act("run_workflow", json.loads(json.dumps(act.arguments))) == act


@given(names, st.from_regex(r"on_[a-z]{1,8}", fullmatch=True), st.lists(plain_values, max_size=3))
def test_a_call_comes_back_from_json_as_it_was(agent: str, sensor: str, args: list[Any]) -> None:
    agent_call = call(agent, sensor, *args, given=args)
    assert Call.model_validate_json(agent_call.model_dump_json()) == agent_call
    assert agent_call.payload() == {"args": args, "kwargs": {"given": args}}
    assert agent_call.path == f"/sensors/{sensor}"


def test_actions_and_calls_read_as_they_are_written() -> None:
    assert (
        str(do.run_workflow("training", retrain=True))
        == "run_workflow(workflow='training', parameters={'retrain': True})"
    )
    assert str(call("checker", "check", 1, run="a")) == "checker.check(1, run='a')"
