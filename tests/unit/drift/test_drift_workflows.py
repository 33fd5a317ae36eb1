"""The ready-made workflows: what the agents' templates take, and functions that no step could load."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from scanflow_agents.templates import load_declared


def fit(x: Any, y: Any) -> Any:
    return x, y


def test_the_templates_take_them_as_they_are() -> None:
    service = sf.Service(name="loans", model="models:/loans@champion")
    serve = sf.Workflow(name="serve", type="online", nodes=[service], serving=sf.Serving(record=1))
    workflows = [sf.drift.detection(model="loans"), sf.drift.retraining(model="loans", fit=fit, data="app.py:data")]
    agents = [sf.Agent(name=name, template=name) for name in ("checker", "planner", "executor")]
    app = sf.Application(name="bank", workflows=[serve, *workflows], agents=agents)
    for agent in agents:
        assert load_declared(app, agent).strategies
    (step,) = app.workflow("training").steps
    assert step.parameters["fit"] == "tests.unit.drift.test_drift_workflows:fit"
    assert step.parameters["data"] == "app.py:data"


def test_a_function_that_no_step_could_load_is_refused() -> None:
    def inner(x: Any, y: Any) -> Any:
        return x, y

    for function in (inner, print, lambda x, y: None):
        with pytest.raises(InvalidError, match=r"give fit='file\.py:function'"):
            sf.drift.retraining(model="loans", fit=function)
