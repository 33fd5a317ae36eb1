"""Scanflow: agent-based MLOps. ``import scanflow as sf``; names are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scanflow import drift
    from scanflow.agent.agent_records import Guard
    from scanflow.agent.strategy import Strategy
    from scanflow.app.agent import Agent, Sensor
    from scanflow.app.application import Application, Tracker
    from scanflow.app.edges import Dependency
    from scanflow.app.executor import Executor, Retry
    from scanflow.app.fan_out import crossed, zipped
    from scanflow.app.mpi import MPIWorkload
    from scanflow.app.references import Condition, Ref, item
    from scanflow.app.resources import Affinity, Resources
    from scanflow.app.scaling import Scaling
    from scanflow.app.secrets import Secret, secret
    from scanflow.app.service import Service
    from scanflow.app.serving import Batching, Serving
    from scanflow.app.steps import step
    from scanflow.app.triggers import all_of, any_of, at, cron, every, on_call, on_event
    from scanflow.app.webhook import Webhook
    from scanflow.app.workflow import Workflow
    from scanflow.client import Client
    from scanflow.errors import ScanflowError
    from scanflow.outputs import output, output_dir

__version__ = "0.1.0"

_NAMES = {
    "agent.agent_records": "Guard",
    "agent.strategy": "Strategy",
    "app.agent": "Agent Sensor",
    "app.application": "Application Tracker",
    "app.edges": "Dependency",
    "app.executor": "Executor Retry",
    "app.fan_out": "crossed zipped",
    "app.mpi": "MPIWorkload",
    "app.references": "Condition Ref item",
    "app.resources": "Affinity Resources",
    "app.scaling": "Scaling",
    "app.secrets": "Secret secret",
    "app.service": "Service",
    "app.serving": "Batching Serving",
    "app.steps": "step",
    "app.triggers": "all_of any_of at cron every on_call on_event",
    "app.webhook": "Webhook",
    "app.workflow": "Workflow",
    "client": "Client",
    "errors": "ScanflowError",
    "outputs": "output output_dir",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Affinity", "Agent", "Application", "Batching", "Client", "Condition", "Dependency", "Executor", "Guard",
    "MPIWorkload", "Ref", "Resources", "Retry", "Scaling", "ScanflowError", "Secret", "Sensor", "Service", "Serving",
    "Strategy", "Tracker", "Webhook", "Workflow", "all_of", "any_of", "at", "cron", "crossed", "drift", "every", "item",
    "on_call", "on_event", "output", "output_dir", "secret", "step", "zipped",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "drift":
        return importlib.import_module("scanflow.drift")
    if name not in _HOME:
        raise AttributeError(f"module 'scanflow' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"scanflow.{_HOME[name]}"), name)
    globals()[name] = value
    if "IPython" in sys.modules:  # a notebook: it shows what it holds as the command line does
        importlib.import_module("scanflow_client.notebook").register()
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
