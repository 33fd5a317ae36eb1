"""How an online workflow meets its callers."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import batch, made, message, script, shop

CNN = sf.Service(name="cnn", model="models:/cnn@champion")


def online(name: str = "serving", **fields: Any) -> sf.Workflow:
    return made(sf.Workflow, name=name, type="online", nodes=[CNN], **fields)


def test_everything_has_a_default_and_zero_turns_off_what_can_be_off() -> None:
    assert sf.Serving().max_request_bytes == 64 * 1024 * 1024
    assert sf.Serving(connection_age=0, grpc_port=0).connection_age == 0
    assert sf.Batching(max_size=8, max_delay=0).max_delay == 0
    assert sf.Scaling(metric="rps", target=5, min=0).min == 0


def test_amounts_are_held_as_numbers() -> None:
    serving = sf.Serving(deadline="500ms", connection_age="5m", max_request="200k")
    assert (serving.deadline, serving.connection_age, serving.max_request_bytes) == (0.5, 300, 200_000)
    assert sf.Batching(max_size=8, max_delay="5ms").max_delay == 0.005
    assert serving.replace(queue=3) == sf.Serving(deadline=0.5, connection_age=300, max_request=200_000, queue=3)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"port": 0}, "Serving: port cannot be 0: it should be greater than or equal to 1."),
        ({"port": 70_000}, "Serving: port cannot be 70000"),
        ({"port": 80, "grpc_port": 80}, "Serving has port 80 for both HTTP and gRPC. Give gRPC another"),
        ({"deadline": 0}, "Serving: deadline 0 is not above zero."),
        ({"connection_age": -1}, "Serving: connection_age -1 is not above zero."),
        ({"max_request": "64Mib"}, "Serving: max_request '64Mib' has the unknown unit 'Mib'. Did you mean '64Mi'"),
        ({"max_request": 0}, "Serving: max_request 0 is not above zero."),
        ({"queue": 0}, "Serving: queue cannot be 0"),
        ({"concurrency": True}, "Serving: concurrency cannot be True: it should be a number."),
        ({"record": 10}, "Serving: record cannot be 10: it should be less than or equal to 1."),
        ({"backup": "The Other"}, "The workflow name 'The Other' cannot be used"),
        ({"env": {"A=B": "1"}}, "Serving: env has 'A=B'='1', which no process can be given."),
        ({"auth": "s3cret"}, "Serving.auth says where the token is"),
        ({"time_out": 3}, "Serving has no field 'time_out'."),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(sf.Serving, **fields)
    assert told in message(error)
    assert "s3cret" not in message(error)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_size": 0}, "Batching: max_size cannot be 0"),
        ({}, "Batching needs the field 'max_size'."),
        ({"max_size": 2, "max_delay": "5"}, None),
        ({"max_size": 2, "max_delay": "-5ms"}, "Batching: max_delay '-5ms'"),
    ],
)
def test_a_batch_has_a_size_and_waits_for_nobody_by_default(fields: dict[str, Any], told: str | None) -> None:
    if told is None:
        assert made(sf.Batching, **fields).max_delay == 5
        return
    with pytest.raises(InvalidError) as error:
        made(sf.Batching, **fields)
    assert message(error).startswith(told)


@pytest.mark.parametrize("role", ["ROUTER", "COMBINER"])
def test_what_decides_on_single_requests_is_not_batched(role: Any) -> None:
    with pytest.raises(InvalidError, match=f"Service 'r' is a {role}, which decides on one request at a time"):
        sf.Service(name="r", role=role, implementation="r.py:R", batching=sf.Batching(max_size=2))


def test_only_an_online_workflow_is_served() -> None:
    with pytest.raises(InvalidError, match="is of type 'batch' and has 'serving', which only an online workflow has"):
        batch(script("train"), serving=sf.Serving())


def test_a_backup_is_another_online_workflow_of_the_application() -> None:
    primary = online(serving=sf.Serving(backup="spare"))
    assert shop(primary, online("spare")).workflow("serving") == primary
    with pytest.raises(InvalidError) as error:
        shop(primary, online("spares"))
    assert message(error) == (
        "Application 'shop': the backup of the workflow 'serving' is 'spare', which is no other online workflow of it. "
        "Did you mean 'spares'?"
    )
    with pytest.raises(InvalidError, match="'spare', which is no other online workflow"):
        shop(primary, batch(script("train"), name="spare"))
    with pytest.raises(InvalidError, match="Workflow 'serving' is named as its own backup"):
        online(serving=sf.Serving(backup="serving"))
