"""What an installed package adds is found by its name: here one that lies in a folder on the path, as pip leaves it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import scanflow as sf
from scanflow.drift.detectors import catalogue
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.plugins import Group, list_plugins, load_plugin
from scanflow_agents.templates import load_declared
from scanflow_client.cli.command_tree import app

TOY = '''
import json
from dataclasses import dataclass
import numpy as np
import scanflow as sf
from scanflow.agent import Strategy, primitives as do, sensor
from scanflow.drift.detectors import detector_storage
from scanflow.drift.detectors.detector_port import Scores

@dataclass(frozen=True)
class Mean:
    """A batch has drifted when its mean is further off than ``far``."""
    far: float = 1.0

    def fit(self, reference):
        return FittedMean(self.far, float(reference.mean()))

    @staticmethod
    def load(folder):
        options, _ = detector_storage.read(folder)
        return FittedMean(options["far"], options["mean"])

@dataclass(frozen=True)
class FittedMean:
    far: float
    mean: float

    def score(self, batch):
        values = np.abs(batch - self.mean).reshape(len(batch), -1).mean(axis=1)
        return Scores(values=values, outlier_threshold=self.far, statistic=float(values.mean()), threshold=self.far,
                      p_value=None)

    def save(self, folder):
        detector_storage.write(folder, "mean", {"far": self.far, "mean": self.mean}, {})

def weather(days: int = 1):
    """Say what the weather will be."""
    print(f"{days} days of rain")

def night_watch(app, agent):
    @sensor(sf.every(hours=1))
    def is_night():
        return True

    Strategy(name="train_at_night", when=is_night, then=do.run_workflow(agent.parameters["workflow"]))
'''
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(package: str, group: Group, *entries: str) -> None:
        site = tmp_path / package
        info = site / f"{package}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text("\n".join([f"[scanflow.{group}]", *entries, ""]))
        (site / f"{package}_code.py").write_text(TOY)
        monkeypatch.syspath_prepend(str(site))

    return install


def test_a_detector_of_another_package_is_made_fitted_saved_and_read(install: Install, tmp_path: Path) -> None:
    install("toydetector", "detectors", "mean = toydetector_code:Mean")
    generator = np.random.default_rng(0)
    fitted = catalogue.make("mean", generator=generator, options={"far": 0.5}).fit(np.zeros((30, 2)))
    fitted.save(tmp_path / "kept")
    assert "mean" in catalogue.list_detectors()
    assert [catalogue.load(tmp_path / "kept").score(np.full((9, 2), at)).drifted for at in (0.4, 0.6)] == [False, True]


def test_a_template_of_another_package_is_hosted_like_ours(install: Install) -> None:
    install("toytemplate", "templates", "night-watch = toytemplate_code:night_watch")
    agent = sf.Agent(name="night", template="night-watch", parameters={"workflow": "training"})
    declared = load_declared(sf.Application(name="shop", team="web", agents=[agent]), agent)
    assert [(strategy.name, strategy.sensor) for strategy in declared.strategies] == [("train_at_night", "is_night")]


def test_a_name_that_is_not_installed_is_reported_with_those_that_are(install: Install) -> None:
    install("toytemplate", "templates", "night-watch = toytemplate_code:night_watch")
    with pytest.raises(
        InvalidError, match=r"no template 'owl'.*checker, executor, night-watch, planner, stream, tracker"
    ):
        sf.Agent(name="night", template="owl")
    with pytest.raises(NotFoundError, match=r"no detector 'k5'.*Installed: .*, table\..*group 'scanflow\.detectors'"):
        catalogue.make("k5", generator=np.random.default_rng(0))


def test_two_packages_of_one_name_and_one_that_is_broken_are_named(install: Install) -> None:
    install("one", "detectors", "mean = one_code:Mean")
    install("two", "detectors", "mean = two_code:Mean", "gone = two_code:Nothing")
    with pytest.raises(UsageError, match=r"detector 'mean' is offered by one 2\.0 and two 2\.0"):
        load_plugin("detectors", "mean")
    with pytest.raises(UsageError, match=r"'gone' of two 2\.0 \(two_code:Nothing\) cannot be imported"):
        load_plugin("detectors", "gone")


def test_commands_of_other_packages_are_listed_and_run_and_a_broken_one_breaks_no_other(install: Install) -> None:
    install(
        "rain", "commands", "weather = rain_code:weather", "mpi.weather = rain_code:weather", "gone = rain_code:gone"
    )
    run = partial(CliRunner().invoke, app)
    listed = run(["--help"]).output
    assert re.search(r"reproduce .*Measure figures.*weather .*Say what the weather will be\.", listed, re.DOTALL)
    assert "The command 'gone' of rain 2.0" in listed
    assert "mpi.weather" not in listed
    assert run(["weather", "--days", "3"]).output == run(["mpi", "weather", "--days", "3"]).output == "3 days of rain\n"
    assert isinstance(run(["gone"]).exception, UsageError)
    assert "No such command 'sun'" in run(["sun"]).output


@pytest.mark.parametrize("group", ["backends", "commands", "detectors", "templates"])
def test_all_that_ships_can_be_loaded(group: Group) -> None:
    assert all(callable(load_plugin(group, name)) for name in list_plugins(group))
