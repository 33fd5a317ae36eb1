"""The objects of an online workflow, for each engine, as files."""

from __future__ import annotations

import pytest

from scanflow.app.scaling import Scaling
from scanflow.app.serving import Serving
from scanflow.backends.kubernetes.gpus import DevicePlugin
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings, ServingEngine
from scanflow.backends.kubernetes.online import instance_pods, render
from scanflow.backends.kubernetes.online.engines import ENGINES, build_revision_object
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import InvalidError
from scanflow.instance_messages import ModelFiles, Node, Revision
from tests.manifests import assert_manifests

CODE = instance_pods.MountedCode(
    ({"name": "code", "configMap": {"name": "code-0123456789abcdef"}},),
    ({"name": "code", "mountPath": "/app", "readOnly": True},),
)
GIVEN = instance_pods.PodOptions(
    image="scanflow/base:latest",
    code=CODE,
    env={"MLFLOW_TRACKING_URI": "http://tracker.scanflow-shop-data.svc:5000"},
    service_account="scanflow-pod",
    pull_secret="registry",
    token_secret="service-serving-token",
)


def definition(**changes: object) -> ServiceSpec:
    before = Node(name="scale", role="TRANSFORMER", implementation="graph.py:Scale", file="/app/graph.py")
    model = Node(name="cnn", parents=("scale",), model=ModelFiles(name="mnist_cnn", version=3, path=""))
    shape = Shape(instances=2, cores=2, memory_bytes=2 * 2**30, affinity="cpumempin")
    service_spec = ServiceSpec(
        app="shop",
        team="data",
        workflow="serving",
        app_dir="/app",
        deployment=3,
        serves=3,
        shape=shape.model_copy(update={"threads": instance_pods.compute_threads(shape, {"OMP_NUM_THREADS": "1"})}),
        revisions=(Revision(id="r3", nodes=(before, model)),),
        serving=Serving(auth="env:TOKEN", env={"OMP_NUM_THREADS": "1"}, deadline="500ms"),
        place={"disk": "ssd"},
        details={instance_pods.NAMESPACE: "scanflow-shop-data"},
    )
    return service_spec.with_changes(**changes)


def make_manifests(engine: ServingEngine, spec: ServiceSpec, *, plugin: DevicePlugin | None = None) -> list[Manifest]:
    revision, maker = spec.current, ENGINES[engine]
    options = GIVEN._replace(device_plugin=plugin or DevicePlugin())
    template = instance_pods.build_pod_template(spec, revision, options, container=maker.container)
    return [
        instance_pods.build_config_map(spec, revision, options),
        build_revision_object(maker, spec, revision, template),
        render.build_revision_service(spec, revision),
        render.build_stable_service(spec, canary=False),
    ]


@pytest.mark.parametrize("engine", ["deployment", "seldon", "kserve"])
def test_a_service_becomes_the_objects_that_it_always_became(engine: ServingEngine) -> None:
    assert_manifests(f"service-{engine}", *make_manifests(engine, definition()))


def test_a_service_that_is_recorded_has_who_takes_its_predictions_to_the_tracker_beside_it() -> None:
    plain = definition()
    recorded = plain.with_changes(serving=plain.serving.model_copy(update={"record": 0.5}))
    assert_manifests("service-recorded", *make_manifests("deployment", recorded))


@pytest.mark.parametrize(("name", "gpu"), [("share", 0.25), ("part", "1g.10gb")])
def test_an_instance_asks_for_its_gpu_where_it_is_offered(name: str, gpu: float | str) -> None:
    plain = definition()
    shape = plain.shape.model_copy(update={"gpu": gpu})
    assert_manifests(f"service-gpu-{name}", *make_manifests("deployment", plain.with_changes(shape=shape))[1:2])


def test_cores_of_its_own_are_requested_as_a_kubelet_gives_them() -> None:
    asked = instance_pods.build_resources(definition().shape)
    assert asked == {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    assert instance_pods.build_resources(Shape(cores=0.05)) == {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}
    assert instance_pods.build_resources(Shape()) == {}


def test_another_size_or_model_is_another_template_and_the_same_one_is_not() -> None:
    def template(spec: ServiceSpec) -> str:
        return instance_pods.get_template_hash(instance_pods.build_pod_template(spec, spec.current, GIVEN))

    service_definition = definition()
    assert template(service_definition) == template(definition())
    assert template(service_definition) == template(
        service_definition.with_changes(shape=service_definition.shape.model_copy(update={"instances": 5}))
    )
    assert template(service_definition) != template(
        service_definition.with_changes(shape=service_definition.shape.model_copy(update={"cores": 1.0}))
    )
    assert template(service_definition) != template(service_definition.with_changes(image="shop/serving:2"))


def test_the_share_of_a_canary_is_no_matter_of_its_pods() -> None:
    service_definition = definition()
    canary = Revision(id="r4", nodes=service_definition.current.nodes, weight=0.1)
    shared = service_definition.with_changes(
        revisions=(Revision(id="r3", nodes=service_definition.current.nodes, weight=0.9), canary)
    )
    assert instance_pods.build_config_map(shared, shared.current, GIVEN) == instance_pods.build_config_map(
        service_definition, service_definition.current, GIVEN
    )
    assert render.build_stable_service(shared, canary=True)["spec"]["selector"] == {"scanflow.dev/service": "serving"}


def test_a_service_without_grpc_has_no_port_for_it() -> None:
    spec = definition(serving=Serving(grpc_port=0, port=9000))
    ports = render.build_stable_service(spec, canary=False)["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in ports] == [("http", 9000, 8080)]


def test_threads_beyond_the_cores_are_refused() -> None:
    with pytest.raises(InvalidError, match="OMP_NUM_THREADS=4"):
        instance_pods.compute_threads(Shape(cores=2), {"OMP_NUM_THREADS": "4"})


def test_a_service_is_rendered_as_what_is_applied_hashed_scaled_and_waited_for() -> None:
    service_definition = definition()
    canary = Revision(id="r4", nodes=service_definition.current.nodes, weight=0.5)
    shared = service_definition.with_changes(
        revisions=(Revision(id="r3", nodes=service_definition.current.nodes, weight=0.5), canary),
        scaling=Scaling(metric="cpu", target=0.5, min=1),
    )
    rendering = render.render(shared, KubernetesSettings())
    assert rendering == render.render(shared, KubernetesSettings()), "of nothing but what it takes"
    own, other = rendering.revisions
    assert (own.scaler is None, own.min_instances, own.instances) == (False, 1, 2)
    assert (other.scaler is None, other.min_instances, other.instances) == (True, 2, 2)
    kinds = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendering.manifests]
    assert [name for kind, name in kinds if kind == "Deployment"] == [own.target.name, other.target.name]
    assert kinds[-2:] == [("HorizontalPodAutoscaler", "serving-r3"), ("Service", "serving")]
    assert list(rendering.hashes) == [f"{kind}/{name}" for kind, name in kinds]
    pod = own.workload["spec"]["template"]
    assert (own.is_own_pod(pod), other.is_own_pod(pod)) == (True, False)
    older = {"metadata": {**pod["metadata"], "annotations": {instance_pods.TEMPLATE: "before"}}}
    assert not own.is_own_pod(older)
