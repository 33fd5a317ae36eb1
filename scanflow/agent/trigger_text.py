"""Triggers of sensors as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scanflow.app.quantities import format_duration


def format_trigger(trigger: Mapping[str, Any]) -> str:
    """Return a trigger as text: ``every 1 h``, ``cron 0 * * * *``, ``on run.failed (workflow=training)``."""
    match trigger:
        case {"kind": "interval", "seconds": int() | float() as seconds}:
            return f"every {format_duration(seconds)}"
        case {"kind": "date", "when": when}:
            return f"at {when}"
        case {"kind": "cron", "expression": expression}:
            zone = trigger.get("timezone", "UTC")
            return f"cron {expression}" + ("" if zone == "UTC" else f" in {zone}")
        case {"kind": "call"}:
            return "on a call"
        case {"kind": "event", "type": type}:
            matched = ", ".join(f"{name}={value}" for name, value in (trigger.get("match") or {}).items())
            return f"on {type}" + (f" ({matched})" if matched else "")
        case {"kind": "all_of" | "any_of" as kind, "triggers": [*inner]}:
            return f"{kind[:3]} of: {'; '.join(format_trigger(part) for part in inner)}"
    return str(trigger.get("kind", "unknown"))
