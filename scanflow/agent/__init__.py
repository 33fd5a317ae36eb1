"""The authoring API of agents: sensors, rules, actuators and strategies.

Names are imported lazily, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow.agent import primitives
    from scanflow.agent.actions import Act, Call, call
    from scanflow.agent.actuators.actuator import Actuator, actuator
    from scanflow.agent.agent_records import Event, Guard
    from scanflow.agent.context import Context, current, use_context
    from scanflow.agent.registry import Declared, load_agent
    from scanflow.agent.rules import Rule, rule
    from scanflow.agent.sensors.sensor import SensorFunction, sensor
    from scanflow.agent.strategy import Strategy

__all__ = [
    "Act",
    "Actuator",
    "Call",
    "Context",
    "Declared",
    "Event",
    "Guard",
    "Rule",
    "SensorFunction",
    "Strategy",
    "actuator",
    "call",
    "current",
    "load_agent",
    "primitives",
    "rule",
    "sensor",
    "use_context",
]

_NAMES = {
    "actions": "Act Call call",
    "actuators.actuator": "Actuator actuator",
    "agent_records": "Event Guard",
    "context": "Context current use_context",
    "registry": "Declared load_agent",
    "rules": "Rule rule",
    "sensors.sensor": "SensorFunction sensor",
    "strategy": "Strategy",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
