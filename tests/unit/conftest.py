"""How property tests run here: on the same examples each time, on a busy machine as on an idle one."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "scanflow",
    deadline=None,
    derandomize=True,
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("scanflow")
