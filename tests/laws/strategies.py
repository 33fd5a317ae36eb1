"""Hypothesis' programs for the law of workflows."""

from __future__ import annotations

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.laws.operations import FUNCTIONS, VALUES
from tests.laws.workflow_programs import MODES, Call, Program, may_be_mapped

SEEDED = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def programs(draw: st.DrawFn, max_calls: int = 4, modes: tuple[str, ...] = tuple(sorted(MODES))) -> Program:
    values = tuple(draw(st.lists(st.integers(0, len(VALUES) - 1), min_size=1, max_size=2)))
    program = Program(values, (), draw(st.booleans()))
    for _ in range(draw(st.integers(1, max_calls))):
        results = program.compute()
        mode = draw(st.sampled_from(modes))
        place = draw(st.integers(0, len(results) - 1))
        if draw(st.booleans()) and may_be_mapped(results[place]):
            call = Call(draw(st.sampled_from(sorted(FUNCTIONS))), (place,), mode, maps=True)
        elif draw(st.integers(0, 3)) == 0:
            other = draw(st.integers(0, len(results) - 1))
            call = Call(draw(st.sampled_from(["listed", "pair"])), (place, other), mode)
        else:
            call = Call(draw(st.sampled_from(sorted(FUNCTIONS))), (place,), mode)
        program = Program(values, (*program.calls, call), program.is_literal)
    return program


def draw_programs(count: int, seed_number: int, strategy: st.SearchStrategy[Program] | None = None) -> list[Program]:
    """Return so many programs, the same ones for a seed each time, for what runs many at once."""
    drawn: list[Program] = []

    @seed(seed_number)
    @settings(SEEDED, derandomize=False, max_examples=count + 1)
    @given(program=programs() if strategy is None else strategy)
    def collect(program: Program) -> None:
        drawn.append(program)

    collect()
    return drawn[1 : count + 1]  # the first one is the simplest that there is
