"""All that a backend does with the rights of the stock role ``admin`` in one namespace that somebody made."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.findings import Finding
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.errors import AccessDeniedError, UsageError
from scanflow.knowledge.model_cache import ModelCache
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from scanflow.testing.namespace_rights import NamespaceRights

HOME: Final = "team-red"
DERIVED: Final = "scanflow-shop-data"
READS: Final = {"get", "find", "watch"}
ENGINES: Final = {"argo": ("Argo Workflows",), "argo and volcano": ("Argo Workflows", "Volcano")}
NOT_INSTALLED: Final = (
    "SeldonDeployment",
    "InferenceService",
    "ScaledObject",
    "HTTPRoute",
    "GRPCRoute",
    "TraefikService",
)
TIMES: Final = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:09Z"}
READY: Final = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0}],
}


def run_pods(cluster: MemoryCluster, deployment: Manifest) -> None:
    """Do what the controllers and kubelets do about a Deployment, at once."""
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    for number in range(deployment["spec"].get("replicas", 1)):
        name = f"{metadata['name']}-{number}"
        if cluster.get("Pod", name, metadata["namespace"]) is not None:
            cluster.delete("Pod", name, metadata["namespace"])
        own = {**copy.deepcopy(template["metadata"]), "name": name, "namespace": metadata["namespace"]}
        own["ownerReferences"] = [{"kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}]
        cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": template["spec"], "status": READY})
        cluster.logs[metadata["namespace"], name] = b"a line\n"


def end_workflow(cluster: MemoryCluster, workflow: Manifest) -> None:
    if workflow.get("status"):
        return
    metadata = workflow["metadata"]
    dag = next(template for template in workflow["spec"]["templates"] if template["name"] == "run")
    nodes = {
        task["name"]: {
            "name": f"{metadata['name']}.{task['name']}",
            "type": "Pod",
            "phase": "Succeeded",
            "templateName": f"step-{task['name']}",
        }
        for task in dag["dag"]["tasks"]
    }
    status = {"phase": "Succeeded", **TIMES, "nodes": nodes}
    cluster.edit("Workflow", metadata["name"], metadata["namespace"], {"status": status}, manager="argo")


def end_job(cluster: MemoryCluster, job: Manifest) -> None:
    if job.get("status"):
        return
    metadata, [task] = job["metadata"], job["spec"]["tasks"]
    name = f"{metadata['name']}-launcher-0"
    state = {"terminated": {**TIMES, "exitCode": 0, "reason": "Completed"}}
    status = {"phase": "Succeeded", "containerStatuses": [{"name": "launcher", "state": state}]}
    own = {"name": name, "namespace": metadata["namespace"], "labels": task["template"]["metadata"]["labels"]}
    spec = {**task["template"]["spec"], "nodeName": "n1"}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": spec, "status": status})
    cluster.logs[metadata["namespace"], name] = b"".join(
        f"[1,{rank}]<stdout>:##scanflow began {name}\n[1,{rank}]<stdout>:##scanflow ended 0\n".encode()
        for rank in range(2)
    )
    cluster.edit("Job", metadata["name"], metadata["namespace"], {"status": {"state": {"phase": "Completed"}}})


class Team:
    """Who has rights in one namespace, and the backend as he uses it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.cluster = MemoryCluster(namespaces=("default", DERIVED, HOME), unknown=NOT_INSTALLED)
        self.cluster.documents["/apis"] = json.dumps(
            {"groups": [{"versions": [{"groupVersion": "argoproj.io/v1alpha1"}]}]}
        )
        for kind, player in {"Deployment": run_pods, "Workflow": end_workflow, "Job": end_job}.items():
            self.cluster.play(kind, player)
        self.cluster.rights = NamespaceRights(HOME)
        for name in ("step.py", "ring.py"):
            (folder / name).write_text("print('here')\n")
        (folder / "model.py").write_text("class Echo:\n    pass\n")
        self.backend = self.make_another()
        self.app = sf.Application(
            name="shop",
            team="data",
            app_dir=folder,
            tracker=sf.Tracker(),
            agents=[sf.Agent(name="watcher", template="tracker")],
            workflows=[
                sf.Workflow(name="train", nodes=[sf.Executor(name=name, mainfile="step.py") for name in ("a", "b")]),
                sf.Workflow(
                    name="serving", type="online", nodes=[sf.Service(name="echo", implementation="model.py:Echo")]
                ),
                sf.Workflow(
                    name="ring", type="mpi", nodes=[sf.MPIWorkload(name="ring", mainfile="ring.py", n_tasks=2)]
                ),
            ],
        )

    def make_another(self, **options: str) -> Kubernetes:
        """Return the backend as another process has it."""
        fields = {"namespace": HOME, "mpi_image": "lab/mpi:1", **options}
        own = {name: value for name, value in fields.items() if value}
        backend = Kubernetes(
            self.settings.model_copy(update={"backend_options": own}),
            lambda _: ModelCache(self.folder / "models", lambda: pytest.fail("There is no model.")),
        )
        backend.__dict__["cluster"] = self.cluster
        return backend

    def list_objects(self) -> set[tuple[str, str]]:
        """Return the kinds and namespaces of all objects."""
        self.cluster.rights = None
        kinds = [kind for kind, info in KINDS.items() if info.namespaced and kind not in NOT_INSTALLED]
        return {(kind, manifest["metadata"]["namespace"]) for kind in kinds for manifest in self.cluster.find(kind)[0]}


@pytest.fixture
def team(settings: Settings, tmp_path: Path) -> Team:
    (tmp_path / "app").mkdir()
    return Team(settings, tmp_path / "app")


def keep_an_environment(team: Team) -> None:
    environments = team.backend.environments()
    planned = environments.plan(team.app)
    assert {change.change for change in planned} == {"create"}
    assert "Namespace" not in {change.kind for change in planned}
    environment = environments.ensure(team.app)
    assert (environment.namespace, environment.tracker_uri) == (HOME, f"http://tracker.{HOME}.svc:5000")
    assert {change.change for change in environments.plan(team.app)} == {"none"}
    assert environments.read_tracker_token(team.app)
    deleted = environments.delete(team.app)
    assert not deleted.namespace_removed
    assert ("Deployment tracker" in deleted.removed, deleted.left) == (True, ())


def run_batch(team: Team) -> None:
    runs, [train, _, _] = team.backend.batch(), team.app.workflows
    assert {change.namespace for change in team.backend.objects(team.app, train)} == {HOME}
    runs.plan(team.app, train)
    name = runs.enter(RunDefinition(team.app, train)).name
    record = runs.drive(name, environment=lambda _: {}, observe=lambda _: None)
    assert (record.state, record.model_dump()["namespace"]) == ("succeeded", HOME)
    assert runs.drive(name, environment=lambda _: {}, observe=lambda _: None).state == "succeeded"
    assert [run.name for run in runs.runs(limit=5)] == [name]
    assert runs.show(name).state == "succeeded"


def serve(team: Team) -> None:
    services, serving = team.backend.online(), team.app.workflows[1]
    assert {change.namespace for change in team.backend.objects(team.app, serving)} == {HOME}
    services.plan(team.app, serving)
    deployment = Deployment(team.app, "serving", source=team.folder / "app.py")
    record = services.deploy(deployment, key=None, observe=lambda _: None)
    assert (record.state, record.model_dump()["namespace"]) == ("ready", HOME)
    scaled = services.change("serving", ServiceChange(instances=2), key=None, observe=lambda _: None)
    assert scaled.shape.instances == 2
    [listed] = team.make_another().online().services()
    assert (listed.state, listed.url) == ("ready", f"http://serving.{HOME}:8080")
    services.reconcile(listed, observe=lambda _: None)
    with closing(services.logs("serving")) as reader:
        assert reader.read().parts
    services.delete("serving", observe=lambda _: None)
    assert services.services() == []


def host_an_agent(team: Team) -> None:
    agents = team.backend.agents(ended=lambda: None)
    agent = HostedAgent(
        app="shop",
        team="data",
        name="watcher",
        document=dump_document(team.app),
        version="1",
        source=str(team.folder / "app.py"),
        code="c0de",
        server="https://scanflow.scanflow.svc:46666",
        tracker=None,
        token=SecretStr("a"),
        peer_token=SecretStr("b"),
    )
    agents.start(agent)
    shown = agents.show("shop", "data", "watcher")
    assert (shown.started, shown.url) == (True, f"http://agent-watcher.{HOME}.svc:8080")
    own = team.cluster.get("ConfigMap", "agent-watcher", HOME)
    assert own is not None
    assert json.loads(own["data"]["agent.json"])["url"] == shown.url
    assert [process.name for process in agents.agents()] == ["watcher"]
    assert agents.start(agent) is False
    agents.logs("shop", "data", "watcher")
    agents.stop("shop", "data", "watcher")


def run_ranks(team: Team) -> None:
    team.cluster.rights = NamespaceRights(HOME, ENGINES["argo and volcano"])
    runs, ring = team.backend.mpi(), team.app.workflows[2]
    runs.plan(team.app, ring)
    assert {change.namespace for change in team.backend.objects(team.app, ring)} == {HOME}
    name = runs.enter(RunDefinition(team.app, ring)).name
    record = runs.drive(name, environment=lambda _: {}, observe=lambda _: None)
    assert (record.state, record.model_dump()["namespace"]) == ("succeeded", HOME)
    assert runs.outputs(name, "ring")["result"]["ranks"] == 2  # type: ignore[call-overload]
    assert runs.drive(name, environment=lambda _: {}, observe=lambda _: None).state == "succeeded"


def examine(team: Team) -> None:
    team.cluster.documents["/version"] = '{"major": "1", "minor": "34", "gitVersion": "v1.34.4"}'
    findings = team.backend.doctor()
    assert [finding for finding in findings if finding.mark == "✗"] == []
    assert Finding("–", "nodes", f"not known to who has rights in the namespace {HOME} alone") in findings
    assert Finding("✓", "rights", "all that scanflow uses") in findings


@pytest.mark.parametrize("operation", [keep_an_environment, run_batch, serve, host_an_agent, run_ranks, examine])
def test_all_works_with_the_role_admin_of_one_namespace_and_writes_there_alone(
    team: Team, operation: Callable[[Team], None]
) -> None:
    operation(team)
    written = {call.namespace for call in team.cluster.calls if call.verb not in READS and "Review" not in call.kind}
    assert written <= {HOME}
    assert {namespace for _, namespace in team.list_objects()} <= {HOME}


def test_an_engine_that_is_not_used_may_be_installed_and_forbidden(team: Team) -> None:
    team.cluster.unknown = set()
    serve(team)


def test_who_may_not_read_his_namespace_uses_it_as_it_is(team: Team) -> None:
    team.cluster.refuse(lambda _, kind, __: AccessDeniedError("no") if kind == "Namespace" else None)
    keep_an_environment(team)


def test_a_namespace_that_scanflow_made_is_used_as_it_is_by_who_may_not_label_it(team: Team) -> None:
    labels = {"app.kubernetes.io/managed-by": "scanflow"}
    team.cluster.edit("Namespace", HOME, None, {"metadata": {"labels": labels}})
    assert team.backend.environments().ensure(team.app).namespace == HOME
    namespace = team.cluster.get("Namespace", HOME)
    assert namespace is not None
    assert namespace["metadata"]["labels"] == labels


def test_an_environment_of_another_application_is_refused_before_anything_is_planned(team: Team) -> None:
    team.backend.environments().ensure(team.app.replace(name="other"))
    for operation in (team.backend.environments().plan, team.backend.environments().ensure):
        with pytest.raises(UsageError, match=f"'{HOME}' is the environment of the application 'other' of team 'data'"):
            operation(team.app)


def test_without_the_setting_the_message_of_what_is_forbidden_names_it(team: Team) -> None:
    with pytest.raises(AccessDeniedError):
        team.make_another(namespace="").environments().ensure(team.app)


def test_a_run_stays_in_the_namespace_that_it_was_entered_in(team: Team) -> None:
    run_batch(team)
    [run] = team.backend.batch().runs(limit=5)
    team.cluster.rights = None
    elsewhere = team.make_another(namespace="").batch()
    assert elsewhere.show(run.name).model_dump()["namespace"] == HOME
    waiting = team.backend.batch().enter(RunDefinition(team.app, team.app.workflows[0])).name
    with pytest.raises(UsageError, match=f"is in the namespace '{HOME}'.*SCANFLOW_KUBERNETES_NAMESPACE={HOME}"):
        elsewhere.drive(waiting, environment=lambda _: {}, observe=lambda _: None)
    assert {namespace for _, namespace in team.list_objects()} == {HOME}


def test_a_service_is_where_it_was_deployed_whatever_the_setting_names_now(team: Team) -> None:
    deployment = Deployment(team.app, "serving", source=team.folder / "app.py")
    team.backend.online().deploy(deployment, key=None, observe=lambda _: None)
    team.cluster.rights = None
    elsewhere = team.make_another(namespace="").online()
    scaled = elsewhere.change("serving", ServiceChange(instances=2), key=None, observe=lambda _: None)
    assert (scaled.shape.instances, scaled.model_dump()["namespace"]) == (2, HOME)
    elsewhere.delete("serving", observe=lambda _: None)
    assert ("Deployment", HOME) not in {kind for kind in team.list_objects() if "serving" in kind}


def test_a_service_of_a_version_that_did_not_record_its_namespace_is_where_its_config_map_is(team: Team) -> None:
    deployment = Deployment(team.app, "serving", source=team.folder / "app.py")
    team.backend.online().deploy(deployment, key=None, observe=lambda _: None)
    [stored] = team.cluster.find("ConfigMap", HOME, labels="scanflow.dev/state=service")[0]
    document = json.loads(stored["data"]["service.json"])
    del document["definition"]["details"]["namespace"]
    edit = {"data": {"service.json": json.dumps(document)}}
    team.cluster.edit("ConfigMap", stored["metadata"]["name"], HOME, edit)
    scaled = (
        team.make_another().online().change("serving", ServiceChange(instances=2), key=None, observe=lambda _: None)
    )
    assert (scaled.shape.instances, scaled.model_dump()["namespace"]) == (2, HOME)
