"""What these tests make applications of: short spellings, and strategies for hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.references import Ref
from scanflow.app.triggers import AllOf, AnyOf, Trigger
from scanflow.errors import ScanflowError

T = TypeVar("T", bound=ScanflowError)
M = TypeVar("M")

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,12}[a-z0-9])?", fullmatch=True).filter(lambda name: name != "item")
"""Names that Kubernetes takes, and no step is called ``item``."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.from_regex(r"[a-z_][a-z0-9_.]{0,9}", fullmatch=True)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
plain_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts.filter(lambda key: "$" not in key), inner, max_size=3)
    ),
    max_leaves=6,
)
"""What JSON can hold."""


def make_unchecked(model: Callable[..., M], /, **fields: Any) -> M:
    """Return ``model(**fields)``, for fields that its types would refuse."""
    return model(**fields)


def script(name: str, **fields: Any) -> sf.Executor:
    return make_unchecked(sf.Executor, **{"name": name, "mainfile": f"{name}.py", **fields})


def batch(*nodes: sf.Executor, **fields: Any) -> sf.Workflow:
    return make_unchecked(sf.Workflow, **{"name": "training", "nodes": list(nodes), **fields})


def shop(*workflows: sf.Workflow, **fields: Any) -> sf.Application:
    """Return an application of these workflows."""
    return make_unchecked(sf.Application, **{"name": "shop", "workflows": list(workflows), **fields})


def message(error: pytest.ExceptionInfo[T]) -> str:
    """Return what a person is told."""
    return str(error.value)


def refusal(make: Callable[[], object]) -> str | None:
    """Return what a person is told when this is made, or None where it is taken."""
    try:
        make()
    except ScanflowError as error:
        return str(error)
    return None


@st.composite
def edges_of_dags(draw: st.DrawFn, *, most: int = 9) -> tuple[list[str], list[tuple[str, str]]]:
    """Draw names, and edges from earlier to later ones; then shuffle the names, so that order tells nothing."""
    nodes = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    pairs = [(a, b) for index, a in enumerate(nodes) for b in nodes[index + 1 :]]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return draw(st.permutations(nodes)), draw(st.permutations(edges))


resources = st.builds(
    sf.Resources,
    cpu=st.none() | st.integers(1, 64) | st.sampled_from(["500m", 0.5, "2"]),
    memory=st.none() | st.sampled_from(["512Mi", "5G", "1.5Gi", 2**31 + 1]),
    gpu=st.integers(0, 2) | st.sampled_from([0.5, "1g.10gb"]),
)

fields_of_steps = st.fixed_dictionaries(
    {},
    optional={
        "resources": resources,
        "retries": st.integers(0, 5)
        | st.builds(sf.Retry, limit=st.integers(0, 5), delay=st.sampled_from([None, "250ms", 2])),
        "timeout": st.sampled_from([None, 90, "1h30m", 0.25]),
        "env": st.dictionaries(
            st.from_regex(r"[A-Z]{1,5}", fullmatch=True), texts.filter(lambda text: "\0" not in text)
        ),
        "cache": st.booleans() | st.just("v2"),
        "requirements": st.none() | st.just("requirements.txt") | st.just(["numpy>=2", "scipy"]),
        "image": st.none() | st.just("python:3.12"),
        "affinity": st.none() | st.sampled_from(["any", "CPUMEM"]),
        "for_each": st.none() | st.lists(plain_values, max_size=3),
    },
)


@st.composite
def workflows(draw: st.DrawFn, name: str = "training") -> sf.Workflow:
    nodes, edges = draw(edges_of_dags(most=4))
    nodes_ = []
    for node in nodes:
        parents = [before for before, after in edges if after == node]
        parameters: dict[str, Any] = draw(st.dictionaries(keys, plain_values, max_size=3))
        fields = draw(fields_of_steps)
        if parents:
            outputs = st.builds(Ref, step=st.sampled_from(parents), output=texts.filter(bool))
            parameters |= draw(st.dictionaries(keys, outputs | st.lists(outputs, max_size=2), max_size=2))
            conditions = st.builds(lambda ref, value: ref >= value, outputs, plain_values)
            fields["when"] = draw(st.none() | conditions)
        nodes_.append(script(node, parameters=parameters, **fields))
    links = [sf.Dependency(dependee=before, depender=after) for before, after in edges]
    return sf.Workflow(name=name, nodes=nodes_, edges=links)


moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  as it wants
simple_triggers: st.SearchStrategy[Trigger] = st.one_of(
    st.builds(sf.every, minutes=st.integers(1, 10_000), jitter=st.floats(0, 10)),
    st.builds(sf.at, moments),
    st.sampled_from([sf.cron("0 * * * *"), sf.cron("*/15 8-18 * jan-mar mon-fri", timezone="Europe/Madrid")]),
    st.builds(sf.on_call),
    st.builds(sf.on_event, st.just("run.failed"), workflow=names),
)


def groups(inner: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.builds(AllOf, triggers=some) | st.builds(AnyOf, triggers=some)


triggers = st.recursive(simple_triggers, groups, max_leaves=4)
agents = st.builds(
    sf.Agent,
    name=names,
    template=st.sampled_from(["tracker", "checker", "planner", "executor"]),
    sensors=st.lists(
        st.builds(sf.Sensor, name=st.from_regex(r"on_[a-z]{1,8}", fullmatch=True), trigger=triggers),
        max_size=2,
        unique_by=lambda sensor: sensor.name,
    ),
    parameters=st.dictionaries(keys, plain_values, max_size=2),
)

services = st.builds(
    sf.Service,
    name=names,
    model=st.sampled_from(["models:/cnn@champion", "models:/cnn/3"]),
    parameters=st.dictionaries(keys, plain_values, max_size=2),
    resources=resources,
    instances=st.integers(0, 8),
    batching=st.none() | st.builds(sf.Batching, max_size=st.integers(1, 64), max_delay=st.sampled_from([0, "5ms"])),
    scaling=st.none()
    | st.builds(sf.Scaling, metric=st.sampled_from(["rps", "p95"]), target=st.floats(0.5, 1e6), max=st.integers(1, 9)),
)

mpi_workloads = st.builds(
    sf.MPIWorkload,
    name=names,
    mainfile=st.just("hpccdgemm"),
    n_tasks=st.integers(4, 64),
    n_nodes=st.integers(1, 4),
    profile=st.sampled_from([None, "cpu", "memory", "network"]),
    resources_per_task=resources,
)


servings = st.builds(
    sf.Serving,
    port=st.none() | st.integers(1, 40_000),
    grpc_port=st.none() | st.integers(50_000, 65_535) | st.just(0),
    deadline=st.sampled_from(["250ms", 30, "2m"]),
    max_request=st.sampled_from(["200k", 1, "64Mi"]),
    connection_age=st.sampled_from([0, "5m"]),
    record=st.floats(0, 1),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), texts.filter(lambda text: "\0" not in text)),
)


@st.composite
def online_workflows(draw: st.DrawFn) -> sf.Workflow:
    nodes = draw(st.lists(services, min_size=1, max_size=3, unique_by=lambda node: node.name))
    nodes = [nodes[0], *(node.replace(scaling=None) for node in nodes[1:])]
    links = [before >> after for before, after in itertools.pairwise(nodes)]
    return sf.Workflow(name="serving", type="online", nodes=nodes, edges=links, serving=draw(st.none() | servings))


@st.composite
def applications(draw: st.DrawFn) -> sf.Application:
    flows = [draw(workflows())]
    if draw(st.booleans()):
        flows.append(draw(online_workflows()))
    if draw(st.booleans()):
        flows.append(sf.Workflow(name="dgemm", type="mpi", nodes=[draw(mpi_workloads)]))
    return sf.Application(
        name=draw(names),
        team=draw(names),
        app_dir=draw(st.sampled_from([".", "/srv/shop", "a folder"])),
        workflows=flows,
        agents=draw(st.lists(agents, max_size=2, unique_by=lambda agent: agent.name)),
        tracker=draw(st.none() | st.builds(sf.Tracker, port=st.none() | st.integers(1, 65535))),
    )
