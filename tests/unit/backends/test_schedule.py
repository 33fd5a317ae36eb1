from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.step_schedule import Budget, Share, StepProgress


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    size = draw(st.integers(1, 12))
    names = [f"n{index}" for index in range(size)]
    return {
        name: tuple(draw(st.lists(st.sampled_from(names[:index]), unique=True))) if index else ()
        for index, name in enumerate(names)
    }


@given(graphs(), st.randoms(use_true_random=False))
def test_every_step_becomes_ready_once_and_only_after_all_it_waits_for(
    parents: dict[str, tuple[str, ...]], rng: object
) -> None:
    progress = StepProgress(parents)
    ended: list[str] = []
    running: list[str] = []
    while not progress.finished:
        while (step := progress.take_next_ready()) is not None:
            assert set(parents[step]) <= set(ended)
            running.append(step)
        step = running.pop(rng.randrange(len(running)))  # type: ignore[attr-defined]
        ended.append(step)
        progress.end(step, "ran")
    assert sorted(ended) == sorted(parents)


@given(graphs(), st.sets(st.integers(0, 11)))
def test_a_step_is_skipped_only_if_all_it_waited_for_was(parents: dict[str, tuple[str, ...]], skip: set[int]) -> None:
    progress = StepProgress(parents)
    skipped: set[str] = set()
    while (step := progress.take_next_ready()) is not None:
        forced = progress.should_skip(step)
        assert forced == (bool(parents[step]) and set(parents[step]) <= skipped)
        if forced or int(step[1:]) in skip:
            skipped.add(step)
            progress.end(step, "skipped")
        else:
            progress.end(step, "ran")
    assert progress.finished


@given(st.lists(st.tuples(st.floats(0.1, 8), st.integers(0, 8)), max_size=20))
def test_a_budget_is_never_overdrawn_but_by_one_that_runs_alone(asked: list[tuple[float, int]]) -> None:
    budget = Budget(4, 4)
    held: list[Share] = []
    for cores, memory in asked:
        share = Share(cores, memory)
        if budget.take(share):
            held.append(share)
            fits = sum(grant.cores for grant in held) <= 4 + 1e-6 and sum(grant.memory_bytes for grant in held) <= 4
            assert fits or len(held) == 1
        elif held:
            budget.release(held.pop(0))


def test_a_step_larger_than_the_machine_runs_alone_rather_than_never() -> None:
    budget = Budget(2, 100)
    assert budget.take(Share(1))
    assert not budget.take(Share(16))
    budget.release(Share(1))
    assert budget.take(Share(16))
    assert not budget.take(Share(0.5))
