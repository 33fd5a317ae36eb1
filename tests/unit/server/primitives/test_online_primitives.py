from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.service import Service
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import ScanflowError, UnsupportedError, UsageError
from scanflow.settings import Settings
from tests.unit.server.primitives.primitive_runs import Doing, Remembered
from tests.unit.standin import Place, StandIn


class Online(Doing):
    @property
    def record(self) -> ServiceRecord:
        return self.deployer.service("serve")

    @property
    def node(self) -> Service:
        return self.applications.application.workflow("serve").services[0]


@pytest.fixture
def backend(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def doing(settings: Settings, backend: StandIn) -> Online:
    node = sf.Service(name="cnn", model="models:/mnist/1", instances=2, resources=sf.Resources(cpu=1))
    app = sf.Application(name="mnist", team="tests", workflows=[sf.Workflow(name="serve", type="online", nodes=[node])])
    return Online(EmbeddedDeployer(settings, backend=Place(settings, backend)), Remembered(app), workflow="serve")


@pytest.fixture
def served_online(doing: Online) -> Online:
    doing("deploy_workflow")
    doing.notes.clear()
    return doing


def test_a_workflow_is_deployed_and_undone_by_deleting_it(doing: Online) -> None:
    done = doing("deploy_workflow", instances=3)
    assert (done.result["service"], doing.record.shape.instances) == ("serve", 3)
    doing.undo(done)
    assert doing.deployer.services() == []


def test_deleting_is_undone_by_deploying_it_as_it_was_cut(served_online: Online) -> None:
    served_online.deployer.change("serve", ServiceChange(instances=4))
    done = served_online("delete_workflow")
    assert served_online.deployer.services() == []
    again = served_online("delete_workflow", noted=done.inverse)  # after a kill: it is gone, as it was to be
    assert again.inverse == done.inverse
    served_online.undo(done)
    assert served_online.record.shape.instances == 4


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://127.0.0.1:46701", 46701), ("http://gateway:80/shop/serve", None), ("http://gateway", None)],
)
def test_a_service_is_deployed_again_at_its_own_port_and_not_at_a_gateways(
    served_online: Online, backend: StandIn, monkeypatch: pytest.MonkeyPatch, url: str, port: int | None
) -> None:
    record = served_online.record.model_copy(update={"url": url})
    monkeypatch.setattr(backend, "service", lambda _name: record)
    inverse = served_online("delete_workflow").inverse
    assert inverse is not None
    assert inverse.arguments.get("port") == port


def test_a_model_is_swapped_in_kept_and_swapped_back(served_online: Online) -> None:
    done = served_online("upgrade_workflow", model="models:/mnist/2")
    assert served_online.record.revisions[0].models == {"cnn": "models:/mnist/2"}
    assert served_online.node.model == "models:/mnist/2"
    assert done.inverse is not None
    assert done.inverse.arguments == {"workflow": "serve", "model": "models:/mnist/1", "node": "cnn"}
    again = served_online("upgrade_workflow", noted=done.inverse, model="models:/mnist/2")
    assert again.inverse == done.inverse
    served_online.undo(done)
    assert (served_online.record.revisions[0].models, served_online.node.model) == (
        {"cnn": "models:/mnist/1"},
        "models:/mnist/1",
    )


def test_the_canary_is_promoted_without_loading_it_again(served_online: Online) -> None:
    served_online("update_workflow_traffic", model="models:/mnist/2", weight=0.1)
    served_online("upgrade_workflow", model="models:/mnist/2")
    assert [revision.role for revision in served_online.record.revisions] == ["current"]
    assert served_online.record.revisions[0].models == {"cnn": "models:/mnist/2"}


@pytest.mark.parametrize(
    ("primitive", "arguments", "after"),
    [
        ("update_workflow_replica", {"instances": 4}, {"instances": 4}),
        ("duplicate_workflow_instance", {"count": 2}, {"instances": 4}),
        ("delete_workflow_instance", {}, {"instances": 1}),
        ("update_workflow_affinity", {"affinity": "cpu"}, {"affinity": "cpu"}),
        ("update_workflow_resource", {"cpu": "500m"}, {"cores": 0.5}),
        ("apply_workflow_instance", {"instances": 3, "cores": 0.5}, {"instances": 3, "cores": 0.5}),
        ("apply_workflow_instance", {"cores": 4.0, "threads": 2}, {"cores": 4.0, "pool_threads": 2}),
        ("apply_workflow_instance", {"instances": 4, "gpu": "0.25"}, {"instances": 4, "gpu": 0.25}),
    ],
)
def test_a_service_is_changed_while_it_serves_and_not_twice_after_a_kill(
    served_online: Online, primitive: str, arguments: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    done = served_online(primitive, **arguments)
    assert {name: getattr(served_online.record.shape, name) for name in after} == after
    assert served_online.notes == [done.inverse]  # it was known before anything was changed
    again = served_online(primitive, noted=done.inverse, **arguments)
    assert {name: getattr(served_online.record.shape, name) for name in after} == after
    assert again.inverse == done.inverse


def test_threads_that_nobody_set_are_given_back_as_one_for_each_core(served_online: Online) -> None:
    done = served_online("apply_workflow_instance", cores=4.0, threads=2)
    assert done.inverse is not None
    assert done.inverse.arguments == {"workflow": "serve", "cores": 1.0, "threads": 1}


def test_what_the_application_wants_is_kept_and_what_a_moment_needs_is_not(served_online: Online) -> None:
    served_online("update_workflow_replica", instances=4)
    served_online("update_workflow_affinity", affinity="cpu")
    served_online("update_workflow_resource", cpu=0.5)
    served_online("duplicate_workflow_instance")
    assert (served_online.node.instances, served_online.node.resources.cpu) == (4, 0.5)
    assert isinstance(served_online.node.affinity, sf.Affinity)
    assert served_online.node.affinity.mode == "cpu"
    assert served_online.record.shape.instances == 5


def test_a_threshold_decides_on_instances_from_then_on(served_online: Online) -> None:
    done = served_online("update_workflow_replica", metric="rps", target=20, min=1, max=4)
    assert (served_online.node.scaling, done.result["scaling"]["target"]) == (
        sf.Scaling(metric="rps", target=20, min=1, max=4),
        20.0,
    )
    cpu = sf.Scaling(metric="cpu", target=0.8, up=0.9, down=0.5, min=2, max=8, polling=5)
    served_online("update_workflow_replica", scaling=cpu.model_dump(mode="json"))
    served_online("update_workflow_replica", target=0.6)
    assert served_online.node.scaling == cpu.replace(target=0.6)
    served_online(
        "update_workflow_replica", scaling=sf.Scaling(metric="rps", target=20, min=1, max=4).model_dump(mode="json")
    )
    moved = served_online("update_workflow_replica", target=40)
    assert served_online.node.scaling == sf.Scaling(metric="rps", target=40, min=1, max=4)
    served_online.undo(moved)
    assert served_online.node.scaling is not None
    assert served_online.node.scaling.target == 20


def test_a_version_is_tried_and_taken_back(served_online: Online, backend: StandIn) -> None:
    done = served_online("update_workflow_traffic", model="models:/mnist/2", weight=0.2)
    assert done.inverse is not None
    assert done.inverse.arguments == {"workflow": "serve", "model": "models:/mnist/2", "weight": 0.0}
    more = served_online("update_workflow_traffic", model="models:/mnist/2", weight=0.5)
    assert more.inverse is not None
    assert more.inverse.arguments["weight"] == 0.2
    served_online.undo(more)
    assert backend.asked[-1] == {"change": ServiceChange(model="models:/mnist/2", weight=0.2, shadow=False)}
    nothing = served_online("update_workflow_traffic", model="models:/mnist/9", weight=0.0)
    assert (nothing.result["weight"], nothing.inverse) == (0.0, None)


@pytest.mark.parametrize(
    ("primitive", "arguments", "kind", "message"),
    [
        ("delete_workflow_instance", {"instance": "1"}, UnsupportedError, "does not support 'instance'"),
        ("delete_workflow_instance", {"count": 2}, UsageError, "would leave none"),
        ("delete_workflow_instance", {"count": 0}, UsageError, "count cannot be 0"),
        ("update_workflow_resource", {"memory": "1Gi"}, UnsupportedError, "cannot change 'memory'"),
        ("update_workflow_replica", {}, UsageError, "either a number, instances=4, or a metric that decides it"),
        ("update_workflow_replica", {"instances": True}, UsageError, "instances cannot be True"),
        ("run_workflow", {}, UsageError, "'serve' is of type 'online'"),
        ("upgrade_workflow", {"parameters": {"a": 1}}, UsageError, "is for workflows of type 'batch', but 'serve' is"),
    ],
)
def test_what_cannot_be_done_says_so_and_changes_nothing(
    served_online: Online, primitive: str, arguments: Mapping[str, Any], kind: type[ScanflowError], message: str
) -> None:
    before = served_online.record
    with pytest.raises(kind, match=message):
        served_online(primitive, **arguments)
    assert (served_online.record, served_online.notes, served_online.applications.revision) == (before, [], 1)


def test_an_agent_changes_no_other_applications_service(served_online: Online) -> None:
    node = sf.Service(name="cnn", model="models:/mnist/1")
    workflow = sf.Workflow(name="serve", type="online", nodes=[node])
    served_online.applications = Remembered(sf.Application(name="other", team="tests", workflows=[workflow]))
    with pytest.raises(UsageError, match="belongs to the application 'mnist'"):
        served_online("delete_workflow")


def test_cores_are_shared_out_as_before_among_the_nodes_of_a_graph(served_online: Online) -> None:
    nodes = [
        sf.Service(name="clean", implementation="m.py:Clean", role="TRANSFORMER", resources=sf.Resources(cpu=1)),
        sf.Service(name="cnn", model="models:/mnist/1", resources=sf.Resources(cpu=3)),
    ]
    workflow = sf.Workflow(name="serve", type="online", nodes=nodes, edges=nodes[0] >> nodes[1])
    served_online.applications = Remembered(sf.Application(name="mnist", team="tests", workflows=[workflow]))
    served_online("update_workflow_resource", cpu=2)
    services = served_online.applications.application.workflow("serve").services
    assert [service.resources.cpu for service in services] == [0.5, 1.5]
