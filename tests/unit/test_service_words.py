"""How services are told to people."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

import pytest

from scanflow.backends.service_records import Explanation, InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow_client.service_words import (
    error_lines,
    explanation_lines,
    instance_rows,
    models_of,
    next_for,
    revision_rows,
    service_line,
    service_rows,
    ways_to_ask,
)

CURRENT = RevisionRecord(id="r1", models={"cnn": "models:/cnn/3"}, requests=90, rps=1.5, p50_s=0.004, p95_s=0.0123)
CANARY = RevisionRecord(
    id="r2", models={"cnn": "models:/cnn/4"}, weight=0.1, role="canary", requests=10, errors=1, rps=0.5, p95_s=2.5
)


def record(**fields: Any) -> ServiceRecord:
    known: dict[str, Any] = {
        "name": "digits",
        "app": "mnist",
        "team": "data",
        "state": "ready",
        "url": "http://127.0.0.1:46700",
        "folder": "/home/services/digits",
        "generation": 1,
        "shape": Shape(instances=2, cores=1, affinity="cpumem"),
        "revisions": (CURRENT,),
    }
    return ServiceRecord.model_validate({**known, **fields})


def test_one_line_says_where_a_service_is_and_how_it_is_cut() -> None:
    assert service_line(record()) == ("✓ digits  ready at http://127.0.0.1:46700  (2 instances × 1 core, cpumem)")
    told = service_line(record(grpc="127.0.0.1:46701", shape=Shape(instances=1, cores=1.5)))
    assert told.endswith("http://127.0.0.1:46700, gRPC 127.0.0.1:46701  (1 instance × 1.5 cores, any)")


def test_a_service_whose_backup_answers_says_so() -> None:
    assert service_line(record(state="backup", backup="spare")).startswith(
        "! digits  answered by its backup spare at http"
    )


def test_the_table_has_instances_cores_models_and_figures() -> None:
    instances = [InstanceRecord(instance="1", state="ready"), InstanceRecord(instance="2", state="starting")]
    (row,) = service_rows([record(instances=instances, revisions=[CURRENT, CANARY])])
    assert row == (
        "digits", "✓ ready", "http://127.0.0.1:46700", "1/2", "2", "cnn/3 100%, cnn/4 10%", "2.0", "2.50 s",
    )  # fmt: skip
    (row,) = service_rows([record(revisions=[])])
    assert row[3:] == ("0/2", "2", "-", "-", "-")


def test_a_shadows_figures_are_not_those_of_the_service() -> None:
    shadow = CANARY.model_copy(update={"shadow": True, "role": "shadow"})
    (row,) = service_rows([record(revisions=[CURRENT, shadow])])
    assert row[5:] == ("cnn/3 100%, cnn/4 shadow", "1.5", "12.3 ms")


def test_a_graph_of_classes_is_called_by_its_revision() -> None:
    assert models_of(record(revisions=[RevisionRecord(id="r7")])) == "r7"


def test_an_instance_shows_what_it_was_granted_and_what_it_uses() -> None:
    one = InstanceRecord(
        instance="1",
        state="ready",
        pid=42,
        began=time.time() - 5,
        restarts=1,
        cpus=(0, 1, 4),
        memory_nodes=(0,),
        threads=3,
        rss_bytes=60 * 2**20,
        cpu_share=0.5,
        in_flight=2,
        error="ended by signal 9",
    )
    (row,) = instance_rows(record(instances=[one]))
    (elsewhere,) = instance_rows(record(instances=[one], shape=Shape(affinity="cpu")))
    assert elsewhere[4] == "0-1,4"
    assert row[:3] == ("1", "✓ ready", "42")
    assert row[4:] == ("0-1,4 (memory of node 0)", "3", "60.0 MiB", "50%", "2", "1")
    (row,) = instance_rows(record(instances=[InstanceRecord(instance="2", state="waiting")]))
    assert row == ("2", "↻ waiting", "-", "-", "any", "-", "-", "-", "0", "0")


def test_errors_are_told_below_and_once() -> None:
    ended = InstanceRecord(instance="1", state="waiting", error="ended by signal 9")
    well = InstanceRecord(instance="2", state="ready", error="ended by signal 9")
    assert error_lines(record()) == []
    assert error_lines(record(instances=[ended, well])) == ["instance 1: ended by signal 9"]
    told = "The last change did not come into effect: instance 1: ended by signal 9"
    assert error_lines(record(instances=[ended], error="instance 1: ended by signal 9")) == [told]


def test_a_revision_shows_its_share_and_how_it_does() -> None:
    assert revision_rows(record(revisions=[CURRENT, CANARY])) == [
        ("r1", "current", "100%", "cnn=models:/cnn/3", "90", "0", "4 ms", "12.3 ms"),
        ("r2", "canary", "10%", "cnn=models:/cnn/4", "10", "1", "-", "2.50 s"),
    ]


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({}, "scanflow predict digits"),
        ({"state": "degraded"}, "scanflow logs digits"),
        ({"revisions": [CURRENT, CANARY]}, "scanflow promote digits, or scanflow rollback digits"),
    ],
)
def test_one_command_comes_next(fields: dict[str, Any], command: str) -> None:
    assert command in next_for(record(**fields))


def test_an_explanation_has_sample_target_formula_and_decision() -> None:
    found = Explanation(
        service="digits",
        at=time.time(),
        metric="rps",
        sample=31.0,
        target=20,
        up=20,
        down=16,
        instances=2,
        wanted=4,
        formula="ceil(2 x 31.0 / 20.0) = 4, at most max=3",
        decision="add 1",
    )
    assert explanation_lines(found)[1:] == [
        "  sample    rps = 31",
        "  target    20 (more above 20, fewer below 16)",
        "  formula   ceil(2 x 31.0 / 20.0) = 4, at most max=3",
        "  decision  add 1",
    ]
    alone = found.model_copy(update={"target": 0})
    assert explanation_lines(alone)[0].startswith("digits: 2 instances. Nothing decides on that")
    assert "nothing measured yet" in explanation_lines(found.model_copy(update={"sample": None}))[1]


def test_a_small_input_is_written_out_ready_to_be_pasted() -> None:
    curl, ours = ways_to_ask(record(), [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}])
    words = shlex.split(curl)
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:46700/v2/models/digits/infer"]
    assert json.loads(words[-1]) == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 0.5, 0.5]}]
    }
    assert json.loads(shlex.split(ours)[-1]) == [[0.5, 0.5, 0.5]]


def test_several_inputs_are_named() -> None:
    _, ours = ways_to_ask(record(), [{"name": name, "datatype": "INT64", "shape": [-1]} for name in "ab"])
    assert json.loads(shlex.split(ours)[-1]) == {"a": [1], "b": [1]}


def test_a_picture_is_not_written_out() -> None:
    told = ways_to_ask(record(), [{"name": "x", "datatype": "UINT8", "shape": [-1, 28, 28]}])
    assert "rows of 28x28" in told[0]
    assert told[1] == "Ask it: scanflow predict digits rows.npy"


def test_what_says_nothing_of_its_inputs_is_asked_for_something() -> None:
    assert ways_to_ask(record(), [])[1].startswith("Ask it: scanflow predict digits --data '[[")
