"""How the public API is typed. Nothing runs this file: mypy and pyright read it, and an ignore too many is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import scanflow as sf
from scanflow.agent.agent_records import Action, Event
from scanflow.app.edges import Chain
from scanflow.app.mpi import MPIWorkload
from scanflow.app.plan import Plan
from scanflow.app.references import Condition, Ref
from scanflow.app.steps import Step
from scanflow.app.triggers import AllOf, AnyOf, CallReceive, Cron, Date, EventTrigger, Interval
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.client import ScanflowClient, ScanflowDeployerClient
from scanflow_client.listing import Listing
from scanflow_client.run_handle import RunHandle
from scanflow_client.thesis import Awaited


@sf.step
def load(path: Path, limit: int = 10) -> list[float]:
    return [float(limit)]


@sf.step(retries=3, timeout="5m", resources=sf.Resources(cpu=2, memory="1Gi"))
def train(numbers: list[float], *, lr: float = 0.1) -> float:
    return sum(numbers) * lr


# A step keeps its function's signature.
assert_type(load(Path(), limit=3), list[float])
assert_type(train([1.0], lr=0.5), float)
load("data")  # type: ignore[arg-type]  # a Path is wanted
load(Path(), limits=3)  # type: ignore[call-arg]  # there is no such parameter
train([1.0], 0.5)  # type: ignore[call-arg]  # only by name
assert_type(load.options(retries=1)(Path()), list[float])


def is_step(step: Step[..., list[float]]) -> Step[..., list[float]]:
    return step


is_step(load)
is_step(train)  # type: ignore[arg-type]  # it returns one number

# Nodes come from binding and mapping; what they leave is a reference.
first = assert_type(load.bind(Path(), limit=3), sf.Executor)
second = assert_type(train.map(first, lr=sf.item["lr"]), sf.Executor)
assert_type(first.output, Ref)
assert_type(first["rows"], Ref)
assert_type(first["rows"] >= 10, Condition)
assert_type(first["verdict"].equals("good"), Condition)
assert_type(first["verdict"].is_in(["good", "fair"]), Condition)
_ = first["rows"] == 10  # type: ignore[comparison-overlap]  # equality is .equals(10)

# Edges.
a, b, c, d = (sf.Executor(name=name, mainfile=f"{name}.py") for name in "abcd")
assert_type(a >> b, Chain)
assert_type(a >> [b, c] >> d, Chain)
assert_type([a, b] >> c, Chain)
assert_type(a >> (b, c), Chain)
a >> "b"  # type: ignore[operator]  # a name is no node
a >> load  # type: ignore[operator]  # a function is no node

# Lists, tuples and short spellings are taken where tuples and models are kept.
nodes: list[sf.Executor] = [a, b]
workflow = sf.Workflow(name="training", nodes=nodes, edges=a >> b)
sf.Workflow(name="training", nodes=(a, b), edges=[sf.Dependency(dependee="a", depender="b"), a >> b])
sf.Workflow(name="training", nodes=nodes, edges=[], type="batch", output_dir="/out")
sf.Workflow(name="training", nodes=nodes, type="bath")  # type: ignore[arg-type]  # there is no such type
sf.Workflow(nodes=nodes)  # type: ignore[call-arg]  # it needs a name
assert_type(workflow.steps, tuple[sf.Executor, ...])
assert_type(workflow.levels, tuple[tuple[str, ...], ...])
assert_type(workflow.with_parameters({"epochs": 3}), sf.Workflow)

sf.Resources(cpu=2, memory="1Gi")
sf.Resources(cpu=0.5, memory=2**30, gpu=1)
sf.Resources(cpu="500m")
sf.Resources(memory=["1Gi"])  # type: ignore[arg-type]  # text or a number

sf.Executor(
    name="a",
    mainfile="a.py",
    parameters={"epochs": 3, "data": first, "rows": first["rows"], "nested": {"list": [1, 2.0, None]}},
    requirements=["numpy>=2"],
    env={"A": "1"},
    resources=sf.Resources(cpu=1),
    affinity="cpumem",
    retries=3,
    timeout="1h30m",
    for_each=[1, 2],
    when=first["rows"] > 3,
    cache="v2",
)
sf.Executor(name="a", mainfile="a.py", retries=sf.Retry(limit=3, delay="10s"), timeout=90, for_each=first["files"])
sf.Executor(name="a", mainfile="a.py", retrys=3)  # type: ignore[call-arg]  # there is no such field
sf.Executor(name="a", mainfile="a.py", env=["A"])  # type: ignore[arg-type]  # a mapping
a.retries = 3  # type: ignore[misc]  # nothing is changed once made
a.parameters["epochs"] = 3  # type: ignore[index]  # nor what it holds
assert_type(a.replace(retries=3), sf.Executor)
assert_type(a.parameters, Mapping[str, Any])
assert_type(a.timeout_s, float | None)

service = sf.Service(
    name="cnn", model="models:/cnn@champion", scaling=sf.Scaling(metric="rps", target=10, max=4, polling="15s")
)
mpi = sf.MPIWorkload(name="dgemm", mainfile="dgemm", n_tasks=16, n_nodes=4, profile="cpu")
serving = sf.Serving(port=8080, grpc_port=0, deadline="500ms", max_request="16Mi", record=0.1, env={"A": "1"})
online = sf.Workflow(name="serving", type="online", nodes=[service], edges=[], serving=serving)
assert_type(online.services, tuple[sf.Service, ...])
assert_type(online.serving, sf.Serving | None)
sf.Service(name="cnn", implementation="a.py:A", role="TRANSFORMER", batching=sf.Batching(max_size=8, max_delay="5ms"))
sf.Service(name="cnn", implementation="a.py:A", role="ENSEMBLE")  # type: ignore[arg-type]  # there is no such role
sf.Serving(dead_line=3)  # type: ignore[call-arg]  # there is no such field
mixed: Sequence[sf.Executor | sf.Service | MPIWorkload] = [a, service, mpi]
sf.Workflow(name="any", nodes=mixed)

# Triggers and agents.
assert_type(sf.every(hours=1, jitter=5), Interval)
assert_type(sf.cron("0 * * * *", timezone="Europe/Madrid"), Cron)
assert_type(sf.at(datetime(2026, 1, 31, tzinfo=UTC)), Date)
assert_type(sf.on_call(), CallReceive)
assert_type(sf.on_event("run.failed", workflow="training"), EventTrigger)
assert_type(sf.all_of(sf.on_call(), sf.any_of(sf.every(minutes=5), sf.on_call())), AllOf)
assert_type(sf.any_of(sf.on_call()), AnyOf)
Interval(seconds=timedelta(minutes=5))
sf.every(hours="1")  # type: ignore[arg-type]  # a number
agent = sf.Agent(
    name="watch", template="planner", sensors=[sf.Sensor(name="count", trigger=sf.every(hours=1), nodes=["a"])]
)

app = sf.Application(
    name="shop", team="data", app_dir=Path(), workflows=[workflow], agents=[agent], tracker=sf.Tracker(),
    notify=[sf.Webhook(url="env:SLACK_WEBHOOK", on=["drift"])],
)  # fmt: skip
assert_type(app.workflow("training"), sf.Workflow)


def use() -> None:
    """What the clients take and give back."""
    client = sf.Client(home="home")
    assert_type(client.run(app, "training", parameters={"epochs": 3}), RunHandle)
    assert_type(client.run(workflow), RunHandle)
    assert_type(client.run("@latest").wait().show(), RunRecord)
    assert_type(client.resume(wait=False), RunHandle)
    assert_type(client.plan(app), Plan)
    assert_type(client.runs(limit=3), Listing[RunRecord])
    assert_type(client.runs()[0], RunRecord)
    assert_type(client.runs()[:3], Listing[RunRecord])
    listed: list[RunRecord] = client.runs()
    listed.sort(key=lambda record: record.created)
    assert_type(client.deploy(app, "serving", instances=2, cores=0.5, affinity="cpumem", port=8080), ServiceRecord)
    client.deploy(online, affinity="near")  # type: ignore[arg-type]  # there is no such affinity
    assert_type(client.services(), Listing[ServiceRecord])
    assert_type(client.scale("serving", 4, cores=1), ServiceRecord)
    assert_type(client.traffic("serving", "models:/cnn/3", weight=0.1), ServiceRecord)
    assert_type(client.promote("serving"), ServiceRecord)
    assert_type(client.rollback("serving"), ServiceRecord)
    assert_type(client.explain("serving"), Explanation)
    assert_type(client.ask("serving", {"x": [[1.0]]}).instance, str | None)
    client.predict("serving", [[1.0]], dtype="float32")
    assert_type(client.run(workflow, wait=False), RunHandle)
    assert_type(client.events(type="run.*"), Listing[Event])
    assert_type(client.events(follow=True, timeout_s=5.0), Iterator[Event])
    assert_type(client.why().action, Action)
    client.run([workflow])  # type: ignore[arg-type]  # one application, or one workflow
    sf.output("accuracy", 0.9)
    assert_type(sf.output_dir(), Path)


async def use_as_the_thesis_does() -> None:
    """What may also be awaited."""
    described = ScanflowClient(verbose=False)
    step = assert_type(described.ScanflowExecutor(name="a", mainfile="a.py", parameters={"epochs": 1}), sf.Executor)
    flow = assert_type(described.ScanflowWorkflow(name="w", nodes=[step], type="batch"), sf.Workflow)
    deployer = ScanflowDeployerClient(user_type="local", deployer="local", verbose=False)
    assert_type(deployer.run_workflow(app_name="a", team_name="t", workflow=flow), Awaited[RunRecord])
    assert_type(await deployer.run_workflow(app_name="a", team_name="t", workflow=flow), RunRecord)
    assert_type(await deployer.run_app(app), list[RunRecord | ServiceRecord])


asyncio.run(use_as_the_thesis_does())
