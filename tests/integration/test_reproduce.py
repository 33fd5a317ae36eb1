"""Each experiment by a short round on this machine: it measures what its figures' claims speak of."""

from __future__ import annotations

import math
import shutil
from types import ModuleType

import pytest

from scanflow_research import allocation, hpc, inference_measurements, serverless, service_measurements
from scanflow_research.figure import Claim
from scanflow_research.figure_catalogue import load_catalogue

SHORT = {"SECONDS": 0.6, "SERVER_S": 1.0, "SIZE": 400, "MOVED_MEBIBYTES": 64, "BATCH_MEBIBYTES": 128}


def measured_claims(module: ModuleType) -> list[Claim]:
    """Return the claims that this machine has room for."""
    own = [figure for figure in load_catalogue() if figure.experiment == module.EXPERIMENT.name]
    claims = [claim for figure in own for claim in figure.claims if not claim.untested]
    return [claim for claim in claims if not claim.arm.startswith(("2 cores, shared", "3 cores"))]


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(service_measurements, marks=pytest.mark.slow),
        pytest.param(serverless, marks=pytest.mark.slow),
        pytest.param(allocation, marks=pytest.mark.slow),
        pytest.param(hpc, marks=[pytest.mark.slow, pytest.mark.mpi]),
        pytest.param(inference_measurements, marks=pytest.mark.endurance),  # it loads its network six times
    ],
)
def test_a_round_measures_what_claims_speak_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    problem = module.EXPERIMENT.find_problem()
    if problem is not None:
        pytest.skip(problem)
    messages: list[str] = []
    with module.open_rounds(messages.append) as measure_round:
        arms = measure_round(0).arms
    counters = {"migrations", "switches"} if shutil.which("perf") is None else set()
    for claim in measured_claims(module):
        for arm in filter(None, (claim.arm, claim.base)):
            if claim.metric not in counters:
                assert math.isfinite(arms[arm][claim.metric]), claim.statement
    assert messages
