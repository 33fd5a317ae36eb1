"""The registry asked through a process of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
import pytest

from scanflow.errors import InternalError, NotFoundError
from scanflow.knowledge import open_knowledge, registry_subprocess
from scanflow.knowledge.model_cache import ModelCache
from scanflow.knowledge.registry_subprocess import RegistrySubprocess
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the warnings are MLflow's


@pytest.fixture
def models(home: Path) -> RegistrySubprocess:
    return RegistrySubprocess(home, None)


def test_it_answers_as_one_in_this_process_does(models: RegistrySubprocess, home: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_text("flavors: {}")
    open_knowledge(home).register_model("cnn", tmp_path / "model", app="shop", team="data")
    here = ModelCache(home / "models", lambda: open_knowledge(home))
    assert models.fetch("models:/cnn/latest") == here.fetch("models:/cnn/1")
    assert models.recall("cnn", 1) is None
    models.remember("cnn", 1, '{"instances": 2}')
    assert models.recall("cnn", 1) == here.recall("cnn", 1) == '{"instances": 2}'
    with pytest.raises(NotFoundError, match="There is no model 'dog'"):
        models.fetch("models:/dog/1")


def test_it_looks_in_a_team_s_models_alone_where_that_is_set(
    models: RegistrySubprocess, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}")
    open_knowledge(home).register_model("cnn", tmp_path / "MLmodel", app="shop", team="data")
    assert models.find("models:/cnn/1", "data") == models.find("models:/cnn/1")
    for find in (partial(models.find, team="other"), RegistrySubprocess(home, None, team="other").fetch):
        with pytest.raises(NotFoundError, match="There is no model 'cnn' of the team 'other'"):
            find("models:/cnn/1")


def test_it_comes_last_for_a_while_only(models: RegistrySubprocess, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(registry_subprocess, "yield_cpu", lambda _pid, behind: asked.append(behind))
    monkeypatch.setattr(registry_subprocess, "LOW_PRIORITY_S", 0.01)  # importing MLflow takes longer
    with pytest.raises(NotFoundError):
        models.recall("cnn", 1)
    assert asked == [True, False]


def test_a_process_that_ends_is_reported_and_another_one_is_begun(
    models: RegistrySubprocess, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[int] = []
    monkeypatch.setattr(registry_subprocess, "yield_cpu", lambda pid, _behind: processes.append(pid))
    with pytest.raises(NotFoundError):
        models.recall("cnn", 1)
    process = psutil.Process(processes[0])
    process.kill()
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, "it has ended")
    with pytest.raises(InternalError, match="exited with code -9"):
        models.recall("cnn", 1)
    with pytest.raises(NotFoundError):
        models.recall("cnn", 1)
