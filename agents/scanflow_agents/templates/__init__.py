"""The built-in agents: tracker, checker, planner and executor, with thesis Table 5.5's strategies as their defaults.

Together they close the loop of Algorithm 1: enough new predictions are counted, looked at for drift, the critical ones
labelled, the model retrained and, where it got better, swapped in. Every threshold is a parameter of the agent:
``sf.Agent(name="tracker", template="tracker", parameters={"min_predictions": 200})``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.errors import NotFoundError, did_you_mean

__all__ = ["NAMES", "template_of"]

NAMES = ("tracker", "checker", "planner", "executor")


def template_of(name: str) -> Callable[[Application, Agent], None]:
    """Return what declares the sensors and strategies of a built-in agent.

    Raises:
        NotFoundError: there is no such template.
    """
    if name not in NAMES:
        raise NotFoundError(f"There is no template {name!r}.{did_you_mean(name, NAMES)}")
    found: Callable[[Application, Agent], None] = importlib.import_module(f"{__name__}.{name}").declare
    return found
