"""A search on real services, from the command line: which of them win, the machine's other work decides, and is not
asked here; what serves is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core is cut in one way only"),
]

APP = """
import scanflow as sf

work = sf.Service(name="work", implementation="work.py:Work", resources=sf.Resources(cpu=2))
app = sf.Application(
    name="shop", workflows=[sf.Workflow(name="serve", type="online", nodes=[work])], tracker=sf.Tracker()
)
"""
WORK = """
import numpy as np

class Work:
    def predict(self, X):
        end = 40_000 + int(X.sum())  # in Python alone, of which an instance does one thing at a time
        return np.asarray([sum(range(end)) % 7.0])
"""
BUDGET = ("--data", "[[1.0, 2.0]]", "--cores", "2", "--seconds", "0.5", "--trials", "1", "--minutes", "10", "-c", "4")


def test_a_search_tries_real_services_leaves_none_and_goes_on_from_its_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "work.py").write_text(WORK)
    found = cli("tune", "app.py:serve", *BUDGET, "--out", "found", timeout_s=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Kept as the run tune-serve" in found.stdout
    told = json.loads((tmp_path / "found" / "tuning.json").read_text())
    assert [one["candidate"]["instances"] for one in told["trials"]] == [2]
    assert all(one["rate"] > 0 for trial in told["trials"] for one in trial["default"] + trial["measured"])
    assert (tmp_path / "found" / "tuning.svg").read_text().startswith("<svg")
    assert "Nothing is deployed" in cli("services").stdout

    assert cli("deploy", "app.py:serve", "--instances", "1", "--cores", "1").returncode == 0
    before = json.loads(cli("services", "serve", "--json").stdout)
    again = cli("tune", "app.py:serve", *BUDGET, "--out", "other", "--no-log", "--json", timeout_s=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads(again.stdout)["default"] == {**told["default"], "cores": 1.0}
    after = json.loads(cli("services", "serve", "--json").stdout)
    assert [after[name] for name in ("generation", "shape")] == [before[name] for name in ("generation", "shape")]
    assert [one["pid"] for one in after["instances"]] == [one["pid"] for one in before["instances"]]
