"""Applications as files: what is written is what stood there before, to the letter.

``REGENERATE_GOLDEN=1 pytest tests/golden`` writes the files anew; look at what changed before keeping it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_yaml, load_yaml

HERE = Path(__file__).parent


def mnist() -> sf.Application:
    """Return batch steps with nearly every field set."""
    load = sf.Executor(
        name="load-data",
        mainfile="steps/loaddata.py",
        parameters={"data": "digits", "split": 0.8},
        requirements="requirements.txt",
        resources=sf.Resources(cpu="500m", memory="1Gi"),
        env={"PYTHONHASHSEED": "0"},
    )
    train = sf.Executor(
        name="modeling",
        mainfile="steps/modeling.py",
        parameters={"x_train": "/workflow/load-data/x_train.npy", "seed": sf.item, "data": [load["data"]]},
        for_each=[1, 2, 3],
        retries=sf.Retry(limit=2, delay="10s"),
        timeout="1h30m",
        affinity="CPUMEM",
        image="python:3.12",
        cache="v2",
    )
    select = sf.Executor(
        name="select",
        function="steps.py:select",
        parameters={"results": train, "note": 'yes: a "quoted" text\nwith two lines', "none": None},
        when=load["rows"] >= 1000,
        in_process=True,
    )
    workflow = sf.Workflow(name="mnist-wf", nodes=[load, train, select], edges=load >> train >> select)
    return sf.Application(name="mnist", team="datascience", workflows=[workflow], tracker=sf.Tracker(port=46668))


def shop() -> sf.Application:
    """Return services, an MPI job, and agents with triggers of all kinds."""
    before = sf.Service(name="scale", role="TRANSFORMER", implementation="graph.py:Scale", parameters={"by": 255})
    model = sf.Service(
        name="cnn",
        model="models:/mnist_cnn@champion",
        resources=sf.Resources(cpu=4, memory="2Gi", gpu=1),
        affinity=sf.Affinity(mode="cpumempin", near=["scale"], node_selector={"disk": "ssd"}),
        scaling=sf.Scaling(metric="p95", target=0.2, max=8, cool_down="2m"),
        batching=sf.Batching(max_size=32, max_delay="5ms"),
    )
    limits = sf.Serving(
        port=8080,
        grpc_port=0,
        deadline="500ms",
        queue=64,
        max_request="16Mi",
        connection_age=0,
        concurrency=2,
        allow_nan=True,
        record=0.1,
        backup="spare",
        hand_back_after=5,
        env={"LANG": "C.UTF-8"},
        clients=["CN=ada"],
    )
    serving = sf.Workflow(name="serving", type="online", nodes=[before, model], edges=before >> model, serving=limits)
    choose = sf.Service(name="choose", role="ROUTER", implementation="graph.py:Choose")
    small, large = (sf.Service(name=name, model=f"models:/{name}/1", instances=2) for name in ("small", "large"))
    join = sf.Service(name="join", role="COMBINER", implementation="graph.py:Mean")
    spare = sf.Workflow(
        name="spare", type="online", nodes=[choose, small, large, join], edges=choose >> [small, large] >> join
    )
    dgemm = sf.MPIWorkload(name="dgemm", mainfile="hpccdgemm", n_tasks=16, n_nodes=4, profile="cpu")
    mpi = sf.Workflow(name="hpcc", type="mpi", nodes=[dgemm], output_dir="/home")
    moment = sf.at(datetime(2026, 1, 31, 6, tzinfo=UTC))
    working_day = sf.cron("*/15 8-18 * * mon-fri", timezone="Europe/Madrid")
    sensors = [
        sf.Sensor(name="count_predictions", trigger=sf.every(hours=1, jitter=5), nodes=["cnn"]),
        sf.Sensor(
            name="look", trigger=sf.all_of(working_day, sf.any_of(sf.on_call(), moment)), function="rules.py:look"
        ),
        sf.Sensor(name="failed", trigger=sf.on_event("run.failed", workflow="serving"), parameters={"limit": 3}),
    ]
    agent = sf.Agent(
        name="watch", template="planner", sensors=sensors, modules=["rules.py"], parameters={"threshold": 0.7}
    )
    return sf.Application(
        name="shop", team="data", app_dir="/srv/shop", workflows=[serving, spare, mpi], agents=[agent]
    )


@pytest.mark.parametrize("make", [mnist, shop])
def test_an_application_is_written_as_it_always_was(make: Callable[[], sf.Application]) -> None:
    app = make()
    file = HERE / f"{app.name}.yaml"
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        file.write_text(dump_yaml(app), encoding="utf-8")
    assert dump_yaml(app) == file.read_text(encoding="utf-8"), "Meant? REGENERATE_GOLDEN=1 pytest tests/golden"


@pytest.mark.parametrize("make", [mnist, shop])
def test_a_file_that_was_written_before_is_still_read(make: Callable[[], sf.Application]) -> None:
    app = make()
    assert load_yaml((HERE / f"{app.name}.yaml").read_text(encoding="utf-8")) == app
