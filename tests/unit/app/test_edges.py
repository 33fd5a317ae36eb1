"""``a >> [b, c] >> d`` and ``Dependency``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.edges import Chain
from tests.unit.app.app_builders import batch, script

a, b, c, d = (script(name) for name in "abcd")


def pairs(chain: Chain) -> list[tuple[str, str]]:
    return [(edge.dependee, edge.depender) for edge in chain]


@pytest.mark.parametrize(
    ("chain", "linked"),
    [
        (a >> [b, c] >> d, "ab ac bd cd"),
        ([a, b] >> c, "ac bc"),
        ((a, b) >> c, "ac bc"),
        ((a >> b) >> (c >> d), "ab bc cd"),
        (a >> [b >> c, d], "ab ad bc"),
    ],
)
def test_groups_and_chains_are_linked_and_no_node_is_changed(chain: Chain, linked: str) -> None:
    assert sorted(before + after for before, after in pairs(chain)) == linked.split()
    assert [a, b, c, d] == [script(name) for name in "abcd"]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_neighbouring_groups_are_linked_all_to_all_and_others_not_at_all(sizes: list[int]) -> None:
    groups = [[script(f"n{index}-{number}") for number in range(size)] for index, size in enumerate(sizes)]
    chain = Chain((), tuple(node.name for node in groups[0]), tuple(node.name for node in groups[0]))
    for group in groups[1:]:
        chain = chain >> group
    wanted = {
        (earlier.name, other.name) for left, right in itertools.pairwise(groups) for earlier in left for other in right
    }
    assert len(pairs(chain)) == len(wanted)
    assert set(pairs(chain)) == wanted


@pytest.mark.parametrize(
    "edges",
    [
        a >> b,
        [a >> b],
        (a >> b,),
        [sf.Dependency(dependee="a", depender="b")],
        [{"dependee": "a", "depender": "b"}],
        sf.Dependency(dependee="a", depender="b"),
    ],
)
def test_edges_may_be_given_in_several_ways(edges: Any) -> None:
    assert batch(a, b, edges=edges).parents == {"a": (), "b": ("a",)}


def test_an_edge_that_is_made_and_not_used_is_warned_of() -> None:
    def leave(chain: Chain) -> None:
        """Let go of it, as a line with nothing but ``a >> b`` does."""

    with pytest.warns(UserWarning, match=r"The edge a >> b was created but not used.*edges=a >> b"):
        leave(a >> [b, c])
