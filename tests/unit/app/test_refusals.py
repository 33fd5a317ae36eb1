"""What the parts of an application refuse, each with the part's name and with what to write instead."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Gt

import scanflow as sf
from scanflow.app.steps import Step, check_parameters
from scanflow.errors import InvalidError, ScanflowError
from tests.unit.app.app_builders import batch, make_unchecked, message, script

HOURLY = sf.every(hours=1)
TRAINING = batch(script("train"))
CNN = sf.Service(name="cnn", model="models:/cnn@champion")
MPI = sf.MPIWorkload(name="dgemm", mainfile="dgemm", n_tasks=4)
CLASS: dict[str, Any] = {"model": None, "implementation": "a.py:A"}
IN_PROCESS: dict[str, Any] = {"mainfile": None, "function": "a.py:train", "in_process": True}
RIGHT: dict[Any, dict[str, Any]] = {
    sf.Agent: {"name": "watch", "template": "checker"},
    sf.Application: {"name": "shop"},
    sf.Batching: {},
    sf.Executor: {"name": "train", "mainfile": "train.py"},
    sf.MPIWorkload: {"name": "dgemm", "mainfile": "dgemm", "n_tasks": 4},
    sf.Scaling: {"metric": "rps", "target": 10},
    sf.Sensor: {"name": "s", "trigger": HOURLY},
    sf.Service: {"name": "cnn", "model": "models:/cnn@champion"},
    sf.Serving: {},
    sf.Workflow: {"name": "w", "nodes": [script("a")]},
}


def keep_positive(x: Annotated[int, Gt(0)]) -> int:
    return x


def keep_any(x: Any) -> Any:
    return x


def keep_list(x: list[Any]) -> Any:
    return x


@pytest.mark.parametrize(
    ("part", "fields", "reason"),
    [
        (sf.Agent, {"template": "plan"}, "There is no template 'plan'. Did you mean 'planner'? Installed: checker,"),
        (sf.Agent, {"parameters": {"m": {1}}}, "the parameter 'm' is a set, which cannot be serialized."),
        (sf.Agent, {"modules": "rules.py"}, "Agent 'watch': modules cannot be 'rules.py': it should be a list."),
        (sf.Agent, {"sensors": [sf.Sensor(name="s", trigger=HOURLY)] * 2}, "Agent 'watch' has two sensors named 's'."),
        (sf.Agent, {"sensors": [{"name": "s"}]}, "Sensor 's' needs the field 'trigger'."),
        (sf.Agent, {"sensor": []}, "Agent 'watch' has no field 'sensor'. Did you mean 'sensors'?"),
        (sf.Agent, {"name": "Watch Dog"}, "The agent name 'Watch Dog' cannot be used"),
        (sf.Agent, {"memory": "1Gi"}, "Agent 'watch' has no field 'memory'. It belongs in resources:"),
        (sf.Sensor, {"trigger": "1h"}, "Sensor 's': trigger cannot be '1h': it has no 'kind', which names its type."),
        (sf.Sensor, {"trigger": {"kind": "hourly"}}, "trigger cannot be {'kind': 'hourly'}: its kind should be one of"),
        (sf.Sensor, {"nodes": "train"}, "Sensor 's': nodes cannot be 'train': it should be a list."),
        (sf.Sensor, {"function": "count"}, "Sensor 's': The function 'count' cannot be read. Write 'file.py:name'"),
        (sf.Agent, {"template": None}, "Agent 'watch' would do nothing. Give it a 'template', 'sensors' or 'modules'."),
        (sf.Application, {"workflows": [TRAINING, TRAINING]}, "Application 'shop' has two workflows named 'training'."),
        (sf.Application, {"agents": [sf.Agent(name="a", template="planner")] * 2}, "Application 'shop' has two agents"),
        (sf.Application, {"workflow": TRAINING}, "Application 'shop' has no field 'workflow'. Did you mean"),
        (sf.Application, {"team": "Data Team"}, "The team name 'Data Team' cannot be used"),
        (sf.Application, {"tracker": "http://localhost"}, "tracker cannot be 'http://localhost': it should be a"),
        (sf.Application, {"tracker": {"port": True}}, "port cannot be True: it should be a number."),
        (sf.Application, {"app_dir": None}, "Application 'shop': app_dir cannot be None. Write a folder, such as '.'."),
        (sf.Application, {"workflows": {"training": TRAINING}}, "it should be a list."),
        (sf.Application, {"workflows": [script("train")]}, "workflows.0 cannot be"),
        (sf.MPIWorkload, {"n_tasks": 0}, "n_tasks cannot be 0: it should be greater than or equal to 1."),
        (sf.MPIWorkload, {"n_task": 1}, "MPIWorkload 'dgemm' has no field 'n_task'. Did you mean 'n_tasks'?"),
        (
            sf.MPIWorkload,
            {"profile": "net"},
            "profile cannot be 'net': it should be 'cpu', 'memory', 'network' or 'auto'.",
        ),
        (sf.MPIWorkload, {"resources_per_task": {"cpu": 0}}, "Resources: cpu 0 is not above zero."),
        (sf.MPIWorkload, {"name": "hpcc_dgemm"}, "The MPI workload name 'hpcc_dgemm' cannot be used"),
        (sf.Service, {"role": "MODLE"}, "Service 'cnn': role 'MODLE' is not known. Did you mean 'MODEL'?"),
        (sf.Service, {"role": 3}, "Service 'cnn': role 3 is not known. Known: COMBINER, MODEL"),
        (sf.Service, {"role": "router"}, "Service 'cnn' has a registry model, so its role is MODEL, not ROUTER."),
        (sf.Service, {"instances": -1}, "instances cannot be -1: it should be greater than or equal to 0."),
        (
            sf.Service,
            {"parameters": {"m": script("a")}},
            "the parameter 'm' is an Executor, which cannot be serialized",
        ),
        (sf.Service, {"parameters": {"m": {"$from": "a.x"}}}, "Service 'cnn': the parameter 'm' has the key '$from'"),
        (sf.Service, {"replicas": 3}, "Service 'cnn' has no field 'replicas'."),
        (sf.Service, {"name": "CNN"}, "The service name 'CNN' cannot be used: a name is"),
        (sf.Service, {"model": None}, "needs either an 'implementation' (a Python class) or a 'model', not both."),
        (sf.Scaling, {"min": 3, "max": 2}, "Scaling has min=3 above max=2. Swap them, or raise max."),
        (sf.Scaling, {"target": 0}, "Scaling: target cannot be 0"),
        (sf.Scaling, {"target": float("nan")}, "Scaling: target cannot be nan: it should be a finite number."),
        (
            sf.Scaling,
            {"metric": "latency"},
            "Scaling: metric cannot be 'latency': it should be 'rps', 'p95', 'cpu', 'queue'",
        ),
        (sf.Scaling, {"polling": "0s"}, "Scaling: polling '0s' is not above zero. Write seconds, or '90s'"),
        (sf.Scaling, {"cool_down": "5 minutes"}, "Scaling: cool_down '5 minutes' has the unknown unit 'minutes'."),
        (sf.Scaling, {"cooldown": 5}, "Scaling has no field 'cooldown'. Did you mean 'cool_down'?"),
        (sf.Serving, {"port": 0}, "Serving: port cannot be 0: it should be greater than or equal to 1."),
        (sf.Serving, {"port": 80, "grpc_port": 80}, "Serving has port 80 for both HTTP and gRPC. Give gRPC another"),
        (sf.Serving, {"connection_age": -1}, "Serving: connection_age -1 is not above zero."),
        (sf.Serving, {"max_request": "64Mib"}, "Serving: max_request '64Mib' has the unknown unit 'Mib'. Did you mean"),
        (sf.Serving, {"record": 10}, "Serving: record cannot be 10: it should be less than or equal to 1."),
        (sf.Serving, {"backup": "The Other"}, "The workflow name 'The Other' cannot be used"),
        (sf.Serving, {"env": {"A=B": "1"}}, "Serving: env has 'A=B'=***, which is not a valid environment variable."),
        (sf.Serving, {"auth": "s3cret"}, "Serving.auth is a reference to the token, not the token itself"),
        (
            sf.Serving,
            {"clients": ["ada"]},
            "'ada' is no subject of a client certificate. Write CN= and the name that it",
        ),
        (sf.Serving, {"clients": ["O=shop"]}, "it was issued for: 'CN=ada'"),
        (sf.Serving, {"clients": ["CN=a,O=b"]}, "'a,O=b' is no name of a certificate. Use letters"),
        (sf.Serving, {"clients": []}, "Serving.clients is empty: nobody could send a request. Name a client: clients="),
        (sf.Serving, {"time_out": 3}, "Serving has no field 'time_out'."),
        (sf.Batching, {"max_size": 0}, "Batching: max_size cannot be 0"),
        (sf.Batching, {}, "Batching needs the field 'max_size'."),
        (sf.Batching, {"max_size": 2, "max_delay": "-5ms"}, "Batching: max_delay '-5ms'"),
        (sf.Service, CLASS | {"role": "ROUTER", "batching": sf.Batching(max_size=2)}, "is a ROUTER, which decides on"),
        (sf.Workflow, {"serving": sf.Serving()}, "is of type 'batch' and has 'serving', which only online workflows"),
        (sf.Executor, {"retrys": 1}, "Executor 'train' has no field 'retrys'. Did you mean 'retries'?"),
        (sf.Executor, {"memory": "1Gi"}, "Executor 'train' has no field 'memory'. It belongs in resources:"),
        (sf.Executor, {"mainfile": None}, "needs either a 'mainfile' (a script) or a @sf.step function, not both"),
        (sf.Executor, {"mainfile": None, "function": "train"}, "The function 'train' cannot be read. Write"),
        (sf.Executor, {"mainfile": None, "function": len}, "cannot be read. Write 'file.py:name' or"),
        (sf.Executor, {"mainfile": 3}, "mainfile cannot be 3: it should be text (in a file, put it in quotes)."),
        (sf.Executor, {"retries": True}, "retries cannot be True. Write retries=3, or sf.Retry(limit=3, delay='10s')."),
        (sf.Executor, {"retries": "3"}, "retries cannot be '3'. Write retries=3"),
        (sf.Executor, {"retries": -1}, "limit cannot be -1: it should be greater than or equal to 0."),
        (sf.Executor, {"retries": 101}, "limit cannot be 101: it should be less than or equal to 100."),
        (sf.Executor, {"cache": ""}, "cache cannot be ''. Write True, False, or a version as text"),
        (sf.Executor, {"requirements": [3]}, "requirements cannot be [3]. Write a file's name"),
        (sf.Executor, {"env": {"A": 1}}, "env.A cannot be 1: it should be text"),
        (sf.Executor, {"env": {"A=B": "1"}}, "env has 'A=B'=***, which is not a valid environment variable"),
        (sf.Executor, {"env": {"A": "a\0b"}}, "which is not a valid environment variable"),
        (sf.Executor, {"affinity": "cpumen"}, "affinity 'cpumen' is not known. Did you mean 'cpumem'?"),
        (sf.Executor, {"resources": {"cpu": -1}}, "Resources: cpu -1 is not above zero"),
        (sf.Executor, {"resources": {"memory": "5Gb"}}, "Did you mean '5Gi'"),
        (sf.Executor, {"resources": {"gpu": True}}, "gpu cannot be True: it should be a number."),
        (sf.Executor, {"resources": 4}, "resources cannot be 4: it should be a Resources."),
        (sf.Executor, {"name": "item"}, "'item' stands for the current item of a fan-out. Choose another."),
        (sf.Executor, {"name": 3}, "Executor: name cannot be 3: it should be text"),
        (sf.Executor, IN_PROCESS | {"timeout": 3}, "where 'timeout' is not supported. Remove 'timeout', or"),
        (sf.Executor, IN_PROCESS | {"resources": sf.Resources(cpu=1)}, "where 'resources' is not supported. Remove "),
        (sf.Executor, {"in_process": True}, "Executor 'train' is a script, which cannot run in_process"),
        (sf.Executor, {"parameters": "epochs"}, "parameters cannot be 'epochs': it should be a mapping."),
        (sf.Executor, {"when": sf.item > 3}, "has no for_each"),
        (sf.Workflow, {"nodes": []}, "Workflow 'w': nodes cannot be []: it needs at least 1."),
        (sf.Workflow, {"nodes": [script("a"), {"name": "b"}]}, "nodes.1 cannot be {'name': 'b'}: it has no 'kind',"),
        (sf.Workflow, {"nodes": [{"kind": "exec", "name": "a"}]}, "its kind should be one of 'executor', 'service',"),
        (sf.Workflow, {"nodes": [script("a"), 3]}, "write a.bind(1) instead of a(1)."),
        (sf.Workflow, {"nodes": [script("a"), script("b"), script("a")]}, "Workflow 'w' has two nodes named 'a'."),
        (sf.Workflow, {"nodes": [CNN]}, "of type 'batch', whose nodes are Executors, but 'cnn' is a Service. Give it"),
        (sf.Workflow, {"nodes": [MPI]}, "whose nodes are Executors, but 'dgemm' is an MPIWorkload."),
        (sf.Workflow, {"type": "online"}, "whose nodes are Services, but 'a' is an Executor."),
        (sf.Workflow, {"type": "mpi"}, "whose nodes are MPIWorkloads, but 'a' is an Executor."),
        (sf.Workflow, {"type": "mpi", "nodes": [MPI, MPI.replace(name="b")]}, "of type 'mpi', which has one node, but"),
        (sf.Workflow, {"type": "bath"}, "type cannot be 'bath': it should be 'batch', 'online' or 'mpi'"),
        (sf.Workflow, {"edges": script("a") >> script("a")}, "in a cycle: a >> a. Remove one"),
        (sf.Workflow, {"nodes": [script("a", parameters={"p": {"$from": "a.x"}})]}, "in a cycle: a >> a. Remove one"),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(part: Any, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        make_unchecked(part, **{**RIGHT[part], **fields})
    assert reason in message(error)
    assert len(message(error).splitlines()) == 1
    assert "s3cret" not in message(error)


@sf.step
def train(epochs: int, lr: float = 0.1, mode: Literal["fast", "slow"] = "fast") -> float:
    return epochs * lr


@sf.step
def total(*numbers: int) -> int:
    return sum(numbers)


def login(token: int) -> None: ...


LOAD, TRAIN = script("load"), script("train", parameters={"epochs": 1})
BOTH = batch(LOAD, TRAIN)
X = LOAD["x"]
SCALED = CNN.replace(scaling=sf.Scaling(metric="rps", target=5, max=3))
HOW_TO_LINK = "Write a >> b, or a list: [sf.Dependency(dependee='a', depender='b')]."


def sensor(name: str) -> sf.Agent:
    return sf.Agent(name="watch", sensors=[sf.Sensor(name="count", trigger=HOURLY, nodes=[name])])


def online(name: str, *nodes: sf.Service, **fields: Any) -> sf.Workflow:
    return make_unchecked(sf.Workflow, name=name, type="online", nodes=nodes or [CNN], **fields)


def make_cases(*rows: tuple[Callable[..., object], Sequence[Any], str]) -> list[Any]:
    """Return a case for each value that a call is to refuse."""
    return [
        pytest.param(call, value, message, id=f"{message:.40}") for call, values, message in rows for value in values
    ]


@pytest.mark.parametrize(
    ("call", "value", "reason"),
    make_cases(
        # Fields
        (
            lambda value: batch(TRAIN, output_dir=value),
            ["workflow", "", "/", "//", "/a//b", "/a/../b", "/a/.", "/a\0b", "./a"],
            "is not a folder's absolute path. Write one such as '/workflow'",
        ),
        (
            lambda value: make_unchecked(sf.Workflow, name="w", nodes=value),
            [{1, 2}, (script(name) for name in "ab"), {"a": LOAD}, LOAD, "ab", None],
            "Workflow 'w': nodes cannot be ",
        ),
        (
            lambda value: script("train", parameters={value: 1}),
            ["", "-x", "a b", "a=b", "a\nb", "a\0b"],
            "which cannot become an option '--name value'",
        ),
        (
            lambda value: script("train", parameters={"p": value}),
            [sf.item, [sf.item["seed"]], {"deep": {"er": sf.item}}],
            "uses sf.item but has no for_each. Give it the list",
        ),
        (
            lambda value: script("train", for_each=value),
            [sf.item, [{"a": sf.item["x"]}]],
            "uses sf.item in its for_each, which has no item",
        ),
        (
            lambda value: script("train", for_each=value),
            ["abc", {"a": 1}, 3, (i for i in "ab")],
            "Give it a list, a step that returns a list",
        ),
        (
            lambda value: sf.Service(name="cnn", implementation=value),
            ["model.py", ":Model", "a:b c"],
            "cannot be read. Write 'file.py:name'",
        ),
        # Edges
        (lambda value: LOAD >> value, ["b", 3, None, [TRAIN, "c"]], "is not a node. Write a >> b"),
        (lambda value: value >> LOAD, ["b", 3, None, [TRAIN, "c"]], "is not a node. Write a >> b"),
        (lambda value: LOAD >> value, [[], [TRAIN, []]], "empty, so there is no edge. Remove the list."),
        (lambda value: LOAD >> value, [train], "-> float is a function. Make a node of it first: .bind(...)."),
        (lambda value: batch(LOAD, edges=value), ["ab", ["ab"], [("a", "b")], None, LOAD, [None]], HOW_TO_LINK),
        (
            lambda value: batch(LOAD, TRAIN, edges=[{"dependee": "load", **value}]),
            [{"dependr": "train"}],
            "Dependency has no field 'dependr'. Did you mean 'depender'?",
        ),
        (
            lambda value: batch(LOAD, TRAIN, edges=[sf.Dependency(dependee=value, depender="train")]),
            ["laod"],
            "Workflow 'training' has an edge with the unknown dependee 'laod'. Did you mean 'load'?",
        ),
        (
            lambda value: batch(LOAD, TRAIN, edges=[sf.Dependency(dependee="load", depender=value)]),
            ["zzz"],
            "has an edge with the unknown depender 'zzz'. Known: load, train.",
        ),
        # Workflows
        (
            lambda value: batch(LOAD, script("best", **value)),
            [
                {"parameters": {"p": [{"deep": {"$from": "laod.x"}}]}},
                {"for_each": {"$from": "laod.x"}},
                {"when": "laod.x >= 0.9"},
            ],
            "the step 'best' uses 'laod.x', but there is no step 'laod'. Did you mean 'load'?",
        ),
        (
            lambda value: batch(LOAD, script("best", affinity=make_unchecked(sf.Affinity, **{value: ("laod",)}))),
            ["near", "apart_from"],
            "the affinity of 'best' names 'laod', which is not a node. Did you mean 'load'?",
        ),
        (batch, [train], "is a function, not a node. Make a node of it: .bind(...)."),
        (
            lambda value: batch(TRAIN, script("b", parameters={"p": TRAIN}), edges=[value]),
            [sf.Dependency(dependee="b", depender="train")],
            "Workflow 'training': The nodes depend on each other in a cycle",
        ),
        (BOTH.node, ["trian"], "Workflow 'training' has no node 'trian'. Did you mean 'train'?"),
        (BOTH.with_parameters, [{"epohcs": 2}], "has no parameter 'epohcs'. Did you mean 'epochs'?"),
        (BOTH.with_parameters, [{"trian.epochs": 2}], "Did you mean 'train.epochs'?"),
        (BOTH.with_parameters, [{"": 2}, {3: 2}], "Known: epochs, train.epochs."),
        (BOTH.with_parameters, [{"epochs": {1}}], "the parameter 'epochs' is a set"),
        (BOTH.with_parameters, [{"epochs": {"$from": "none.x"}}], "there is no step 'none'"),
        (
            lambda value: online("w", SCALED, value, edges=SCALED >> value),
            [SCALED.replace(name="b")],
            "has a scaling at 'cnn' and at 'b', but an instance contains the whole graph",
        ),
        # Applications
        (
            lambda value: sf.Application(name="a" * 30, team=value),
            ["b" * 25],
            "65 characters. Kubernetes allows 63: shorten the name or the team by 2.",
        ),
        (sf.Application(name="s", workflows=[BOTH]).workflow, ["trainig"], "Did you mean 'training'?"),
        (sf.Application(name="s").workflow, [None], "has no workflow. Give it one: workflows=[...]"),
        (
            sf.Application(name="s", workflows=[BOTH, BOTH.replace(name="other")]).workflow,
            [None],
            "has several workflows: training, other. Name one, as in app.py:training",
        ),
        (sf.Application(name="s").with_workflow, [BOTH], "Application 's' has no workflow 'training'"),
        (
            lambda value: sf.Application(name="s", workflows=[BOTH], agents=[sensor(value)]),
            ["trian"],
            "the sensor 'count' of the agent 'watch' reads 'trian', which is not a node of its workflows. Did you",
        ),
        # References and conditions
        (lambda value: 1 < value < 3, [X], "'load.x > 1' is known only at run time"),
        (lambda value: f"{value}/model", [X], "cannot be formatted into a string. Pass it as a separate parameter"),
        (list, [X], "it cannot be iterated over here. Run a step for each of its items: for_each="),
        (lambda value: "a" in value, [X], "it cannot be iterated over here"),
        (
            lambda value: value["y"],
            [X, sf.item["seed"]],
            "has no keys of its own. Give all of it to the step, which takes 'y'",
        ),
        (lambda value: LOAD[value], [""], "names no output"),
        (lambda value: LOAD[value], [0, None], "should be text"),
        (lambda value: value < X, [TRAIN["x"], TRAIN], "Compare the two in a step that returns True or False"),
        (X.equals, [float("nan"), {1}, object(), b"x"], "the value that a condition compares with is"),
        (X.is_in, ["good"], "is_in needs a list of choices, not the text 'good'. Write a list: is_in(['good'])"),
        ((X > 3).holds, ["good"], "The condition 'load.x > 3' cannot be tested: 'load.x' is 'good'"),
        (
            lambda value: script("next", parameters={"p": [{"q": {"$from": value}}]}),
            ["x", "", ".", "train.", ".x", "Train.x", "a b.c", "train .x", 3, None, ["train.x"]],
            "cannot be read. Write 'step.output', 'step.result' or 'item'.",
        ),
        (lambda value: script("next", when=value), [True, False], "'==' compares references, not their values. Write"),
        (lambda value: script("next", when=value), [X], "is a value. Write when=node[...].equals(True)."),
        (lambda value: script("next", when=value), [3], "when cannot be 3: it should be a Condition."),
        (lambda value: script("next", when=value), ["load x"], "cannot be read. Write it as 'check.accuracy >= 0.9'."),
        (
            lambda value: script("next", when=value),
            ["load.x == good", "load.x == 'good'", "load.x == " + "[" * 100_000],
            "which is not JSON. Write text in double quotes",
        ),
        (lambda value: script("next", when=value), ["x == 3"], "The reference 'x' cannot be read."),
        (
            lambda value: script("next", when=value),
            ["load.x in 3", 'load.x in "abc"'],
            ", which is not a list. Write a list",
        ),
        (
            lambda value: script("next", when={"left": {"$from": "load.x"}, "op": "==", "right": 1} | value),
            [{"left": 3}, {"op": "="}],
            "cannot be",
        ),
        # Triggers
        (lambda value: sf.every(seconds=value), [0], "is not above zero"),
        (lambda value: sf.every(days=value), [40_000], "is longer than a hundred years"),
        (
            lambda value: sf.every(minutes=value),
            [-1, float("nan"), True, "1h", None, 1e300, 10**5000],
            ") is not an interval. Write a number, as in every(minutes=5)",
        ),
        (lambda value: sf.every(hours=1, jitter=value), [-1, float("inf"), True, "much"], "jitter cannot be"),
        (
            lambda value: sf.at(datetime(*value)),  # noqa: DTZ001  what is refused here
            [(2026, 1, 31, 6)],
            "has no time zone. Write '2026-01-31T06:00:00Z' for UTC",
        ),
        (sf.at, [3, 1e9, True], "is not a date. Write one such as '2026-01-31T06:00:00Z'"),
        (sf.on_event, [""], "type cannot be ''"),
        (lambda value: sf.on_event("x", model=value), [object()], "'model' is an object, which cannot be serialized"),
        (lambda value: sf.all_of(*value), [()], "it needs at least 1"),
        (lambda value: sf.any_of(*value), [("1h",), ([],)], "it has no 'kind'"),
        (
            lambda value: sf.cron("0 * * * *", timezone=value),
            ["Mars", "", "../etc/passwd", "America", "a\0b", "x" * 5000, "/etc/localtime"],
            "is not known. Write one such as 'Europe/Madrid' or 'UTC'",
        ),
        # Steps
        (train.bind, [(), "many", 1.5, None], "parameter 'epochs' is"),
        (lambda value: train.bind(), [0], "missing a required argument: 'epochs'. Its signature: train(epochs: int, "),
        (lambda value: train.bind(1, lrr=value), [3], "has no parameter 'lrr'. Did you mean 'lr'? Its signature: "),
        (lambda value: train.bind(1, retries=value), [3], "has no parameter 'retries'. Known: epochs, lr, mode."),
        (lambda value: train.bind(*value), [(1, 2, "fast", 4)], "too many positional arguments. Its signature: train("),
        (lambda value: train.bind(1, lr=value), [[]], "the parameter 'lr' is [], which is not float: "),
        (lambda value: train.bind(1, lr=value), [{1}], "Executor 'train': the parameter 'lr' is a set, which cannot"),
        (lambda value: train.bind(1, mode=value), ["medium"], "which is not typing.Literal['fast', 'slow']"),
        (lambda value: train.map([1, value]), ["many"], "the parameter 'epochs' is 'many', which is not int"),
        (
            lambda value: train.map([1], *value),
            [(1, 2.0, "fast")],
            "has no parameter left for the item. Its signature: train",
        ),
        (train.map, ["abc", {1, 2}, 3, {"a": 1}], "Give it a list"),
        (lambda value: total.bind(*value), [(1, 2)], "takes *numbers; give a step a list parameter instead"),
        (lambda value: train.options(**{value: 1}), ["retrys"], "has no option 'retrys'. Did you mean 'retries'?"),
        (
            lambda value: sf.step(**{value: 1})(lambda: None),
            ["nme", "parameters", "function", "mainfile", "kind"],
            "has no option",
        ),
        (Step, [3, "train", LOAD, None], "@sf.step decorates a function, "),
        (sf.step(retries=2), [3, "train", LOAD, None], "is not a function. Give options by name: @sf.step(retries=2)"),
        (lambda value: check_parameters(login, value, who="Step 't'"), [{}], "Step 't' needs the parameter 'token'."),
        (lambda value: check_parameters(login, value, who="Step 't'"), [{"tokne": 1}], "Did you mean 'token'?"),
        (lambda value: sf.step(login).bind(token=value), ["s3cret"], "'token' is ***, which is not int"),
        (sf.step(keep_positive).bind, [0, -1], "Input should be greater than 0"),
        (sf.step(keep_any).bind, [{1: "a"}], "'x' holds an int, which a definition keeps as a str."),
        (sf.step(keep_any).bind, [Fraction(1, 2)], "cannot be serialized"),
        (list, [sf.step(keep_any).bind(1)], "cannot be iterated over here. Run a step for each of its items: step.map"),
        (
            lambda value: sf.step(keep_any).bind(1)[value],
            ["result"],
            "keep-any['result'] is ambiguous: it may be the whole return value or its key 'result'. Write keep-any.",
        ),
        (
            sf.step(keep_any).bind,
            [(LOAD, 4), [LOAD, (1, 2)], {"k": (LOAD, 1)}, [LOAD, Path("x")], {1: LOAD}, OrderedDict(a=LOAD)],
            "which a definition keeps as a",
        ),
        (sf.step(keep_list).bind, [[LOAD, (1, 2)], (LOAD, 4)], "a tuple, which a definition keeps as a list"),
        (
            lambda value: batch(sf.step(keep_any).bind(1)).with_parameters({"x": value}),
            [(1, 2), Path("x"), {1: 2}, [(1,)]],
            "which a definition keeps as a",
        ),
        (LOAD.output.equals, [(28, 28), [(1, 2)], Path("x")], "A condition compares with JSON"),
        (LOAD.output.is_in, [[(28, 28)]], "A condition compares with JSON, which keeps"),
        # Copies
        (lambda value: LOAD.__setattr__("retries", value), [3], "Make a changed copy: .replace(retries=...)."),
        (
            lambda value: LOAD.replace(retrys=value),
            [3],
            "Executor 'load' has no field 'retrys'. Did you mean 'retries'?",
        ),
        (lambda value: LOAD.replace(timeout=value), [-1], "timeout -1 is not above zero"),
    ),
)
def test_what_makes_no_sense_is_refused(call: Callable[[Any], object], value: Any, reason: str) -> None:
    with pytest.raises(ScanflowError) as error:
        call(value)
    assert reason in message(error)
    assert len(message(error)) < 450
    assert "s3cret" not in message(error)


def test_fields_are_given_by_name() -> None:
    workflow: Any = sf.Workflow
    with pytest.raises(
        InvalidError, match=r"Workflow takes its fields by name\. Write Workflow\(name=\.\.\., \.\.\.\)"
    ):
        workflow("w", nodes=[script("a")])
