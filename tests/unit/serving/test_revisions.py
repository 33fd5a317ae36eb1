"""Revisions side by side: shares, what is loaded once, and the switch from one set to the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import UsageError
from scanflow.instance_messages import DesiredInstanceState, Node, Revision
from scanflow_serving.revisions import WeightedChooser
from tests.unit.serving.serving_harness import (
    Instance,
    instance,
    make_desired_state,
    node,
    tensor,
    wait_in_loop,
    write_class,
)

ADDER = """
import threading

made = []
gate = threading.Event()
inside = threading.Event()


class Adder:
    def __init__(self, by=1, hold=False):
        made.append(by)
        self.by, self.hold = by, hold

    def predict(self, X):
        if self.hold:
            inside.set()
            assert gate.wait(600)
        return X + self.by


class Poisoned:
    def load(self):
        raise OSError("weights.h5 is truncated")

    def predict(self, X):
        return X
"""


class Share:
    def __init__(self, id: str, weight: float) -> None:
        self.id, self.weight = id, weight


weights = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


@given(weights, st.integers(1, 400))
def test_each_gets_its_share_whenever_one_counts(parts: list[int], count: int) -> None:
    total = sum(parts)
    chooser = WeightedChooser([Share(f"r{place}", part / total) for place, part in enumerate(parts)])
    picked = [chooser.pick().id for _ in range(count)]
    slack = 1 if len(parts) <= 2 else len(parts)
    for place, part in enumerate(parts):
        assert abs(picked.count(f"r{place}") - count * part / total) <= slack + 1e-6


def test_a_change_of_weights_does_not_start_over() -> None:
    chooser: WeightedChooser[Share] | None = None
    picked = []
    for _ in range(20):  # a canary of 5 % under weights that are set again all the time
        chooser = WeightedChooser([Share("current", 0.95), Share("canary", 0.05)], chooser)
        picked += [chooser.pick().id for _ in range(10)]
    assert abs(picked.count("canary") - 10) <= 1


def adder(path: Path, by: int = 1, **changes: Any) -> Node:
    return node("add", path, "Adder", parameters={"by": by, **changes})


def revision(id: str, *nodes: Node, **changes: Any) -> Revision:
    return Revision(id=id, nodes=nodes, **changes)


def get_loaded(here: Instance) -> dict[str, Any]:
    return here.application.revisions.loaded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_class(tmp_path, ADDER)


def module(here: Instance) -> Any:
    import sys

    return sys.modules["user"]


async def test_a_canary_gets_its_share(path: Path) -> None:
    both = make_desired_state(
        revision("old", adder(path, 1), weight=0.9), revision("new", adder(path, 100), weight=0.1)
    )
    async with instance(path.parent, apply=both) as here:
        answers = [await here.infer([0]) for _ in range(100)]
        assert [answer.outputs[0][0] for answer in answers].count(100) == 10
        assert {answer.headers["x-scanflow-revision"] for answer in answers} == {"old", "new"}
        assert (await here.ask("/v2/models/wf/versions/new/infer", tensor([0]))).outputs == [[100]]


async def test_what_does_not_change_is_loaded_once(path: Path) -> None:
    first = node("first", path, "Adder", parameters={"by": 1})
    second = [node("second", path, "Adder", parents=("first",), parameters={"by": by}) for by in (10, 20)]
    async with instance(path.parent, apply=make_desired_state(revision("r1", first, second[0]))) as here:
        assert (await here.infer([0])).outputs == [[11]]
        await here.application.apply(make_desired_state(revision("r2", first, second[1]), generation=2))
        assert (await here.infer([0])).outputs == [[21]]
        assert module(here).made == [1, 10, 20]


async def test_a_swap_loses_no_request_and_unloads_after_the_last(path: Path) -> None:
    async with instance(path.parent, apply=make_desired_state(revision("old", adder(path, 1, hold=True)))) as here:
        begun = here.infer([0])
        await wait_in_loop(module(here).inside.is_set)
        await here.application.apply(make_desired_state(revision("new", adder(path, 2)), generation=2))
        after = here.infer([0])
        assert [retiring.id for retiring in here.application.revisions.retiring] == ["old"]
        assert here.application.describe_state()["revisions"][-1]["id"] == "old"
        module(here).gate.set()
        assert (await begun).outputs == [[1]]
        assert (await begun).headers["x-scanflow-revision"] == "old"
        assert (await after).outputs == [[2]]
        assert here.application.revisions.retiring == []
        assert list(get_loaded(here)) == ["new"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda path: [revision("new", node("p", path, "Poisoned"))], "weights.h5 is truncated"),
        (lambda path: [revision("new", adder(path, 2), weight=0)], "weight 0"),
        (lambda path: [revision("new", adder(path, 2), shadow=True)], "shadows"),
        (lambda path: [revision("a", adder(path, 2)), revision("a", adder(path, 3))], "same id"),
        (lambda path: [revision("new")], "no nodes"),
        (lambda path: [revision("new", node("a", path, "Adder", parents=("b",)))], "which is not a node"),
        (lambda path: [revision("new", node("a", path.with_name("gone.py"), "Adder"))], ""),
    ],
)
async def test_what_cannot_be_served_changes_nothing(path: Path, bad: Any, words: str) -> None:
    async with instance(path.parent, apply=make_desired_state(revision("old", adder(path, 1)))) as here:
        with pytest.raises(UsageError) as caught:
            await here.application.apply(make_desired_state(*bad(path), generation=2))
        assert words in str(caught.value)
        assert here.application.ready()
        assert here.application.describe_state()["generation"] == 1
        assert (await here.infer([0])).outputs == [[1]]


async def test_an_older_wish_is_no_more_wanted(path: Path) -> None:
    async with instance(path.parent, apply=make_desired_state(revision("new", adder(path, 2)), generation=5)) as here:
        await here.application.apply(make_desired_state(revision("old", adder(path, 1)), generation=4))
        assert list(get_loaded(here)) == ["new"]


async def test_wishes_that_come_together_are_done_one_after_the_other(path: Path) -> None:
    async with instance(path.parent, apply=make_desired_state(revision("r0", adder(path, 0)))) as here:
        wishes = [
            here.application.apply(make_desired_state(revision(f"r{place}", adder(path, place)), generation=place + 1))
            for place in range(1, 5)
        ]
        await asyncio.gather(*wishes)
        assert (await here.infer([0])).outputs == [[4]]
        assert here.application.describe_state()["generation"] == 5


async def test_requests_never_fail_while_revisions_come_and_go(path: Path) -> None:
    async with instance(path.parent, apply=make_desired_state(revision("r0", adder(path, 0)))) as here:
        stop, seen = asyncio.Event(), []

        async def caller() -> None:
            while not stop.is_set():
                seen.append((await here.infer([0])).status)

        def make_progress_check(before: int) -> Callable[[], bool]:
            return lambda: len(seen) > before + 4

        callers = [asyncio.ensure_future(caller()) for _ in range(4)]
        for place in range(1, 12):
            current = revision(f"r{place}", adder(path, place), weight=0.5)
            canary = revision(f"c{place}", adder(path, -place), weight=0.5)
            before = len(seen)
            await here.application.apply(make_desired_state(current, canary, generation=place + 1))
            await wait_in_loop(make_progress_check(before))
        stop.set()
        await asyncio.gather(*callers)
        assert set(seen) == {200}
        assert here.application.revisions.retiring == []


def make_shadow_state(path: Path, by: int, *, shadow: bool = True, generation: int = 1) -> DesiredInstanceState:
    return make_desired_state(
        revision("live", adder(path, 1), weight=1.0 if shadow else 0.5),
        revision("next", adder(path, by), weight=0.5, shadow=shadow),
        generation=generation,
    )


@pytest.mark.parametrize(("by", "outcome"), [(1, "equal"), (2, "different")])
async def test_a_shadow_is_compared_and_never_answers(path: Path, by: int, outcome: str) -> None:
    async with instance(path.parent, apply=make_shadow_state(path, by)) as here:
        for _ in range(10):
            assert (await here.infer([0])).outputs == [[1]]
            await wait_in_loop(lambda: get_loaded(here)["next"].in_flight == 0)
        assert get_loaded(here)["next"].compared[outcome] == 10
        (shadow_revision,) = [
            revision for revision in here.application.describe_state()["revisions"] if revision["shadow"]
        ]
        assert shadow_revision["compared"][outcome] == 10
        figures = (await here.ask("/metrics")).body.decode()
        assert f'scanflow_shadow_total{{outcome="{outcome}",revision="next",service="wf"}} 10.0' in figures


async def test_a_shadow_that_hangs_or_fails_delays_nobody(path: Path) -> None:
    both = make_desired_state(
        revision("live", adder(path, 1)), revision("next", adder(path, 1, hold=True), shadow=True)
    )
    async with instance(path.parent, apply=both) as here:
        answers = [await here.infer([0]) for _ in range(40)]
        assert {answer.status for answer in answers} == {200}
        assert get_loaded(here)["next"].compared["dropped"] == 40 - 16
        module(here).gate.set()
        await wait_in_loop(lambda: get_loaded(here)["next"].in_flight == 0)
        assert get_loaded(here)["next"].compared["equal"] == 16


async def test_a_shadow_sees_what_the_caller_sent_not_what_was_made_of_it(tmp_path: Path) -> None:
    path = write_class(tmp_path, "class Model:\n    def predict(self, X):\n        X *= 2\n        return X + 0\n")

    both = make_desired_state(
        revision("live", node("m", path, "Model")), revision("next", node("m", path, "Model"), shadow=True)
    )
    async with instance(tmp_path, apply=both) as here:
        assert (await here.infer([3])).outputs == [[6]]
        await wait_in_loop(lambda: get_loaded(here)["next"].in_flight == 0)
        assert get_loaded(here)["next"].compared["equal"] == 1


async def test_a_shadow_shares_no_component_and_becomes_one_that_answers(path: Path) -> None:
    async with instance(path.parent, apply=make_shadow_state(path, 1)) as here:
        assert module(here).made == [1, 1]
        component = get_loaded(here)["next"].components["add"]
        await here.application.apply(make_shadow_state(path, 1, shadow=False, generation=2))
        assert get_loaded(here)["next"].components["add"] is component
        answers = [await here.infer([0]) for _ in range(4)]
        assert [answer.headers["x-scanflow-revision"] for answer in answers].count("next") == 2
        await here.application.apply(make_shadow_state(path, 1, generation=3))
        assert get_loaded(here)["next"].components["add"] is not component


async def test_answers_of_seldon_are_shown_to_a_shadow_too(path: Path) -> None:
    async with instance(path.parent, apply=make_shadow_state(path, 2)) as here:
        body = json.dumps({"data": {"ndarray": [[1.5]]}}).encode()
        assert (await here.ask("/api/v1.0/predictions", body)).json["data"]["ndarray"] == [[2.5]]
        await wait_in_loop(lambda: get_loaded(here)["next"].in_flight == 0)
        assert get_loaded(here)["next"].compared["different"] == 1


async def test_loading_may_take_long_and_holds_nobody_up(tmp_path: Path) -> None:
    path = write_class(
        tmp_path,
        """
        import threading
        gate = threading.Event()

        class Quick:
            def predict(self, X):
                return X

        class Slow(Quick):
            def load(self):
                assert gate.wait(600)
        """,
    )

    async with instance(tmp_path, node("m", path, "Quick")) as here:
        loading = asyncio.ensure_future(
            here.application.apply(make_desired_state(revision("r2", node("m", path, "Slow")), generation=2))
        )
        for _ in range(5):
            assert (await here.infer([1])).headers["x-scanflow-revision"] == "r1"
        module(here).gate.set()
        await loading
        assert (await here.infer([1])).headers["x-scanflow-revision"] == "r2"
