"""From an application to what instances are told, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.workflow import Workflow
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.layout import Home
from scanflow.backends.local.python_environments import SERVING_RUNTIME, normalise_requirements
from scanflow.backends.local.services.grants import (
    UsedCpus,
    choose_grant,
    derive_thread_variables,
    list_cpus_avoiding,
    plan_grants,
)
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.local.services.spec.builder import ServiceSpecBuilder
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, build_nodes
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, UsageError
from scanflow.instance_messages import ModelFiles
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import FakeAccelerators, make_gpu


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "one.txt", "two.txt"):
        (tmp_path / name).write_text("class A: ...\nclass B: ...\n")
    return tmp_path


def service(name: str = "m", **fields: Any) -> sf.Service:
    if "model" not in fields:
        fields["implementation"] = "a.py:A"
    return sf.Service(name=name, **fields)


def online(*nodes: sf.Service, edges: Any = (), name: str = "w", **serving: Any) -> Workflow:
    return sf.Workflow(name=name, type="online", nodes=nodes, edges=edges, serving=sf.Serving(**serving))


def application(folder: Path, *workflows: Workflow, **fields: Any) -> sf.Application:
    return sf.Application(name="shop", app_dir=folder, workflows=workflows, **fields)


def fetch(uri: str) -> ModelFiles:
    return ModelFiles(name=uri, version=1, path="/models")


def define(folder: Path, workflow: Workflow, *others: Workflow, shape: Shape | None = None) -> ServiceSpec:
    blueprint = ServiceSpecBuilder(Home(folder), ServicesHome(folder / "services"), fetch)
    app = application(folder, workflow, *others)
    blueprint.check(app, workflow, shape)
    return blueprint.build_spec(app, workflow, source=None, shape=shape, tell=lambda _: None)


def test_a_graph_keeps_its_parents_in_the_order_of_the_nodes(folder: Path) -> None:
    a, b = service("a"), service("b", model="models:/x/1")
    join = service("join", role="combiner", parameters={"weights": [1, 2]})
    workflow = online(a, b, join, edges=[b >> join, a >> join])
    nodes = build_nodes(application(folder, workflow), workflow, fetch)
    assert [(node.name, node.role, node.parents) for node in nodes] == [
        ("a", "MODEL", ()),
        ("b", "MODEL", ()),
        ("join", "COMBINER", ("a", "b")),
    ]
    assert nodes[0].file == str((folder / "a.py").resolve())
    assert nodes[1].model == fetch("models:/x/1")
    assert nodes[2].parameters == {"weights": [1, 2]}


def test_the_nodes_of_a_graph_share_one_instance(folder: Path) -> None:
    a = service("a", resources=sf.Resources(cpu=0.25, memory="64Mi"), instances=2)
    b = service("b", resources=sf.Resources(cpu=0.5, memory="64Mi"), affinity="cpu")
    definition = define(folder, online(a, b, edges=[a >> b]), shape=None)
    assert definition.shape.cores == 0.75
    assert definition.shape.memory_bytes == 128 * 2**20
    assert (definition.shape.instances, definition.shape.affinity) == (2, "cpu")
    assert definition.shape.threads["OMP_NUM_THREADS"] == "1"


def test_limits_and_the_backup_are_taken_over(folder: Path) -> None:
    first = online(service(), deadline=2, queue=7, backup="spare", hand_back_after=5, grpc_port=0)
    spare = online(service(), name="spare")
    definition = define(folder, first, spare)
    assert (
        definition.limits.deadline_s,
        definition.limits.queue,
        definition.serving.backup,
        definition.serving.hand_back_after,
    ) == (2, 7, "spare", 5)
    assert define(folder, spare, first).aliases == ("w",)


def test_what_a_process_is_started_with_makes_its_spec_hash(folder: Path) -> None:
    definition = define(folder, online(service()))
    wider = definition.with_changes(shape=definition.shape.model_copy(update={"cores": 2.0}))
    more = definition.with_changes(shape=definition.shape.model_copy(update={"instances": 7}))
    assert definition.spec_hash != wider.spec_hash
    assert definition.spec_hash == more.spec_hash == definition.with_changes(serves=9).spec_hash
    assert definition.spec_hash != definition.with_changes(deployment=2).spec_hash


def test_only_what_instances_see_makes_a_deployment(folder: Path) -> None:
    before = define(folder, online(service(scaling=sf.Scaling(metric="rps", target=2))))
    scaled = define(folder, online(service(scaling=sf.Scaling(metric="rps", target=3)), hand_back_after=9))
    merged = before.with_changes(deployment=3, serves=4).merge_unseen_fields(scaled)
    assert merged is not None
    assert (merged.deployment, merged.serves, merged.serving.hand_back_after) == (3, 4, 9)
    assert merged.scaling == scaled.scaling
    assert merged.spec_hash == before.with_changes(deployment=3).spec_hash
    assert before.merge_unseen_fields(before) is None  # to deploy the same again replaces its processes
    assert before.merge_unseen_fields(define(folder, online(service(), queue=3))) is None
    (folder / "other.py").write_text("changed = True\n")
    assert before.merge_unseen_fields(define(folder, online(service()))) is None


def test_a_definition_reads_back(folder: Path) -> None:
    definition = define(
        folder, online(service(parameters={"x": {"y": [1, None]}}, scaling=sf.Scaling(metric="rps", target=2)))
    )
    assert ServiceSpec.model_validate_json(definition.model_dump_json()) == definition


A, B = service("a", requirements="one.txt"), service("b", requirements="two.txt")


@pytest.mark.parametrize(
    ("workflow", "error", "words"),
    [
        (
            online(service(resources=sf.Resources(gpu=999))),
            UnsupportedError,
            "'w': gpu=999 asks for a GPU, and there is none here|gpu=999 is more than there is here",
        ),
        (
            online(service(scaling=sf.Scaling(metric="gpu", target=0.5))),
            InvalidError,
            "'w': Scaling.metric='gpu' goes by",
        ),
        (
            online(service(affinity=sf.Affinity(node_selector={"a": "b"}))),
            UnsupportedError,
            "does not support affinity",
        ),
        (online(A, B, edges=[A >> B]), UnsupportedError, "requirements: 'a' and 'b' name different files"),
        (online(sf.Service(name="m", implementation="c.py:C")), NotFoundError, "There is no file 'c.py'"),
        (online(sf.Service(name="m", implementation="a.py:Aa")), NotFoundError, r"'a.py' has no 'Aa'\. "),
        (online(service(), record=0.5), InvalidError, "has no tracker"),
        (online(service(resources=sf.Resources(memory="900Ti"))), InvalidError, "of memory do not fit this machine"),
        (sf.Workflow(name="w", nodes=[sf.Executor(name="x", mainfile="a.py")]), UsageError, "is run, not served"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    folder: Path, workflow: Workflow, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        define(folder, workflow)


def test_more_instances_than_gpus_are_refused_by_what_asks_for_them(folder: Path) -> None:
    devices = HomeDevices(folder, lambda: FakeAccelerators(make_gpu(0), make_gpu(1)))
    builder = ServiceSpecBuilder(Home(folder), ServicesHome(folder / "services"), fetch, devices)
    workflow = online(service(resources=sf.Resources(gpu=1), scaling=sf.Scaling(metric="rps", target=5, max=4)))
    with pytest.raises(UnsupportedError, match=r"^'w': Scaling.max=4: 4 instances x gpu=1 .* enough for 2: GPU 0 "):
        builder.check(application(folder, workflow), workflow, None)


def test_scaling_by_gpus_is_refused_where_the_driver_does_not_tell_it(folder: Path) -> None:
    gpus = FakeAccelerators(make_gpu(0), make_gpu(1))
    devices = HomeDevices(folder, lambda: gpus)
    builder = ServiceSpecBuilder(Home(folder), ServicesHome(folder / "services"), fetch, devices)
    workflow = online(service(resources=sf.Resources(gpu=1), scaling=sf.Scaling(metric="gpu", target=0.5, max=2)))
    app = application(folder, workflow)
    with pytest.raises(UnsupportedError, match=r"'w': Scaling.metric='gpu': .* GPU 0 "):
        builder.check(app, workflow, None)
    for number in range(2):
        gpus.change(number, busy_share=0.0)
    builder.check(app, workflow, None)
    definition = builder.build_spec(app, workflow, source=None, shape=None, tell=lambda _: None)
    by_requests = definition.with_changes(scaling=sf.Scaling(metric="rps", target=5))
    assert builder.complete_shape(by_requests, Shape()).gpu == 0
    with pytest.raises(InvalidError, match=r"resources=sf.Resources"):
        builder.complete_shape(definition, Shape())


@pytest.mark.parametrize("tracker", [None, sf.Tracker()])
def test_a_model_that_is_missing_says_where_it_may_have_gone(folder: Path, tracker: sf.Tracker | None) -> None:
    workflow = online(service(model="models:/digits/1"))

    def find_nothing(uri: str) -> ModelFiles:
        raise NotFoundError(f"There is no {uri}.")

    with pytest.raises(NotFoundError) as caught:
        build_nodes(application(folder, workflow, tracker=tracker), workflow, find_nothing)
    assert str(caught.value).startswith("There is no models:/digits/1.")
    assert ("has no tracker" in str(caught.value)) is (tracker is None)


def test_a_backup_has_none_itself(folder: Path) -> None:
    first, second = online(service(), backup="second"), online(service(), name="second", backup="third")
    with pytest.raises(UnsupportedError, match="does not support a chain of backups"):
        define(folder, first, second, online(service(), name="third"))


def test_what_an_instance_needs_is_added_unless_the_service_names_it_itself() -> None:
    wanted = normalise_requirements(["NumPy<3", "prometheus_client"], with_runtime=True, runtime=SERVING_RUNTIME)
    assert wanted[:2] == ("NumPy<3", "prometheus_client")
    assert not [line for line in wanted[2:] if line.startswith(("numpy", "prometheus"))]
    assert any(line.startswith("msgspec==") for line in wanted)


# Grants

MACHINE = uniform(2, 4)


def test_pinned_services_do_not_share_cores(tmp_path: Path) -> None:
    home = ServicesHome(tmp_path)
    shape = Shape(instances=2, cores=2, affinity="cpumem")
    first, second = home.service("a"), home.service("b")
    for service in (first, second):
        service.path.mkdir()
        service.desired.touch()
    a1 = choose_grant(first, MACHINE, shape, 2, [])
    a2 = choose_grant(first, MACHINE, shape, 2, [a1])
    b1 = choose_grant(second, MACHINE, shape, 2, [])
    b2 = choose_grant(second, MACHINE, shape, 2, [b1])
    assert sorted(cpu for grant in (a1, a2, b1, b2) for cpu in grant.cpus) == list(range(8))
    with pytest.raises(InvalidError, match="0 cores of them are left"):
        choose_grant(second, MACHINE, shape, 3, [b1, b2])
    first.grants.unlink()  # as when its supervisor ends
    assert set(choose_grant(second, MACHINE, shape, 3, [b1, b2]).cpus) <= {*a1.cpus, *a2.cpus}


def test_unpinned_services_share_whatever_there_is() -> None:
    others = UsedCpus(plan_grants(MACHINE, Shape(cores=8, affinity="cpu"), 1, UsedCpus()))
    assert len(plan_grants(MACHINE, Shape(instances=40, cores=1), 40, others)) == 40


def test_unpinned_services_and_replacements_get_the_least_used_cpus(tmp_path: Path) -> None:
    machine, shape, home = uniform(1, 4), Shape(cores=1), ServicesHome(tmp_path)
    grants = []
    for name in ("a", "b"):
        home.service(name).path.mkdir()
        home.service(name).desired.touch()
        grants.append(choose_grant(home.service(name), machine, shape, 1, []))
    replacement = choose_grant(home.service("a"), machine, shape, 1, [], leaving=grants[:1])
    pinned = choose_grant(
        home.service("b"), machine, shape.model_copy(update={"affinity": "cpu"}), 1, [], leaving=grants[1:]
    )
    cpus = [grant.cpus for grant in (*grants, replacement)]
    assert len(set(cpus)) == 3
    assert pinned.cpus not in {replacement.cpus, grants[1].cpus}
    assert choose_grant(home.service("b"), machine, Shape(cores=4, affinity="cpu"), 1, []).cpus == (0, 1, 2, 3)


def test_instances_of_one_unpinned_service_share_their_cpus(tmp_path: Path) -> None:
    folder, shape = ServicesHome(tmp_path).service("a"), Shape(instances=2, cores=1)
    folder.path.mkdir()
    first = choose_grant(folder, MACHINE, shape, 2, [])
    assert choose_grant(folder, MACHINE, shape, 2, [first]) == first
    assert len(choose_grant(folder, MACHINE, shape, 3, [first, first]).cpus) == 3


def test_thread_pools_are_sized_to_the_cores_and_a_larger_wish_is_refused() -> None:
    assert (
        derive_thread_variables(MACHINE, Shape(cores=2), {"OMP_NUM_THREADS": "1", "OTHER": "x"})["OMP_NUM_THREADS"]
        == "1"
    )
    assert derive_thread_variables(MACHINE, Shape(affinity="cpu"), {})["OMP_NUM_THREADS"] == "1"
    assert derive_thread_variables(MACHINE, Shape(), {})["OMP_NUM_THREADS"] == "8"
    with pytest.raises(InvalidError, match="MKL_NUM_THREADS=3"):
        derive_thread_variables(MACHINE, Shape(cores=2), {"MKL_NUM_THREADS": "3"})


def test_what_is_avoid_services_keeps_off_their_cores_their_siblings_too_while_others_are_left(tmp_path: Path) -> None:
    home, machine, shape = (
        ServicesHome(tmp_path),
        uniform(cores_per_socket=2, smt=2),
        Shape(cores=1.0, affinity="cpu"),
    )
    assert set(list_cpus_avoiding(home, ["there-is-none"], machine)) == set(machine.effective_cpus)
    grants = []
    for name in ("first", "second"):
        home.service(name).path.mkdir()
        home.service(name).desired.touch()
        grants.append(choose_grant(home.service(name), machine, shape, 1, []))
    first, second = (machine.core_of[grant.cpus[0]] for grant in grants)
    assert first != second
    assert set(list_cpus_avoiding(home, ["first"], machine)) == set(second.cpus)
    free_cpus = {*first.cpus, *second.cpus} - {*grants[0].cpus, *grants[1].cpus}
    assert set(list_cpus_avoiding(home, ["first", "second"], machine)) == free_cpus
    everything = Shape(cores=4.0, affinity="any")
    home.service("whole").path.mkdir()
    home.service("whole").desired.touch()
    choose_grant(home.service("whole"), machine, everything, 1, [])
    assert set(list_cpus_avoiding(home, ["whole"], machine)) == set(machine.effective_cpus)
