"""Experiments in a folder: interrupted and gone on with, failing, and on another machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scanflow.errors import StepFailedError, UsageError
from scanflow_research.experiment import Experiment, MeasureRound, Observe
from scanflow_research.figure import Claim, Figure, FigurePanel, Round
from scanflow_research.figure_study import ReproductionStudy
from scanflow_research.research_page import render_markdown, render_page, write_files

CLAIM = Claim(statement="b is better than a, by 30 %", metric="rate", arm="b", base="a", published=1.3)
FIGURE = Figure(
    name="fig1",
    source="Paper, Fig. 1",
    title="Rates",
    experiment="rates",
    claims=(CLAIM,),
    panels=(FigurePanel(metric="rate", label="requests/s"),),
)
ELSEWHERE = Figure(name="fig2", source="Paper, Fig. 2", title="Four nodes", untested="four nodes are needed")


@dataclass
class Rates:
    """An experiment that counts its rounds, and can be interrupted or fail in one."""

    interrupt_at: int | None = None
    fail_at: int | None = None
    problem: str | None = None
    numbers: list[int] = field(default_factory=list)
    closed: int = 0

    def experiment(self) -> Experiment:
        @contextmanager
        def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
            try:
                yield lambda number: self._measure(number, observe)
            finally:
                self.closed += 1

        return Experiment(
            name="rates",
            method="a and b by turns",
            rounds=3,
            round_s=10.0,
            find_problem=lambda: self.problem,
            open=open_rounds,
        )

    def _measure(self, number: int, observe: Observe) -> Round:
        observe("a")
        if number == self.interrupt_at:
            raise KeyboardInterrupt
        if number == self.fail_at:
            raise StepFailedError("b did not start.")
        self.numbers.append(number)
        return Round(arms={"a": {"rate": 10.0}, "b": {"rate": 13.0 + 0.01 * number}})


def study(folder: Path, rates: Rates, shown: list[str] | None = None) -> ReproductionStudy:
    lines = [] if shown is None else shown
    return ReproductionStudy(folder=folder, experiments={"rates": rates.experiment()}, observe=lines.append)


def test_an_interrupt_ends_the_experiment_and_loses_no_round(tmp_path: Path) -> None:
    rates = Rates(interrupt_at=2)
    interrupted = study(tmp_path, rates).run([FIGURE, ELSEWHERE])
    assert interrupted.interrupted
    assert [result.verdict for result in interrupted.results] == ["cannot be tested here"] * 2
    assert "interrupted" in interrupted.results[0].reason
    assert (rates.numbers, rates.closed) == ([0, 1], 1)

    again = Rates()
    whole = study(tmp_path, again).run([FIGURE, ELSEWHERE])
    assert again.numbers == [2]
    assert [result.verdict for result in whole.results] == ["holds", "cannot be tested here"]
    assert study(tmp_path, Rates(fail_at=0)).run([FIGURE]).results[0].verdict == "holds"  # nothing is left to measure


def test_progress_says_what_is_measured_and_how_long_it_takes(tmp_path: Path) -> None:
    shown: list[str] = []
    study(tmp_path, Rates(), shown).run([FIGURE])
    assert "rates, round 1 of 3: a; about 30 s left" in shown


def test_an_experiment_that_fails_leaves_the_others_their_verdicts(tmp_path: Path) -> None:
    reproduction = study(tmp_path, Rates(fail_at=1)).run([FIGURE, ELSEWHERE])
    assert reproduction.results[0].reason == "The experiment failed: b did not start."
    assert not reproduction.interrupted


def test_what_a_machine_lacks_is_the_reason(tmp_path: Path) -> None:
    rates = Rates(problem="hpcc is not installed: apt-get install hpcc")
    assert study(tmp_path, rates).run([FIGURE]).results[0].reason == rates.problem
    assert rates.numbers == []


def test_measurements_of_another_machine_are_not_gone_on_with(tmp_path: Path) -> None:
    study(tmp_path, Rates()).run([FIGURE])
    file = tmp_path / "machine.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "another"}))
    with pytest.raises(UsageError, match=r"has measurements of another .* Name another folder: --out"):
        study(tmp_path, Rates()).run([FIGURE])


def test_the_page_opens_without_a_network_and_has_verdicts_and_plots(tmp_path: Path) -> None:
    reproduction = study(tmp_path, Rates()).run([FIGURE, ELSEWHERE])
    page, text = render_page(reproduction), render_markdown(reproduction)
    addresses = page.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in addresses
    assert "https://" not in addresses
    assert "<script" not in page
    for words in ("✓ holds", "four nodes are needed", "b is better than a, by 30 %", "1.3×", "1.30× ("):
        assert words in page
        assert words in text
    assert page.count("<svg") == 1
    assert [file.name for file in write_files(reproduction, tmp_path)] == ["reproduction.html", "reproduction.md"]
    assert (tmp_path / "fig1.svg").exists()
