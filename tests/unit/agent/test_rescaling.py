"""Replacing all that decides on a service's instances, as the author of an agent writes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.errors import InvalidError

SCALING = {"metric": "rps", "target": 20, "max": 3}


def test_all_that_decides_is_replaced() -> None:
    act = do.update_workflow_replica("digits", scaling=SCALING)
    assert (act.target, act.fields) == ("service/digits", ("replicas",))
    assert act.arguments == {"workflow": "digits", "scaling": SCALING}
    assert do.act_of(act.primitive, act.arguments) == act


def test_nothing_decides_any_more_and_that_is_not_the_same_as_not_being_said() -> None:
    assert do.update_workflow_replica("digits", scaling=None).arguments == {"workflow": "digits", "scaling": None}
    act = do.update_workflow_replica("digits", scaling=None, instances=4)
    assert act.arguments == {"workflow": "digits", "scaling": None, "instances": 4}
    assert "scaling" not in do.update_workflow_replica("digits", instances=4).arguments


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: do.update_workflow_replica("digits", scaling={"metric": "rps"}), "Scaling needs the field 'target'."),
        (lambda: do.update_workflow_replica("digits", scaling=SCALING, instances=4), "in place of all else"),
        (lambda: do.update_workflow_replica("digits", scaling=None, up=4.0), "in place of all else"),
        (lambda: do.update_workflow_replica("digits", scaling=None, instances=-1), "is no number of copies"),
    ],
)
def test_a_wrong_scaling_is_refused_with_what_to_write(make: Callable[[], Act], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        make()
