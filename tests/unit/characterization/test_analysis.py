"""Saturation, the memory knee and what follows from them, on figures of known programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.characterization.analysis import (
    MAX_LIMITS,
    PRECISION,
    MemoryKnee,
    choose_next_limit,
    classify_saturation,
    find_knee,
    recommend,
)
from scanflow.characterization.measurement import ProgramRun

MIB = 2**20


def ran(*, seconds: float = 10.0, cpu_s: float = 10.0) -> ProgramRun:
    return ProgramRun(
        outcome="succeeded",
        seconds=seconds,
        cpu_s=cpu_s,
        peak_bytes=100 * MIB,
        voluntary_switches=1,
        involuntary_switches=2,
        minor_faults=3,
        major_faults=0,
        read_blocks=0,
        written_blocks=0,
    )


@pytest.mark.parametrize(
    ("speeds", "kind", "cores"),
    [
        ({1: 1.0, 2: 1.9, 4: 3.6}, "linear", 4),
        ({1: 1.0, 2: 1.4, 4: 1.8}, "sublinear", 4),
        ({1: 1.0, 2: 1.02, 4: 0.99}, "flat", 1),
        ({1: 1.0, 2: 1.9, 3: 2.9, 4: 3.0}, "flat", 3),  # Wang et al., 5.1: more than three cores give no advantage
        ({1: 1.0, 2: 1.8, 4: 1.1}, "collapse", 2),
        ({1: 1.0}, "linear", 1),
    ],
)
def test_how_speed_follows_cores(speeds: dict[int, float], kind: str, cores: int) -> None:
    classification = classify_saturation(
        {count: [10 / speed, 10 / speed * 1.5, 10 / speed * 0.9] for count, speed in speeds.items()}
    )
    assert (classification.kind, classification.enough) == (kind, cores)
    assert classification.speed == pytest.approx(speeds)


@pytest.mark.parametrize("seconds", [{}, {1: [1.0], 2: []}])
def test_without_runs_nothing_is_said(seconds: dict[int, list[float]]) -> None:
    with pytest.raises(ValueError, match="needs a run"):
        classify_saturation(seconds)


@given(peak=st.integers(2 * MIB, 2**36), share=st.floats(0.05, 1.4))
def test_the_knee_is_found_wherever_it_is(peak: int, share: float) -> None:
    needs = int(peak * share)
    tried: dict[int, bool] = {}
    while (limit := choose_next_limit(peak, tried)) is not None:
        assert limit not in tried
        tried[limit] = limit >= needs
    assert len(tried) <= MAX_LIMITS
    knee = find_knee(tried)
    assert knee is not None
    assert knee.too_few < needs <= knee.enough
    assert knee.enough <= PRECISION**2 * needs + 2 * MIB + peak / 40


def test_a_program_that_never_succeeds_has_no_knee() -> None:
    assert find_knee({100: False, 200: False}) is None
    assert choose_next_limit(100 * MIB, dict.fromkeys(range(MAX_LIMITS), False)) is None


def test_what_is_recommended_is_what_is_used_with_something_to_spare() -> None:
    four = classify_saturation({1: [10.0], 2: [5.0], 4: [2.6]})
    recommendation = recommend(four, [ran(seconds=2.6, cpu_s=10.0)], MemoryKnee(enough=100 * MIB, too_few=95 * MIB))
    assert str(recommendation) == 'sf.Resources(cpu=4, memory="128Mi")'
    waits = recommend(classify_saturation({1: [10.0], 2: [10.0]}), [ran(cpu_s=2.33)], None)
    assert str(waits) == 'sf.Resources(cpu=0.3, memory="128Mi")'
