"""The tabular tutorial where people label, and no function does: a better model is put to use, and they are left alone.

With ``SCANFLOW_SCIENCE=long`` it is done with ten draws of customers, for the figures of docs/science.md.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.deployer.remote_home import read_up_state
from scanflow.modules import load_module
from tests.conftest import Cli
from tests.integration.test_tutorial_tabular import TUTORIAL
from tests.waiting import patient

SEEDS = 10 if os.environ.get("SCANFLOW_SCIENCE") == "long" else 1
MAX_DURATION_S = patient(400)
ENOUGH = 400
"""So many samples people are asked to label at most: the tutorial's budget twice."""

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(600 + 600 * SEEDS),
    pytest.mark.skipif(
        find_spec("sklearn") is None or find_spec("mlflow") is None, reason="scikit-learn or mlflow is not installed"
    ),
]


@dataclass
class Bank:
    """Customers who are sent to the service, and people who label whatever they are asked for, by the truth."""

    client: sf.Client
    folder: Path
    seed: int
    labelled: int = 0
    sent: int = 0

    @property
    def tutorial(self) -> Any:
        return load_module(self.folder / "app.py")

    def send(self, ages: tuple[int, int]) -> None:
        self.sent += 1
        x, _ = self.tutorial.people(600, ages, 1000 * self.seed + self.sent)
        for at in range(0, len(x), 100):
            self.client.predict("serve", {name: x[name].to_numpy()[at : at + 100] for name in x})

    def label(self) -> None:
        """Label what waits."""
        import pandas as pd

        wanted = self.client.labels(limit=None)
        if wanted:
            truth = self.tutorial.repays(pd.DataFrame([sample["row"] for sample in wanted]))
            self.client.give_labels({sample["id"]: int(y) for sample, y in zip(wanted, truth, strict=True)})
            self.labelled += len(wanted)

    def go_on(self, until: str, count: int = 1) -> None:
        """Send old customers, a window after the other as each was looked at, until so many events have come."""
        after = self.client.newest_event()
        self.send((50, 90))
        types = ("run.succeeded", "drift.*", "model.*")
        for event in self.client.events_after(after, type=types, timeout_s=MAX_DURATION_S):
            self.label()
            count -= event.type == until
            if count == 0:
                return
            if event.data.get("workflow") == "detector":
                self.send((50, 90))
        history = [(entry.type, entry.data) for entry in self.client.events(type=types[1:])]
        raise AssertionError(f"In vain waited for {until!r}. Labelled: {self.labelled}. Told: {history}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_people_are_consulted_for_what_it_takes_and_no_more(cli: Cli, home: Path, tmp_path: Path, seed: int) -> None:
    folder = shutil.copytree(TUTORIAL, tmp_path / "tabular")
    app = folder / "app.py"
    text, labeller = app.read_text(encoding="utf-8"), ', "labeller": "app.py:ground_truth"'
    assert labeller in text
    app.write_text(text.replace(labeller, "").replace("seed=0)", f"seed={seed})"), encoding="utf-8")
    try:
        for words in (("up",), ("run", "app.py:training"), ("deploy", "app.py:serve"), ("agents", "--start", "app.py")):
            done = cli(*words, cwd=folder, timeout_s=MAX_DURATION_S)
            assert done.returncode == 0, done.stdout + done.stderr
        up = read_up_state(home)
        assert up is not None
        bank = Bank(client=sf.Client(up.server.url), folder=folder, seed=seed)
        bank.go_on("model.promoted")
        assert 0 < bank.labelled <= ENOUGH
        before = bank.labelled
        bank.go_on("drift.none", 3)
        assert bank.labelled == before, "they are asked for what the model has learnt"
        print(f"seed {seed}: {bank.labelled} labels, {bank.sent} windows")
    finally:
        assert cli("down", timeout_s=MAX_DURATION_S).returncode == 0
