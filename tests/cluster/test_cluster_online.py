"""Online workflows on a real cluster, by each engine that it has: the same test, with the same answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import CanaryPolicy
from scanflow.errors import InvalidError, UsageError
from tests.cluster.online import KIND, Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize("engine", ["deployment", "seldon", "kserve"])
def test_a_service_is_deployed_changed_and_removed(place: Callable[..., Place], engine: str) -> None:
    here = place(engine)
    record = here.deploy(2)
    assert (record.state, [instance.state for instance in record.instances]) == ("ready", ["ready"])
    assert here.answer() == [2]
    _answers_by_grpc(record.grpc, here.name)
    grown = here.change(instances=2)
    assert [instance.state for instance in grown.instances] == ["ready", "ready"]
    with here.load() as failed:
        swapped = here.deploy(3, instances=2)
    assert (failed, here.asked > 50) == ([], True)
    assert (swapped.url, swapped.previous, here.answer()) == (record.url, True, [3])
    here.change(rollback=True)
    assert here.answer() == [2]
    with pytest.raises(UsageError, match=r"did not take effect: .*less than nothing.* is still served"):
        here.deploy(-1)
    assert here.answer() == [2]
    assert here.deployer.service(here.name).state == "ready"
    here.deployer.delete(here.name)
    selector = build_selector(service=here.name)
    for kind in (KIND[engine], "Deployment", "Service", "ConfigMap", "Secret", "Pod"):
        assert here.cluster.find(kind, here.namespace, labels=selector)[0] == [], kind


def test_versions_of_a_registered_model_share_the_traffic(place: Callable[..., Place]) -> None:
    here = place(tracker=True)
    here.register(2, 3)
    record = here.deploy(model="models:/multiply/1")
    assert record.current.models == {"multiply": "models:/multiply/1"}
    assert here.answer() == [2]
    canary = here.change(model="models:/multiply/2", weight=0.5)
    assert [(revision.role, revision.weight) for revision in canary.revisions] == [("current", 0.5), ("canary", 0.5)]
    assert {tuple(here.answer()) for _ in range(40)} == {(2,), (3,)}
    here.change(promote=True)
    assert {tuple(here.answer()) for _ in range(10)} == {(3,)}
    here.change(rollback=True)
    assert {tuple(here.answer()) for _ in range(10)} == {(2,)}
    here.change(model="models:/multiply/2", weight=0.5, policy=CanaryPolicy(metric="errors", after_requests=20))

    def due() -> ServiceChange | None:
        """Ask, and do what a server does each second."""
        here.answer()
        return here.deployer.reconcile(here.deployer.service(here.name))

    wait_until(lambda: due() == ServiceChange(promote=True), "its policy has the canary promoted", patience_s=60)


def test_cores_of_its_own_are_requested_and_read_back(place: Callable[..., Place]) -> None:
    here = place()
    with pytest.raises(InvalidError, match="whole cores only"):
        here.deploy(affinity="cpu", resources=sf.Resources(cpu="500m", memory="128Mi"))
    record = here.deploy(affinity="cpumempin", resources=sf.Resources(cpu=1, memory="256Mi"))
    (instance,) = record.instances
    details = instance.model_extra or {}
    assert details["qos"] == "Guaranteed"
    assert details["requested"] == details["granted"] == {"cpu": "1", "memory": "256Mi"}
    assert len(instance.cpus) == 1
    assert instance.place
    assert here.answer() == [2]


def _answers_by_grpc(address: str, name: str) -> None:
    import numpy as np
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(address) as client:
        infer_input = triton.InferInput("x", [1], "INT64")
        infer_input.set_data_from_numpy(np.array([1]))
        output = client.infer(name, [infer_input], client_timeout=10)
        assert output is not None
        answer = output.as_numpy("output-0")
        assert answer is not None
        assert answer.tolist() == [2]


@pytest.mark.parametrize(
    "engine",
    ["deployment", *(pytest.param(engine_, marks=pytest.mark.cluster_slow) for engine_ in ("seldon", "kserve"))],
)
def test_predictions_are_recorded_in_the_tracker_to_the_last(place: Callable[..., Place], engine: str) -> None:
    here = place(engine, tracker=True)
    here.backend.environments().ensure(here.app())
    here.backend.environments().wait_for_tracker(here.app(), within_s=90)
    deployed = here.app()
    (workflow,) = deployed.workflows
    workflow = workflow.replace(serving=sf.Serving(record=1))
    record = here.deployer.deploy(Deployment(deployed.replace(workflows=[workflow])), observe=here.seen.append)
    for _ in range(20):
        assert here.answer() == [2]
    output = here.backend.online().logs(here.name, record.instances[0].instance).read()
    assert b"ready: " in b"".join(part.data for part in output.parts)
    here.deployer.delete(here.name)
    runs = here.knowledge().search_runs(here.name, "tests", "tags.`scanflow.kind` = 'predictions'")
    assert sum(run.metrics["predictions"] for run in runs) == 20
    assert {run.tags["scanflow.revision"] for run in runs} == {"r1"}
