"""The ten primitives on online workflows, carried out on a real cluster as an agent has them: by a server's arbiter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.service_records import CanaryPolicy
from tests.cluster.acting_server import Acting
from tests.cluster.online import Place
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster_slow, pytest.mark.timeout(600)]

SMALL = sf.Resources(cpu="200m", memory="256Mi")
"""Of an instance, which gets no more than that: with less, Python alone takes most of a minute to start."""


def list_objects(here: Place, kind: str) -> list[Manifest]:
    return here.cluster.find(kind, here.namespace, labels=build_selector(service=here.name))[0]


def sizes(here: Place) -> list[str]:
    """Return the cores that each instance asks for."""
    pods = here.pods().values()
    return sorted(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in pods)


def test_a_service_is_deployed_sized_and_ended_and_each_is_taken_back(
    place: Callable[..., Place], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = place()
    with Acting(tmp_path_factory.mktemp("server"), here.app(resources=SMALL)) as acting:
        deployed = acting.do(do.deploy_workflow(here.name))
        assert (here.answer(), sizes(here)) == ([2], ["200m"])

        more = acting.do(do.duplicate_workflow_instance(here.name))
        assert sizes(here) == ["200m", "200m"]
        fewer = acting.do(do.delete_workflow_instance(here.name))
        assert sizes(here) == ["200m"]
        acting.take_back(fewer)
        assert sizes(here) == ["200m", "200m"]
        acting.take_back(more)
        assert sizes(here) == ["200m"]
        named = acting.refusal(do.delete_workflow_instance(here.name, instance=next(iter(here.pods()))))
        assert "does not support 'instance'" in named
        assert "Use 'count'" in named

        fixed = acting.do(do.update_workflow_replica(here.name, instances=2))
        assert (sizes(here), acting.current_app.workflow(here.name).services[0].instances) == (["200m", "200m"], 2)
        scaled = acting.do(do.update_workflow_replica(here.name, metric="cpu", target=0.5, max=2))
        (autoscaler,) = list_objects(here, "HorizontalPodAutoscaler")
        assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (1, 2)
        acting.take_back(scaled)
        assert list_objects(here, "HorizontalPodAutoscaler") == []
        acting.take_back(fixed)

        more_cores = acting.do(do.update_workflow_resource(here.name, cpu="300m"))
        assert sizes(here) == ["300m"]
        acting.take_back(more_cores)
        assert sizes(here) == ["200m"]
        memory = acting.refusal(do.update_workflow_resource(here.name, memory="512Mi"))
        assert "cannot change 'memory' of a running service. Change it in the application, and deploy again" in memory

        alone = acting.refusal(do.update_workflow_affinity(here.name, "cpu"))
        assert "affinity 'cpu' needs cores of its own. A kubelet gives whole cores only" in alone
        assert "Write cores=2" in alone
        cut = acting.do(do.apply_workflow_instance(here.name, cores=1))
        own = acting.do(do.update_workflow_affinity(here.name, "cpumempin"))
        (instance,) = here.deployer.service(here.name).instances
        assert ((instance.model_extra or {})["qos"], len(instance.cpus)) == ("Guaranteed", 1)
        acting.take_back(own)
        acting.take_back(cut)
        assert (sizes(here), here.deployer.service(here.name).shape.affinity) == (["200m"], "any")

        ended = acting.do(do.delete_workflow(here.name))
        assert here.deployer.services() == []
        assert [list_objects(here, kind) for kind in ("Deployment", "Service", "ConfigMap", "Pod")] == [[], [], [], []]
        acting.take_back(ended)
        assert (here.answer(), sizes(here)) == ([2], ["200m"])
        assert acting.current_app == acting.app
        acting.take_back(deployed)
        assert here.deployer.services() == []


def test_versions_of_a_model_are_tried_and_swapped_and_each_is_taken_back(
    place: Callable[..., Place], tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = place(tracker=True)
    here.register(2, 3)
    app = here.app(model="models:/multiply/1", resources=sf.Resources(cpu="400m", memory="512Mi"))
    variables = {"SCANFLOW_TRACKER_URI": here.tracker_uri, "MLFLOW_TRACKING_TOKEN": here.tracker_token or ""}
    with Acting(tmp_path_factory.mktemp("server"), app, **variables) as acting:
        acting.do(do.deploy_workflow(here.name))
        assert here.answer() == [2]
        shadow = acting.refusal(do.update_workflow_traffic(here.name, "models:/multiply/2", shadow=True))
        assert "A shadow needs a Gateway" in shadow
        assert "set SCANFLOW_KUBERNETES_GATEWAY" in shadow
        shared = acting.do(do.update_workflow_traffic(here.name, "models:/multiply/2", weight=0.5))
        assert {tuple(here.answer()) for _ in range(40)} == {(2,), (3,)}
        acting.take_back(shared)
        assert {tuple(here.answer()) for _ in range(20)} == {(2,)}
        swapped = acting.do(do.upgrade_workflow(here.name, model="models:/multiply/2"))
        assert (here.answer(), acting.current_app.workflow(here.name).services[0].model) == ([3], "models:/multiply/2")
        acting.take_back(swapped)
        assert (here.answer(), acting.current_app) == ([2], acting.app)

        policy = CanaryPolicy(metric="errors", after_requests=20)
        here.change(model="models:/multiply/2", weight=0.5, policy=policy)

        def is_promoted() -> bool:
            here.answer()
            revisions = here.deployer.service(here.name).revisions
            return [(revision.role, revision.models) for revision in revisions] == [
                ("current", {"multiply": "models:/multiply/2"})
            ]

        wait_until(is_promoted, "the server has the canary promoted, as its policy says", patience_s=120)
