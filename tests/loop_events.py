"""The closed loop as it has to be told, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STORY = [
    ("tracker", "predictions"),
    ("checker", "call"),
    ("checker", "look"),
    ("checker", "call"),
    ("checker", "detection"),
    ("planner", "retrain"),
    ("planner", "gate"),
    ("executor", "call"),
    ("executor", "promotion"),
]
"""Algorithm 1 of the thesis, in the order in which it happens: once without drift, then with it. The predictions that
the second look is for may be counted while the first one goes on, and the planner may begin when enough of the labels
are there, before the last of them is."""


def in_order(wanted: Sequence[Any], events: Sequence[Any]) -> bool:
    rest = iter(events)
    return all(event in rest for event in wanted)
