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
from tests.unit.server.primitives.keeping import Doing, Remembered
from tests.unit.server.primitives.ruled import KilledError, Ruled
from tests.unit.standin import Place

SCALING = sf.Scaling(metric="rps", target=20, min=1, max=3, polling=5.0)


def graph(*nodes: sf.Service) -> Remembered:
    edges = [one >> other for one, other in itertools.pairwise(nodes)]
    workflow = sf.Workflow(name="serve", type="online", nodes=list(nodes), edges=edges)
    return Remembered(sf.Application(name="mnist", team="tests", workflows=[workflow]))


def served(**changes: Any) -> Remembered:
    given: dict[str, Any] = {"instances": 2, "model": "models:/mnist/1", "resources": sf.Resources(cpu=1), **changes}
    return graph(sf.Service(name="cnn", **given))


class World(Doing):
    """One application and what serves it; what is done is done as an engine does it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.backend = Ruled(folder)
        super().__init__(EmbeddedDeployer(settings, backend=Place(settings, self.backend)), served(), workflow="serve")

    def wants(self, **changes: Any) -> None:
        self.applications = served(**changes)

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
        said = self.applications.application.workflow("serve").services
        if stored is None:
            return None, said
        definition = stored.definition
        shape = definition.shape
        if definition.scaling is not None:  # it decides on the number, from wherever it is
            shape = shape.model_copy(update={"instances": 0})
        shares = [(one.nodes, one.weight, one.shadow) for one in definition.revisions]
        return (stored.port, shape, definition.scaling, shares), said


@pytest.fixture
def world(settings: Settings, tmp_path: Path) -> World:
    return World(settings, tmp_path)


def as_deployed(world: World) -> None:
    world("deploy_workflow")


def with_more_for_a_moment(world: World) -> None:
    world("deploy_workflow")
    world("duplicate_workflow_instance", count=2)


def with_a_scaling(world: World) -> None:
    world.wants(scaling=SCALING)
    world("deploy_workflow")


def with_a_version_that_a_person_promoted(world: World) -> None:
    world.wants(model="models:/mnist@champion")
    world("deploy_workflow")
    world.deployer.change("serve", ServiceChange(model="models:/mnist/3"))


def with_a_version_on_trial(world: World) -> None:
    world("deploy_workflow")
    world.deployer.change("serve", ServiceChange(model="models:/mnist/3", weight=0.25))


def with_a_graph(world: World) -> None:
    first = sf.Service(name="a", model="models:/first/1", instances=1, resources=sf.Resources(cpu=1))
    affinity = sf.Affinity(mode="cpu", near=["a"])
    second = sf.Service(
        name="b", model="models:/mnist/1", instances=3, resources=sf.Resources(cpu=2), affinity=affinity
    )
    world.wants_graph(first, second)
    world("deploy_workflow")


def with_limits_on_one_node_only(world: World) -> None:
    first = sf.Service(name="a", model="models:/first/1")
    world.wants_graph(first, sf.Service(name="b", model="models:/mnist/1", resources=sf.Resources(cpu=2)))
    world("deploy_workflow")


STATES = [
    as_deployed,
    with_more_for_a_moment,
    with_a_scaling,
    with_a_version_that_a_person_promoted,
    with_a_version_on_trial,
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
    ("delete_workflow_instance", {}),
    ("duplicate_workflow_instance", {}),
]
ENDS_A_TRIAL = {"deploy_workflow", "delete_workflow", "upgrade_workflow", "update_workflow_replica"}
"""What serves only one version from then on. What was on trial is not begun again."""


@pytest.mark.parametrize("kill", ["never", "in the action", "in its taking back"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("primitive", "arguments"), ACTIONS)
def test_what_is_taken_back_is_as_it_was(
    world: World, state: Callable[[World], None], primitive: str, arguments: Mapping[str, Any], kill: str
) -> None:
    state(world)
    if primitive in ENDS_A_TRIAL and state is with_a_version_on_trial:
        world.deployer.change("serve", ServiceChange(model="models:/mnist/3", weight=0.0))
    if primitive == "deploy_workflow" and state is with_a_version_that_a_person_promoted:
        # Deploying again undoes that; only the cut is given back.
        world.deployer.change("serve", ServiceChange(model="models:/mnist/1"))
    before, call = world.state, PrimitiveCall(primitive=primitive, arguments={"workflow": "serve", **arguments})
    notes: list[PrimitiveCall] = []
    try:
        if kill == "in the action":
            world.is_killed_in(lambda: world.call(call, notes=notes))
        done = world.call(call, notes=notes, noted=notes[0] if notes else None)
    except ScanflowError:
        assert world.state == before  # it cannot be done here, and nothing was
        return
    if done.inverse is None:
        assert notes == []
        return
    if kill == "in its taking back":
        world.is_killed_in(lambda: world.takes_back(done))
    world.takes_back(done)
    assert world.state == before


def test_a_scaling_that_was_added_is_gone_again(world: World) -> None:
    world.wants(instances=4)
    world("deploy_workflow")
    done = world("update_workflow_replica", metric="rps", target=20, max=3)
    assert world.deployer.service("serve").shape.instances == 3  # from as many as there were
    world.takes_back(done)
    assert world.deployer.service("serve").shape.instances == 4
    assert world.backend.stored["serve"].definition.scaling is None
    assert world.applications.application.workflow("serve").services[0].scaling is None


def test_an_inverse_says_no_more_than_it_has_to_and_names_a_threshold(world: World) -> None:
    with_a_scaling(world)
    done = world("update_workflow_replica", target=100)
    assert done.inverse is not None
    assert (done.inverse.primitive, done.inverse.arguments["target"]) == ("update_workflow_replica", 20.0)
    world("delete_workflow")
    world.wants()
    as_deployed(world)
    done = world("update_workflow_replica", instances=3)
    assert done.inverse == PrimitiveCall(
        primitive="update_workflow_replica", arguments={"workflow": "serve", "instances": 2}
    )


def test_what_was_deployed_and_is_gone_by_itself_counts_as_taken_back(world: World) -> None:
    done = world("deploy_workflow")
    del world.backend.stored["serve"]
    assert world.takes_back(done).result == {"service": "serve", "deleted": True}
    with pytest.raises(NotFoundError, match="There is no service 'serve'"):
        world("delete_workflow")


def test_an_alias_is_taken_off_trial_also_when_it_has_moved_on(world: World) -> None:
    as_deployed(world)
    before = world.state
    done = world("update_workflow_traffic", model="models:/mnist@challenger", weight=0.5)
    world.backend.aliases["challenger"] = 3
    world.takes_back(done)
    assert world.state == before


def test_cores_that_were_not_limited_are_not_said_to_be_given_back(world: World) -> None:
    world.wants(resources=sf.Resources())
    world("deploy_workflow")
    assert world("apply_workflow_instance", cores=0.5, instances=1).inverse is None


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
    world: World, arguments: Mapping[str, Any], kind: type[ScanflowError], message: str
) -> None:
    as_deployed(world)
    before = world.state
    with pytest.raises(kind, match=message):
        world("update_workflow_replica", **arguments)
    assert world.state == before
