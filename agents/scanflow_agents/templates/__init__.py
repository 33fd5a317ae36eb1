"""The built-in agents: tracker, checker, planner and executor, with thesis Table 5.5's strategies as their defaults.

Together they close the loop of Algorithm 1: enough new predictions are counted, looked at for drift, the critical ones
labelled, the model retrained and, where it got better, swapped in. Every threshold is a parameter of the agent:
``sf.Agent(name="tracker", template="tracker", parameters={"min_predictions": 200})``.
"""

from __future__ import annotations

from scanflow.agent.registry import Declared, load_agent
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.plugins import load_plugin


def load_declared(app: Application, agent: Agent) -> Declared:
    """Return what an agent does: its template's sensors and strategies, and its own in their place."""
    template = None if agent.template is None else load_plugin("templates", agent.template)
    return load_agent(app, agent, template=template)
