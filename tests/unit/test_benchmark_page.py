"""The page of figures: what is set against what, and which part of the page a run replaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Results, Section, interleave
from tests.benchmarks.report import table

SECTION = Section(group="serving", title="What it costs", columns=("Scanflow", "Other"))


def benchmark(**metric: object) -> Benchmark:
    def never(folder: Path) -> Mapping[str, float]:
        raise AssertionError(folder)

    return Benchmark(
        name="one",
        section=SECTION,
        metrics=[Metric(**{"key": "p50", "what": "latency", "unit": "ms", **metric})],  # type: ignore[arg-type]
        contenders={"Scanflow": never, "Scanflow, cold": never, "Other": never},
        how="asked",
    )


def results(benchmark: Benchmark) -> Results:
    samples: dict[str, list[Mapping[str, float]]] = {
        "Scanflow": [{"p50": 2.0}, {"p50": 4.0}, {"p50": 3.0}],
        "Scanflow, cold": [{"p50": 9.0}],
        "Other": [{"p50": 8.0}, {"p50": 4.0}, {"p50": 6.0}],
    }
    return Results(benchmark=benchmark, samples=samples)


def test_the_others_are_set_against_the_first_column_round_by_round() -> None:
    rows = table(SECTION, [results(benchmark())]).splitlines()
    assert rows[0] == "| what | Scanflow | Other |"
    assert rows[2] == "| latency | 3 ms (2 to 4) | 6 ms (4 to 8), 2× |"
    assert rows[3] == "| latency, cold | 9 ms |  |"


@pytest.mark.parametrize(
    ("metric", "bar"),
    [
        ({"bar": 5}, "≤ 5 ms"),
        ({"bar": 5, "at_least": True}, "≥ 5 ms"),
        ({"bar": 1.3, "against": "Other"}, "≤ 1.3× Other; it is 0.50×"),
    ],
)
def test_a_bar_says_what_it_is_compared_with(metric: dict[str, object], bar: str) -> None:
    assert f"| latency | {bar} |" in table(SECTION, [results(benchmark(**metric))])


def test_a_contender_that_failed_is_not_passed_over() -> None:
    def break_(folder: Path) -> Mapping[str, float]:
        raise NotMeasuredError("it broke")

    single = Benchmark(
        name="one", section=SECTION, metrics=benchmark().metrics, contenders={"Scanflow": break_}, how="asked"
    )
    messages: list[str] = []
    results = interleave(single, ["Scanflow"], rounds=1, say=messages.append)
    assert results.failures == {"Scanflow": "it broke"}
    assert "| latency | not measured |" in table(SECTION, [results])
    assert any("it broke" in line for line in messages)
