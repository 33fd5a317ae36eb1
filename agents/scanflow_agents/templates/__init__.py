"""The built-in agents: tracker, checker, planner and executor, with thesis Table 5.5's strategies as their defaults.

Together they implement the loop of Algorithm 1: new predictions are counted and checked for drift, critical ones are
labelled, and the model is retrained and, if it is better, deployed. Every threshold is a parameter of the agent:
``sf.Agent(name="tracker", template="tracker", parameters={"min_predictions": 200})``.
"""

from __future__ import annotations

from scanflow.agent.registry import Declared, load_agent
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.plugins import load_plugin


def load_declared(app: Application, agent: Agent) -> Declared:
    """Return the sensors and strategies of an agent: its template's, overridden by its own."""
    template = None if agent.template is None else load_plugin("templates", agent.template)
    return load_agent(app, agent, template=template)
