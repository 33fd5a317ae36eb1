"""The page of figures: what is set against what, and which part of the page a run replaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks.clients import rate_of
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Results, Section, interleave
from tests.benchmarks.report import block, table, with_blocks

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


def results(one: Benchmark) -> Results:
    samples: dict[str, list[Mapping[str, float]]] = {
        "Scanflow": [{"p50": 2.0}, {"p50": 4.0}, {"p50": 3.0}],
        "Scanflow, cold": [{"p50": 9.0}],
        "Other": [{"p50": 8.0}, {"p50": 4.0}, {"p50": 6.0}],
    }
    return Results(benchmark=one, samples=samples)


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
def test_a_bar_says_what_it_is_held_against(metric: dict[str, object], bar: str) -> None:
    assert f"| latency | {bar} |" in table(SECTION, [results(benchmark(**metric))])


def test_a_contender_that_failed_is_not_passed_over() -> None:
    def break_(folder: Path) -> Mapping[str, float]:
        raise NotMeasuredError("it broke")

    one = Benchmark(
        name="one", section=SECTION, metrics=benchmark().metrics, contenders={"Scanflow": break_}, how="asked"
    )
    said: list[str] = []
    found = interleave(one, ["Scanflow"], rounds=1, say=said.append)
    assert found.failures == {"Scanflow": "it broke"}
    assert "| latency | not measured |" in table(SECTION, [found])
    assert any("it broke" in line for line in said)


def test_a_run_of_one_group_leaves_the_rest_of_the_page_as_it_was() -> None:
    text = with_blocks("", {"work": "old work", "serving": "old serving"})
    new = with_blocks(text, {"serving": block("serving", [results(benchmark())], described="A machine.")})
    assert "old work" in new
    assert "old serving" not in new
    assert "- **one**, 3 rounds: asked." in new
    assert new.index("old work") < new.index("## Online inference")
    assert with_blocks(new, {}) == new


def test_workers_count_until_each_has_finished_its_last() -> None:
    assert rate_of({"a": [1.0, 2.0], "b": [0.5, 1.0, 1.5, 2.0]}) == pytest.approx(3.0)
    with pytest.raises(NotMeasuredError):
        rate_of({"a": [1.0], "b": []})
