"""All figures: their names, their experiments, and what the simulated ones say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scanflow.errors import NotFoundError, UsageError
from scanflow_client.cli.command_tree import app
from scanflow_research import figure_catalogue
from scanflow_research.figure_catalogue import EXPERIMENTS, load_catalogue, select_named
from scanflow_research.figure_study import ReproductionStudy

THESIS = (
    [f"fig3.{number}" for number in (29, *range(31, 41))]
    + [f"fig4.{number}" for number in range(2, 13)]
    + [f"fig5.{number}" for number in range(10, 16)]
    + [f"fig6.{number}" for number in range(4, 10)]
    + ["table3.6", "table6.3"]
)
PAPERS = [
    *(f"serverless-table{number}" for number in (1, 2, 3)),
    *("ingress-overhead", "ingress-balance", "ingress-scaling"),
    *("containers-table4", "containers-fig6", "containers-fig7", "containers-fig8"),
]


def test_every_figure_that_a_machine_can_speak_to_is_there_once() -> None:
    assert sorted(figure.name for figure in load_catalogue()) == sorted([*THESIS, *PAPERS])


def test_every_figure_is_measured_or_says_why_not() -> None:
    for figure in load_catalogue():
        if figure.untested:
            assert not figure.experiment
        else:
            assert figure.experiment in EXPERIMENTS
            assert any(not claim.untested for claim in figure.claims)
            assert figure.panels


def test_what_is_simulated_has_verdicts_within_seconds(tmp_path: Path) -> None:
    simulated = [
        figure for figure in load_catalogue() if figure.experiment and EXPERIMENTS[figure.experiment].simulated
    ]
    reproduction = ReproductionStudy(folder=tmp_path, experiments=EXPERIMENTS).run(simulated)
    assert len(simulated) == 9
    findings = [finding for result in reproduction.results for finding in result.findings]
    assert "cannot be tested here" not in {finding.verdict for finding in findings}
    assert all(result.simulated for result in reproduction.results)


def test_a_misspelt_figure_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"no figure 'fig6\.77'\. Did you mean 'fig6\.7'\?"):
        select_named(["fig6.77"])


def test_the_command_prints_claims_beside_what_was_measured(tmp_path: Path) -> None:
    words = ["reproduce", "table6.3", "--json", "--out", str(tmp_path)]
    (figure,) = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["figures"]
    assert figure["verdict"] == "holds"
    assert [claim["published"] for claim in figure["claims"]] == [0.996, 0.896, 48.8]
    assert (tmp_path / "reproduction.html").exists()
    printed = CliRunner().invoke(app, ["reproduce", "table6.3"], catch_exceptions=False).stdout
    assert "Kubeflow is like CM (2520 and 2529 s)" in printed


@pytest.mark.parametrize("words", [[], ["--all", "fig6.7"]])
def test_neither_and_both_of_names_and_all_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="Name figures, or give --all"):
        CliRunner().invoke(app, ["reproduce", *words], catch_exceptions=False)


@pytest.mark.parametrize(("vendor", "experiment"), [("AuthenticAMD", "allocation"), ("GenuineIntel", ""), ("", "")])
def test_a_figure_of_another_cpu_is_measured_only_there(
    vendor: str, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_catalogue, "read_cpu_field", lambda _name: vendor)
    (figure,) = (figure for figure in load_catalogue.__wrapped__() if figure.cpu)
    assert (figure.experiment, bool(figure.claims), figure.untested) == (
        experiment,
        bool(experiment),
        "" if experiment else "an AMD CPU is needed",
    )
