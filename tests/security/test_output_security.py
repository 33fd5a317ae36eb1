"""What a step leaves is data: it does not decide what is loaded, nor where from."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.pickles import read_home_key, read_pickle, write_pickle
from scanflow.backends.values import Outputs, write_result
from scanflow.errors import InvalidError, StepFailedError
from scanflow_client.client import Client

KEY = b"k" * 32


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


@pytest.fixture
def planted_folder(tmp_path: Path) -> Path:
    (tmp_path / "task" / ".outputs").mkdir(parents=True)
    return tmp_path / "task"


def plant(folder: Path, content: str | bytes, name: str = "result") -> Any:
    file = folder / ".outputs" / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return Outputs(folder, KEY)[name]


LOOK_LIKE_OURS = [
    {"$path": "/etc/passwd"},
    {"$path": 1},
    {"$pickle": ".0.pickle"},
    {"$pickle": "../../evil"},
    {"$value": {"$pickle": ".0.pickle"}},
    {"$value": 3},
    [{"deep": {"$path": "x"}}],
]


@pytest.mark.parametrize("value", LOOK_LIKE_OURS, ids=str)
def test_a_value_that_looks_like_a_mark_comes_back_as_it_was(planted_folder: Path, value: Any) -> None:
    write_result(value, planted_folder, KEY)
    assert Outputs(planted_folder, KEY)["result"] == value


@pytest.mark.parametrize("value", LOOK_LIKE_OURS, ids=str)
def test_an_output_like_a_mark_comes_back(planted_folder: Path, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(planted_folder))
    sf.output("said", value)
    assert Outputs(planted_folder, KEY)["said"] == value


@pytest.mark.processes
def test_values_that_look_like_markers_pass_through_a_run(home: Path, tmp_path: Path) -> None:
    client = Client()
    first = give.bind()
    client.run(sf.Workflow(name="w", nodes=[first, return_same.bind(first), return_in_process.bind(first)]))
    assert (
        client.output("give")
        == client.output("return-same")
        == client.output("return-in-process")
        == {"$path": "/etc/passwd"}
    )


def test_a_pickle_that_the_runner_did_not_write_is_not_loaded(planted_folder: Path, tmp_path: Path) -> None:
    (planted_folder / ".outputs" / ".0.pickle").write_bytes(b"\0" * 32 + pickle.dumps(Bomb(tmp_path / "went off")))
    with pytest.raises(InvalidError, match="was not signed by a run of this home"):
        plant(planted_folder, '{"$pickle": ".0.pickle"}')
    assert not (tmp_path / "went off").exists()


@pytest.mark.processes
def test_a_planted_pickle_fails_the_step_that_would_take_it(home: Path, tmp_path: Path) -> None:
    client = Client()
    mark = tmp_path / "went off"
    first = plant_bomb.bind(mark=str(mark))
    with pytest.raises(StepFailedError, match="not signed by a run of this home"):
        client.run(sf.Workflow(name="w", nodes=[first, return_same.bind(first["evil"])]))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../.0.pickle", "/tmp/.0.pickle", "x", ".0.pickle/", ".0.pickle\n"])
def test_a_name_of_a_pickle_leads_nowhere_else(planted_folder: Path, name: str) -> None:
    write_pickle(planted_folder / ".0.pickle", {1, 2}, KEY)
    assert plant(planted_folder, json.dumps({"$pickle": name})) == {"$pickle": name}


def test_a_link_to_a_signed_pickle_elsewhere_is_not_followed(planted_folder: Path, tmp_path: Path) -> None:
    write_pickle(tmp_path / "other", {1}, KEY)
    (planted_folder / ".outputs" / ".0.pickle").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidError, match="cannot be read"):
        plant(planted_folder, '{"$pickle": ".0.pickle"}')


def test_a_path_leads_out_of_the_folder_only_as_a_whole_path(planted_folder: Path) -> None:
    assert plant(planted_folder, '{"$path": "../../etc/passwd"}') == {"$path": "../../etc/passwd"}
    assert plant(planted_folder, '{"$path": "data/x"}') == planted_folder / "data" / "x"
    assert plant(planted_folder, '{"$path": "/data/x"}') == Path("/data/x")


def test_links_pipes_and_folders_are_no_outputs(planted_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    (planted_folder / ".outputs" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(planted_folder / ".outputs" / "pipe")
    (planted_folder / ".outputs" / "folder").mkdir()
    assert dict(Outputs(planted_folder, KEY)) == {}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".outputs").symlink_to(planted_folder / ".outputs")
    plant(planted_folder, "1")
    assert dict(Outputs(elsewhere, KEY)) == {}


def test_a_home_has_one_key_that_only_its_user_may_read(tmp_path: Path) -> None:
    assert read_home_key(tmp_path) == read_home_key(tmp_path)
    assert len(read_home_key(tmp_path)) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["pickle.key"]
    assert (tmp_path / "pickle.key").stat().st_mode & 0o777 == 0o600
    write_pickle(tmp_path / "x", {1}, read_home_key(tmp_path))
    assert read_pickle(tmp_path / "x", read_home_key(tmp_path)) == {1}
    with pytest.raises(InvalidError):
        read_pickle(tmp_path / "x", KEY)


@sf.step
def give() -> Any:
    return {"$path": "/etc/passwd"}


@sf.step
def return_same(value: Any) -> Any:
    return value


@sf.step(in_process=True)
def return_in_process(value: Any) -> Any:
    return value


@sf.step
def plant_bomb(mark: str) -> None:
    folder = Path(os.environ["SCANFLOW_OUTPUT_DIR"]) / ".outputs"
    folder.mkdir()
    (folder / ".0.pickle").write_bytes(b"\0" * 32 + pickle.dumps(Bomb(Path(mark))))
    (folder / "evil").write_text('{"$pickle": ".0.pickle"}')
