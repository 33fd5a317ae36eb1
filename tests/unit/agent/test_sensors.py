"""Sensors: how they are declared, what they are given, and what becomes of what they return."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.agent import primitives
from scanflow.agent.agent_records import Event, Guard, Intent
from scanflow.agent.context import Context, current
from scanflow.agent.decide import decide
from scanflow.agent.sensors.firing import Firing, fire, has_parameter
from scanflow.agent.sensors.sensed_runs import Run, list_runs
from scanflow.agent.sensors.sensor import SensorFunction, sensor
from scanflow.app.agent import collect_declarations
from scanflow.app.application_files import dump_json, load_json
from scanflow.app.triggers import CallReceive
from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_records import SHARES, InstanceRecord, ServiceRecord, Shape
from scanflow.errors import InvalidError
from scanflow.knowledge.memory import MemoryKnowledge
from tests.unit.agent.agent_builders import context, sample, situation
from tests.unit.app.app_builders import make_unchecked, message, plain_values

HOURLY = sf.every(hours=1)
ANY: Callable[[Any], Any] = lambda value: value  # noqa: E731  for what the types refuse


def fire_now(function: SensorFunction[..., Any], **options: Any) -> Any:
    return asyncio.run(fire(function, Firing(context=context(), **options)))


def a_run(run_id: str = "r1", **metrics: float) -> Run:
    at = datetime(2026, 1, 31, 6, tzinfo=UTC)
    return Run(
        run_id=run_id, environment="e", name="predict", status="finished", metrics=metrics, started_at=at, ended_at=at
    )


def test_a_sensor_is_still_its_function() -> None:
    @sensor(HOURLY, nodes=["predictor"], filter_string="metrics.n > 0")
    def count(runs: Sequence[Run]) -> int:
        """Count."""
        return len(runs)

    assert count([a_run()]) == 1
    assert (count.name, count.__doc__, count.trigger) == ("count", "Count.", HOURLY)
    assert (count.sensor.nodes, count.sensor.filter_string, count.timed) == (("predictor",), "metrics.n > 0", True)


def test_the_thesis_spelling_has_no_trigger_and_is_called() -> None:
    @sensor(nodes=["predictor"], executors=["predictor", "batch"])
    async def count(runs: Any, args: Any, kwargs: Any) -> int:
        return 3

    @sensor
    def bare() -> None: ...

    assert count.sensor.nodes == ("predictor", "batch")
    assert [(function.trigger, function.timed) for function in (count, bare)] == [(CallReceive(), False)] * 2


def yields() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: make_unchecked(sensor, nodes="predictor"), "Write a list: nodes=['predictor']."),
        (lambda: sensor(HOURLY)(lambda: 1), "a lambda has none"),
        (lambda: sensor(HOURLY, name="a-b")(print), "Write 'a_b' instead."),
        (lambda: sensor(HOURLY)(yields), "The sensor 'yields' yields"),
        (lambda: sensor(HOURLY)(ANY(3)), "A sensor needs a function; 3 is not one."),
        (lambda: sensor(HOURLY)(int), "is not one."),
        (lambda: sensor(HOURLY)(sensor(HOURLY)(print)), "is not one."),
        (lambda: sensor(HOURLY, **ANY({"limits_s": 3}))(print), "no option 'limits_s'. Did you mean 'limit_s'?"),
        (lambda: sensor(HOURLY, **ANY({"function": "a.py:b"}))(print), "A sensor has no option 'function'."),
        (lambda: sensor(HOURLY, **ANY({"agent": "other"}))(print), "A sensor has no option 'agent'."),
        (lambda: sensor(ANY("1h"))(print), "Sensor 'print': trigger cannot be '1h'"),
    ],
)
def test_a_wrong_sensor_is_refused_with_what_to_write(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        make()
    assert reason in message(error)


def test_an_agents_own_decorator_leaves_the_agent_as_it_is() -> None:
    agent = sf.Agent(name="tracker", modules=["app.py"])
    before = agent.model_dump_json()
    with collect_declarations() as declarations:

        @agent.sensor(sf.every(minutes=5), nodes=["predictor"], name="counted")
        def count() -> int:
            return 1

    assert declarations == [count]
    assert (count.agent, count.name, count.trigger) == ("tracker", "counted", sf.every(minutes=5))
    app = sf.Application(name="shop", agents=[agent])
    assert load_json(dump_json(app)) == app
    assert agent.model_dump_json() == before


def test_what_is_declared_is_gathered_only_where_it_is_requested() -> None:
    sensor(HOURLY)(print)
    with collect_declarations() as outer:
        first = sensor(HOURLY)(print)
        with collect_declarations() as inner:
            second = sensor(HOURLY)(print)
    sensor(HOURLY)(print)
    assert (outer, inner) == ([first], [second])


def test_a_sensor_is_given_what_it_names() -> None:
    @sensor
    def count_everything(
        runs: Any, n: int, context: Context, event: Any, args: Any, kwargs: Any, *, more: int = 5
    ) -> Any:
        return [len(runs), n, context.agent, event, args, kwargs, more]

    assert fire_now(count_everything, runs=[a_run()], args=[7], kwargs={"x": 1}) == [
        1,
        7,
        "tracker",
        None,
        [7],
        {"x": 1},
        5,
    ]
    event = Event(at=1.0, type="run.failed", subject="run/calm-otter-417")
    assert fire_now(count_everything, args=[7], event=event)[3]["subject"] == "run/calm-otter-417"
    assert [has_parameter(count_everything, what) for what in ("runs", "event", "tracker")] == [True, True, False]


@given(
    st.lists(plain_values, max_size=3), st.dictionaries(st.from_regex(r"x_[a-z]{1,5}", fullmatch=True), plain_values)
)
def test_a_call_arrives_as_it_was_made(args: list[Any], kwargs: dict[str, Any]) -> None:
    @sensor
    def echo_arguments(*args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs]

    assert fire_now(echo_arguments, args=args, kwargs=kwargs) == [args, kwargs]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "The sensor 'check' needs the argument 'run_ids'. Its signature is check(run_ids, least=1, *, context)."),
        ({"args": [1, 2, 3]}, "The sensor 'check' was called with 1 arguments too many."),
        ({"args": [1], "kwargs": {"leats": 2}}, "The sensor 'check' has no parameter 'leats'. Did you mean 'least'?"),
        ({"args": [1], "kwargs": {"context": 2}}, "'context', which is a reserved name."),
    ],
)
def test_a_call_that_does_not_fit_is_refused(value: dict[str, Any], reason: str) -> None:
    @sensor
    def check(run_ids, least=1, *, context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return run_ids

    with pytest.raises(InvalidError) as error:
        fire_now(check, **value)
    assert reason in message(error)


def test_a_plain_sensor_runs_in_a_thread_and_finds_its_context() -> None:
    @sensor
    def find_thread() -> Any:
        return [threading.current_thread() is threading.main_thread(), current().app]

    @sensor
    async def find_thread_async() -> Any:
        return [threading.current_thread() is threading.main_thread(), current().app]

    assert fire_now(find_thread) == [False, "shop"]
    assert fire_now(find_thread_async) == [True, "shop"]


def test_what_a_sensor_returns_is_kept_as_json_and_what_it_raises_is_not_swallowed() -> None:
    import numpy as np

    @sensor
    def return_value(what: str) -> Any:
        if what == "nothing":
            raise ZeroDivisionError("none")
        return {"number": np.float64(0.5), "record": Guard(metric="m"), "tuple": (1, 2), "odd": {1}}[what]

    assert fire_now(return_value, args=["number"]) == 0.5
    assert fire_now(return_value, args=["record"])["metric"] == "m"
    assert fire_now(return_value, args=["tuple"]) == [1, 2]
    with pytest.raises(InvalidError, match="The result of the sensor 'return_value' is a set"):
        fire_now(return_value, args=["odd"])
    with pytest.raises(ZeroDivisionError, match="none"):
        fire_now(return_value, args=["nothing"])


def test_a_run_reads_as_scanflows_and_as_mlflows() -> None:
    run = a_run("r7", n_predictions=5.0)
    assert run.metrics["n_predictions"] == run.data.metrics["n_predictions"] == 5.0
    assert (run.info.run_id, run.info.run_name, run.info.status) == ("r7", "predict", "FINISHED")
    assert run.info.start_time == run.info.end_time == 1769839200000


def make_time(second: int) -> datetime:
    return datetime.fromtimestamp(1_000_000 + second, UTC)


def make_knowledge(ends: Sequence[int]) -> MemoryKnowledge:
    knowledge = MemoryKnowledge()
    for end in ends:
        knowledge.log_run(
            "shop", "data", metrics={"n": 1.0}, tags={"step": "a"}, started_at=make_time(0), ended_at=make_time(end)
        )
    return knowledge


@given(st.lists(st.integers(0, 50), max_size=8), st.lists(st.integers(0, 50), max_size=4))
def test_windows_that_join_leave_no_run_out_and_count_none_twice(ends: list[int], cuts: list[int]) -> None:
    tracker = make_knowledge(ends)
    edges = [-1, *sorted(cuts), 50]
    run_ids = [
        run.run_id
        for after, until in itertools.pairwise(edges)
        for run in list_runs(tracker, "shop", "data", after=1_000_000 + after, until=1_000_000 + until)
    ]
    assert len(run_ids) == len(set(run_ids)) == len(ends)


def test_a_filter_and_nodes_choose_the_runs() -> None:
    knowledge = MemoryKnowledge()
    for name, tags in (
        ("one", {"scanflow.step": "predictor"}),
        ("two", {"scanflow.step": "train"}),
        ("three", {"scanflow.service": "digits"}),
    ):
        knowledge.log_run("shop", "data", name=name, metrics={"n": float(len(name))}, tags=tags)
    service = sf.Service(name="cnn", model="models:/cnn/1")
    flows = [
        sf.Workflow(name="batch", nodes=[sf.Executor(name="predictor", mainfile="a.py")]),
        sf.Workflow(name="digits", type="online", nodes=[service]),
    ]

    def names(**options: Any) -> list[str]:
        return sorted(run.name for run in list_runs(knowledge, "shop", "data", **options))

    assert names(filter_string="metrics.n > 3") == ["three"]
    assert names(nodes=["predictor"]) == names(nodes=["predictor"], workflows=flows) == ["one"]
    assert names(nodes=["cnn"], workflows=flows) == names(nodes=["digits"], workflows=flows) == ["three"]
    assert names(nodes=["predictor", "cnn", "train"], workflows=flows, filter_string="metrics.n < 4") == ["one", "two"]
    assert list_runs(knowledge, "other", "data") == []


def test_a_sensor_sees_what_the_gpus_of_a_service_do_and_the_reason_of_what_follows_has_it() -> None:
    use = DeviceUse(number=0, uuid="GPU-0", sharing="exclusive", memory_bytes=80, used_bytes=20, power_w=400.0)
    devices = [use.model_copy(update={"busy_share": share}).model_dump() for share in (0.97, 0.93)]
    record = ServiceRecord(
        name="score",
        app="shop",
        team="data",
        state="ready",
        url="",
        generation=1,
        shape=Shape(gpu=2),
        instances=(InstanceRecord(instance="1", state="ready").with_details(devices=devices),),
    )

    @sensor(sf.every(minutes=1))
    def look_at_gpus(context: Context) -> dict[str, float | None]:
        assert context.services is not None
        service = context.services.service("score")
        shares = {str(metric): service.compute_share(metric) for metric in SHARES}
        return {**shares, "power_w": service.gpu_power_w}

    services: Any = SimpleNamespace(service=lambda _: record)
    value = asyncio.run(fire(look_at_gpus, Firing(context=context(services=services))))
    assert value == {"cpu": None, "gpu": pytest.approx(0.95), "gpu_memory": 0.25, "power_w": 800.0}
    widen = sf.Strategy(
        name="widen",
        when=look_at_gpus,
        if_=lambda seen: seen["gpu"] > 0.9,
        then=primitives.duplicate_workflow_instance("score"),
    )
    [intent] = decide(widen, sample(value), situation())
    assert isinstance(intent, Intent)
    assert (intent.primitive, intent.target) == ("duplicate_workflow_instance", "service/score")
    assert intent.rule.startswith("seen['gpu'] > 0.9")
    assert intent.rule.endswith("seen['gpu']=0.95")
