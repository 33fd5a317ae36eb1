"""What guards measure, of a deployer that answers with one record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scanflow_server.arbiter.engine_assembly import measure_service


def read_metric(metric: str, *, team: str = "vision", **figures: Any) -> float | None:
    current = SimpleNamespace(**{"requests": 0, "errors": 0, "p50_s": None, "p95_s": None, "rps": None, **figures})
    record = SimpleNamespace(team="vision", current=current)
    deployer: Any = SimpleNamespace(service=lambda _: record)
    return measure_service(deployer, metric, team=team)


@pytest.mark.parametrize(
    ("metric", "figures", "value"),
    [
        ("service.serve.errors", {}, 0.0),  # so that a guard sees what fails from the first request on
        ("service.serve.errors", {"requests": 8, "errors": 2}, 0.25),
        ("service.serve.p95_s", {}, None),
        ("service.serve.p95_s", {"p95_s": 0.1}, 0.1),
        ("service.serve.colour", {}, None),
        ("runs.training.errors", {}, None),
    ],
)
def test_a_guard_s_metric_is_read_from_the_service_s_record(
    metric: str, figures: dict[str, Any], value: float | None
) -> None:
    assert read_metric(metric, **figures) == value


def test_another_team_s_service_is_not_measured() -> None:
    assert read_metric("service.serve.errors", team="tabular", requests=8) is None
