"""Inverses of what is done to services: they give back what there was, under the rules of the real backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.agent_records import PrimitiveCall
from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.backends.service_change import ServiceChange
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError
from scanflow.settings import Settings
from tests.unit.server.primitives.primitive_runs import Doing, Remembered
from tests.unit.server.primitives.strict_backend import KilledError, Ruled
from tests.unit.standin import Place

SCALING = sf.Scaling(metric="rps", target=20, min=1, max=3, polling=5.0)


def graph(*nodes: sf.Service) -> Remembered:
    edges = [first >> other for first, other in itertools.pairwise(nodes)]
    workflow = sf.Workflow(name="serve", type="online", nodes=list(nodes), edges=edges)
    return Remembered(sf.Application(name="mnist", team="tests", workflows=[workflow]))


def make_applications(**changes: Any) -> Remembered:
    fields: dict[str, Any] = {"instances": 2, "model": "models:/mnist/1", "resources": sf.Resources(cpu=1), **changes}
    return graph(sf.Service(name="cnn", **fields))


class ApplicationHarness(Doing):
    """One application and what serves it; what is done is done as an engine does it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.backend = Ruled(folder)
        super().__init__(
            EmbeddedDeployer(settings, backend=Place(settings, self.backend)), make_applications(), workflow="serve"
        )

    def wants(self, **changes: Any) -> None:
        self.applications = make_applications(**changes)

    def wants_graph(self, *nodes: sf.Service) -> None:
        self.applications = graph(*nodes)

    def takes_back(self, done: PrimitiveResult) -> PrimitiveResult:
        return self.undo(done, key="intent/i1/revert")

    def is_killed_in(self, act: Callable[[], object]) -> None:
        """Do it, and die as soon as the backend has done its part, if it has one."""
        self.backend.killed_after_next = True
        try:
            act()
        except KilledError:
            pass
        finally:
            self.backend.killed_after_next = False

    @property
    def state(self) -> Any:
        stored = self.backend.stored.get("serve")
        services = self.applications.application.workflow("serve").services
        if stored is None:
            return None, services
        definition = stored.definition
        shape = definition.shape
        if definition.scaling is not None:  # it decides on the number, from wherever it is
            shape = shape.model_copy(update={"instances": 0})
        shares = [(revision.nodes, revision.weight, revision.shadow) for revision in definition.revisions]
        return (stored.port, shape, definition.scaling, shares), services


@pytest.fixture
def harness(settings: Settings, tmp_path: Path) -> ApplicationHarness:
    return ApplicationHarness(settings, tmp_path)


def deploy(harness: ApplicationHarness) -> None:
    harness("deploy_workflow")


def with_more_for_a_moment(harness: ApplicationHarness) -> None:
    harness("deploy_workflow")
    harness("duplicate_workflow_instance", count=2)


def with_a_scaling(harness: ApplicationHarness) -> None:
    harness.wants(scaling=SCALING)
    harness("deploy_workflow")


def promote_by_person(harness: ApplicationHarness) -> None:
    harness.wants(model="models:/mnist@champion")
    harness("deploy_workflow")
    harness.deployer.change("serve", ServiceChange(model="models:/mnist/3"))


def start_canary(harness: ApplicationHarness) -> None:
    harness("deploy_workflow")
    harness.deployer.change("serve", ServiceChange(model="models:/mnist/3", weight=0.25))


def with_a_graph(harness: ApplicationHarness) -> None:
    first = sf.Service(name="a", model="models:/first/1", instances=1, resources=sf.Resources(cpu=1))
    affinity = sf.Affinity(mode="cpu", near=["a"])
    second = sf.Service(
        name="b", model="models:/mnist/1", instances=3, resources=sf.Resources(cpu=2), affinity=affinity
    )
    harness.wants_graph(first, second)
    harness("deploy_workflow")


def with_limits_on_one_node_only(harness: ApplicationHarness) -> None:
    first = sf.Service(name="a", model="models:/first/1")
    harness.wants_graph(first, sf.Service(name="b", model="models:/mnist/1", resources=sf.Resources(cpu=2)))
    harness("deploy_workflow")


STATES = [
    deploy,
    with_more_for_a_moment,
    with_a_scaling,
    promote_by_person,
    start_canary,
    with_a_graph,
    with_limits_on_one_node_only,
]
ACTIONS: list[tuple[str, Mapping[str, Any]]] = [
    ("deploy_workflow", {}),
    ("deploy_workflow", {"instances": 5}),
    ("delete_workflow", {}),
    ("upgrade_workflow", {"model": "models:/mnist/2"}),
    ("upgrade_workflow", {"model": "models:/mnist@challenger"}),
    ("update_workflow_affinity", {"affinity": "cpumem"}),
    ("update_workflow_affinity", {"affinity": "any"}),
    ("update_workflow_resource", {"cpu": 0.5}),
    ("update_workflow_replica", {"instances": 1}),
    ("update_workflow_replica", {"instances": 3}),
    ("update_workflow_replica", {"metric": "rps", "target": 50, "max": 3}),
    ("update_workflow_replica", {"metric": "p95", "target": 100, "up": 150, "down": 20}),
    ("update_workflow_replica", {"scaling": {"metric": "cpu", "target": 0.5, "max": 2, "cool_down": 5.0}}),
    ("update_workflow_replica", {"scaling": None}),
    ("update_workflow_replica", {"scaling": None, "instances": 2}),
    ("update_workflow_traffic", {"model": "models:/mnist/2", "weight": 0.5}),
    ("update_workflow_traffic", {"model": "models:/mnist/2", "shadow": True}),
    ("update_workflow_traffic", {"model": "models:/mnist@challenger", "weight": 0.5}),
    ("update_workflow_traffic", {"model": "models:/mnist/3", "weight": 0.0}),
    ("apply_workflow_instance", {"instances": 1, "cores": 0.5, "affinity": "cpu"}),
    ("apply_workflow_instance", {"cores": 0.5}),
    ("apply_workflow_instance", {"gpu": 0.5}),
    ("delete_workflow_instance", {}),
    ("duplicate_workflow_instance", {}),
]
ENDS_A_TRIAL = {"deploy_workflow", "delete_workflow", "upgrade_workflow", "update_workflow_replica"}
"""What serves only one version from then on. What was on trial is not begun again."""


@pytest.mark.parametrize("kill", ["never", "in the action", "in its taking back"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("primitive", "arguments"), ACTIONS)
def test_what_is_taken_back_is_as_it_was(
    harness: ApplicationHarness,
    state: Callable[[ApplicationHarness], None],
    primitive: str,
    arguments: Mapping[str, Any],
    kill: str,
) -> None:
    state(harness)
    if primitive in ENDS_A_TRIAL and state is start_canary:
        harness.deployer.change("serve", ServiceChange(model="models:/mnist/3", weight=0.0))
    if primitive == "deploy_workflow" and state is promote_by_person:
        # Deploying again undoes that; only the cut is given back.
        harness.deployer.change("serve", ServiceChange(model="models:/mnist/1"))
    before, call = harness.state, PrimitiveCall(primitive=primitive, arguments={"workflow": "serve", **arguments})
    notes: list[PrimitiveCall] = []
    try:
        if kill == "in the action":
            harness.is_killed_in(lambda: harness.call(call, notes=notes))
        done = harness.call(call, notes=notes, noted=notes[0] if notes else None)
    except ScanflowError:
        assert harness.state == before  # it cannot be done here, and nothing was
        return
    if done.inverse is None:
        assert notes == []
        return
    if kill == "in its taking back":
        harness.is_killed_in(lambda: harness.takes_back(done))
    harness.takes_back(done)
    assert harness.state == before


def test_a_scaling_that_was_added_is_gone_again(harness: ApplicationHarness) -> None:
    harness.wants(instances=4)
    harness("deploy_workflow")
    done = harness("update_workflow_replica", metric="rps", target=20, max=3)
    assert harness.deployer.service("serve").shape.instances == 3  # from as many as there were
    harness.takes_back(done)
    assert harness.deployer.service("serve").shape.instances == 4
    assert harness.backend.stored["serve"].definition.scaling is None
    assert harness.applications.application.workflow("serve").services[0].scaling is None


def test_an_inverse_says_no_more_than_it_has_to_and_names_a_threshold(harness: ApplicationHarness) -> None:
    with_a_scaling(harness)
    done = harness("update_workflow_replica", target=100)
    assert done.inverse is not None
    assert (done.inverse.primitive, done.inverse.arguments["target"]) == ("update_workflow_replica", 20.0)
    harness("delete_workflow")
    harness.wants()
    deploy(harness)
    done = harness("update_workflow_replica", instances=3)
    assert done.inverse == PrimitiveCall(
        primitive="update_workflow_replica", arguments={"workflow": "serve", "instances": 2}
    )


def test_what_was_deployed_and_is_gone_by_itself_counts_as_taken_back(harness: ApplicationHarness) -> None:
    done = harness("deploy_workflow")
    del harness.backend.stored["serve"]
    assert harness.takes_back(done).result == {"service": "serve", "deleted": True}
    with pytest.raises(NotFoundError, match="There is no service 'serve'"):
        harness("delete_workflow")


def test_an_alias_leaves_the_canary_also_when_it_has_moved_on(harness: ApplicationHarness) -> None:
    deploy(harness)
    before = harness.state
    done = harness("update_workflow_traffic", model="models:/mnist@challenger", weight=0.5)
    harness.backend.aliases["challenger"] = 3
    harness.takes_back(done)
    assert harness.state == before


def test_cores_that_were_not_limited_are_not_said_to_be_given_back(harness: ApplicationHarness) -> None:
    harness.wants(resources=sf.Resources())
    harness("deploy_workflow")
    assert harness("apply_workflow_instance", cores=0.5, instances=1).inverse is None


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"scaling": 3}, InvalidError, "scaling cannot be 3"),
        ({"scaling": {"metric": "rps"}}, InvalidError, "Scaling needs the field 'target'"),
        ({"scaling": {"metric": "rps", "target": 1, "maximum": 2}}, InvalidError, "maximum"),
        ({"scaling": {"metric": "rps", "target": 1}, "target": 2}, UsageError, "in place of all other arguments"),
        ({"scaling": {"metric": "rps", "target": 1}, "instances": 2}, UsageError, "only scaling=None"),
        ({"scaling": None, "up": 2.0}, UsageError, "in place of all other arguments"),
        ({"instances": 2, "nodes": {"cnn": -1}}, InvalidError, "nodes.cnn cannot be -1"),
        ({"up": None}, UsageError, "either a number"),
    ],
)
def test_a_wrong_scaling_is_refused_and_changes_nothing(
    harness: ApplicationHarness, arguments: Mapping[str, Any], kind: type[ScanflowError], message: str
) -> None:
    deploy(harness)
    before = harness.state
    with pytest.raises(kind, match=message):
        harness("update_workflow_replica", **arguments)
    assert harness.state == before
