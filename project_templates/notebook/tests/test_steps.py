"""A step is a function: a test calls it. The last test runs the cells of the notebook, one after the other."""

import json
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from app import load, measure, smooth

NOTEBOOK = Path(__file__).parents[1] / "notebook.ipynb"


def test_smoothing_takes_the_mean_of_each_window():
    assert smooth([1.0, 2.0, 3.0, 4.0], window=2) == [1.5, 2.5, 3.5]


def test_a_week_smooths_the_weekly_pattern_away():
    measured = measure(smooth(load(rows=70)))
    assert round(measured["growth"], 6) == 6.3


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path))
    shell = InteractiveShell()
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
    assert shell.user_ns["run"].state == "succeeded"
    assert len(shell.user_ns["windows"]) == 3
