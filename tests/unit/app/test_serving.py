"""How an online workflow meets its callers."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import batch, make_unchecked, message, script, shop

CNN = sf.Service(name="cnn", model="models:/cnn@champion")


def online(name: str = "serving", **fields: Any) -> sf.Workflow:
    return make_unchecked(sf.Workflow, name=name, type="online", nodes=[CNN], **fields)


def test_everything_has_a_default_and_zero_disables_what_can_be_off() -> None:
    assert sf.Serving().max_request_bytes == 64 * 1024 * 1024
    assert sf.Serving(connection_age=0, grpc_port=0).connection_age == 0
    assert sf.Batching(max_size=8, max_delay=0).max_delay == 0
    assert sf.Scaling(metric="rps", target=5, min=0).min == 0


def test_amounts_are_kept_as_numbers() -> None:
    serving = sf.Serving(deadline="500ms", connection_age="5m", max_request="200k")
    assert (serving.deadline, serving.connection_age, serving.max_request_bytes) == (0.5, 300, 200_000)
    assert sf.Batching(max_size=8, max_delay="5ms").max_delay == 0.005
    assert serving.replace(queue=3) == sf.Serving(deadline=0.5, connection_age=300, max_request=200_000, queue=3)


def test_a_step_avoids_the_cores_of_an_online_workflow_of_the_application() -> None:
    step = script("train", affinity=sf.Affinity(avoid_services=["serving"]))
    assert shop(online(), batch(step)).workflow("training").steps[0].avoid_services == ("serving",)
    with pytest.raises(InvalidError, match=r"has 'serving' in apart_from, which is not .* Did you mean 'serve'"):
        shop(online("serve"), batch(step))


def test_a_backup_is_another_online_workflow_of_the_application() -> None:
    primary = online(serving=sf.Serving(backup="spare"))
    assert shop(primary, online("spare")).workflow("serving") == primary
    with pytest.raises(InvalidError) as error:
        shop(primary, online("spares"))
    assert message(error) == (
        "Application 'shop': the backup of the workflow 'serving' is 'spare', which is not another online workflow of "
        "this application. Did you mean 'spares'?"
    )
    with pytest.raises(InvalidError, match="'spare', which is not another online workflow"):
        shop(primary, batch(script("train"), name="spare"))
    with pytest.raises(InvalidError, match="Workflow 'serving' is named as its own backup"):
        online(serving=sf.Serving(backup="serving"))
