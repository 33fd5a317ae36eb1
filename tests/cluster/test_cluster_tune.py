"""``scanflow tune`` of a service on a real cluster: pods of other sizes beside the one that serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import scanflow as sf
from scanflow.backends.service_change import Deployment
from scanflow.tuning.goals import Goal
from scanflow_client.predict_io import HttpRequest
from scanflow_client.tuning import TuningBudget, tune_service
from scanflow_client.tuning_target import TuningTarget
from tests.cluster.online import Place

pytestmark = [pytest.mark.cluster]

BODY = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]}'


def test_a_search_measures_pods_of_other_sizes_and_leaves_the_service_as_it_was(
    place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow.tuning.study.SEARCH_PAIRS", 1)
    monkeypatch.setattr("scanflow.tuning.study.FRESH_PAIRS", 1)
    here = place()
    app = here.app(resources=sf.Resources(cpu=0.25, memory="128Mi"))
    before = here.deployer.deploy(Deployment(app))
    pods = set(here.pods())
    tried: list[str] = []

    def build_request(name: str) -> HttpRequest:
        return HttpRequest(f"/v2/models/{name}/infer", BODY, {"content-type": "application/json"})

    report = tune_service(
        here.deployer,
        TuningTarget(app=app, workflow=app.workflow(here.name), source=None, record=before),
        build_request,
        Goal(),
        TuningBudget(trials=4, minutes=10),
        cores=1,
        connections=2,
        seconds=1.0,
        on_trial=tried.append,
    )
    by_size = {(trial.candidate.cores, trial.candidate.affinity): trial for trial in report.result.trials}
    assert set(by_size) == {(1.0, "any"), (1.0, "cpu")}, tried
    assert [trial.reason for trial in by_size.values()] == ["", ""]
    assert report.result.best != report.result.default, "a quarter of a core cannot serve as much as a whole one"
    after = here.deployer.service(here.name)
    assert (after.generation, after.shape, set(here.pods())) == (before.generation, before.shape, pods)
    assert [service.name for service in here.deployer.services() if service.app == here.name] == [here.name]
