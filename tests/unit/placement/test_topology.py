from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError, NotFoundError
from scanflow.placement.topology import Cache, Core, NumaNode, Topology, load, save, uniform

MACHINES = st.builds(
    uniform,
    sockets=st.integers(1, 4),
    cores_per_socket=st.sampled_from([1, 2, 4, 12, 18, 64]),
    smt=st.integers(1, 4),
    l3_group=st.none() | st.integers(1, 8),
    adjacent=st.booleans(),
)


@given(MACHINES)
def test_a_made_up_machine_is_whole(topology: Topology) -> None:
    assert topology.cpus == tuple(range(len(topology.cpus)))
    assert topology.effective_cpus == topology.cpus
    assert topology.effective_count == len(topology.cores) * topology.threads_per_core
    assert all(topology.node_of[cpu].id == topology.core_of[cpu].socket for cpu in topology.cpus)


@given(MACHINES)
def test_a_description_survives_its_file(tmp_path_factory: pytest.TempPathFactory, topology: Topology) -> None:
    path = tmp_path_factory.mktemp("saved") / "machine.json"
    described = topology.replace(allowed=topology.cpus[:1], quota=0.5, allowed_nodes=(0,), memory_limit_bytes=2**30)
    save(described, path)
    assert load(path) == described


def test_siblings_are_numbered_as_intel_or_as_amd_does() -> None:
    assert uniform(1, 18, 2).cores[0].cpus == (0, 18)
    assert uniform(2, 18, 2).cores[0].cpus == (0, 36)
    assert uniform(2, 18, 2, adjacent=True).cores[0].cpus == (0, 1)


@pytest.mark.parametrize(
    ("allowed", "quota", "count"),
    [(None, None, 8), ((1, 2, 3), None, 3), (None, 2.5, 3), (None, 0.1, 1), ((1,), 4.0, 1), ((1, 2, 99), 1.0, 1)],
)
def test_the_mask_and_the_quota_both_count(allowed: tuple[int, ...] | None, quota: float | None, count: int) -> None:
    assert uniform(1, 8).replace(allowed=allowed, quota=quota).effective_count == count


def test_memory_is_what_the_nodes_have_up_to_the_limit() -> None:
    machine = uniform(2, 2, memory_bytes=2**30)
    assert machine.memory_bytes == 2**31
    assert machine.replace(memory_limit_bytes=5).memory_bytes == 5
    assert machine.replace(nodes=[NumaNode(cpus=(0, 1, 2, 3))]).memory_bytes is None


def test_cpus_beside_a_node_without_memory_use_the_nearest_that_has_some() -> None:
    machine = Topology(
        cores=(Core(cpus=(0,)), Core(cpus=(1,), socket=1)),
        nodes=(
            NumaNode(id=0, cpus=(0,), memory_bytes=0, distances=(10, 31, 21)),
            NumaNode(id=1, cpus=(1,), memory_bytes=2**30, distances=(31, 10, 31)),
            NumaNode(id=2, memory_bytes=2**30, distances=(21, 31, 10)),
        ),
    )
    assert machine.memory_nodes == (1, 2)
    assert machine.list_nearest_memory([0]) == (2,)
    assert machine.list_nearest_memory([0, 1]) == (1, 2)
    assert machine.replace(allowed_nodes=[1]).list_nearest_memory([0]) == (1,)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cores": [], "nodes": [NumaNode()]}, "at least one core"),
        ({"cores": [Core(cpus=(0,)), Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,))]}, "0 cannot be in two cores"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,)), NumaNode(id=1, cpus=(0,))]}, "in two nodes"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,)), NumaNode()]}, "the number of two nodes"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode()]}, "CPU 0 must be in one core and in one node"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0, 1))]}, "CPU 1 must be"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,))], "allowed": [7]}, "No CPU may be used"),
        ({"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,))], "offline": "0"}, "both offline and in a core"),
        (
            {"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,))], "caches": [Cache(level=3, cpus=(4,))]},
            "A cache is",
        ),
        (
            {"cores": [Core(cpus=(0,))], "nodes": [NumaNode(cpus=(0,), distances=(10, 20))]},
            "one distance for each node",
        ),
    ],
)
def test_a_machine_that_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        Topology(**fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "describes no machine"),
        ("[]", "has no object with 'cores' and 'nodes'"),
        ('{"topology": 3}', "has no object"),
        ('{"cores": [{"cpu": "0"}], "nodes": [{"cpus": "0"}]}', "Did you mean 'cpus'"),
        ('{"cores": [{"cpus": "0-x"}], "nodes": [{"cpus": "0"}]}', "Write it as in '0-3,8'"),
        ('{"cores": [{"cpus": [-1]}], "nodes": [{"cpus": "0"}]}', "not a list of CPUs"),
        ('{"cores": [{"cpus": [true]}], "nodes": [{"cpus": "1"}]}', "not a list of CPUs"),
    ],
)
def test_a_file_that_describes_no_machine_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(InvalidError, match=words):
        load(path)


def test_a_missing_description_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="scanflow topology --save FILE"):
        load(tmp_path / "nothing.json")
