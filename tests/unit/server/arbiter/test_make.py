"""What guards measure, of a deployer that answers with one record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.backends.service_records import ServiceRecord
from scanflow_server.arbiter.engine_assembly import measure_service


def read_metric(metric: str, *, team: str = "vision", **figures: Any) -> float | None:
    current = SimpleNamespace(
        **{"requests": 0, "errors": 0, "invalid": 0, "p50_s": None, "p95_s": None, "rps": None, **figures}
    )
    record = SimpleNamespace(team="vision", current=current)
    deployer: Any = SimpleNamespace(service=lambda _: record)
    return measure_service(deployer, metric, team=team)


@pytest.mark.parametrize(
    ("metric", "figures", "value"),
    [
        ("service.serve.errors", {}, 0.0),  # so that a guard sees what fails from the first request on
        ("service.serve.errors", {"requests": 8, "errors": 2}, 0.25),
        ("service.serve.errors", {"requests": 100, "invalid": 92, "errors": 2}, 0.25),
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


def test_what_cores_and_gpus_do_is_the_mean_of_the_ready_instances_and_power_is_that_of_all() -> None:
    use = {"number": 0, "uuid": "GPU-0", "sharing": "exclusive", "memory_bytes": 80, "used_bytes": 20}
    busy, idle = ({**use, "busy_share": share, "power_w": 100.0} for share in (0.9, 0.3))
    instances = [
        {"instance": "1", "state": "ready", "cpu_share": 0.5, "devices": [busy]},
        {"instance": "2", "state": "ready", "cpu_share": 0.1, "devices": [idle]},
        {"instance": "3", "state": "starting", "devices": [{**idle, "busy_share": 0.0}]},
    ]
    revision = {"id": "r1"}
    shape = {"instances": 3}
    fields = {"name": "serve", "app": "a", "team": "vision", "state": "ready", "url": "", "generation": 1}
    record = ServiceRecord.model_validate({**fields, "shape": shape, "revisions": [revision], "instances": instances})
    deployer: Any = SimpleNamespace(service=lambda _: record)
    figures = {
        name: measure_service(deployer, f"service.serve.{name}", team="vision")
        for name in ("cpu", "gpu", "gpu_memory", "gpu_power_w")
    }
    assert figures == pytest.approx({"cpu": 0.3, "gpu": 0.6, "gpu_memory": 0.25, "gpu_power_w": 300.0})


def test_another_team_s_service_is_not_measured() -> None:
    assert read_metric("service.serve.errors", team="tabular", requests=8) is None
