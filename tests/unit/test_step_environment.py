"""The quick answer to "is this environment prepared?", and the variables it consists of."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import scanflow.knowledge.step_environment as prepared
from scanflow.errors import InvalidError
from scanflow.knowledge.step_environment import (
    TrackerPlace,
    add_run_tags,
    build_step_environment,
    find_prepared_environment,
    locate_tracker,
    remember,
)


@pytest.fixture(autouse=True)
def _some_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that one version of MLflow is installed, whatever is."""
    monkeypatch.setattr(prepared, "version", lambda _name: "3.99.0")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose database has the few tables that are looked at, and the environment 'shop' of 'data' in them."""
    path = tmp_path / "hömé #1" / "tracker" / "mlflow.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            """
            CREATE TABLE alembic_version (version_num TEXT);
            CREATE TABLE experiments (experiment_id INTEGER, name TEXT, lifecycle_stage TEXT);
            CREATE TABLE experiment_tags (experiment_id INTEGER, key TEXT, value TEXT);
            INSERT INTO alembic_version VALUES ('abc');
            INSERT INTO experiments VALUES (7, 'scanflow-shop-data', 'active');
            INSERT INTO experiment_tags VALUES (7, 'scanflow.app', 'shop'), (7, 'scanflow.team', 'data');
            """
        )
    return path.parents[1]


def _change(home: Path, statement: str) -> None:
    with closing(sqlite3.connect(home / "tracker" / "mlflow.db")) as database:
        database.execute(statement)
        database.commit()


def test_a_prepared_environment_is_known_to_the_mlflow_that_prepared_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = locate_tracker(home)
    assert find_prepared_environment(home, "shop", "data") is None
    assert find_prepared_environment(home / "nowhere", "shop", "data") is None
    remember(place, app="shop", team="data", experiment_id="7")
    environment = find_prepared_environment(home, "shop", "data")
    assert environment == build_step_environment(
        place.tracking_uri, app="shop", team="data", experiment_id="7", artifact_root=place.artifact_root
    )
    assert find_prepared_environment(home, "shop", "other") is None
    monkeypatch.setattr(prepared, "version", lambda _name: "4.0.0")
    assert find_prepared_environment(home, "shop", "data") is None


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE alembic_version SET version_num = 'def'",
        "UPDATE experiments SET name = 'another'",
        "UPDATE experiments SET lifecycle_stage = 'deleted'",
        "UPDATE experiment_tags SET value = 'another' WHERE key = 'scanflow.app'",
        "DELETE FROM experiments",
        "DROP TABLE experiment_tags",
        "ALTER TABLE experiments RENAME COLUMN name TO title",
    ],
)
def test_a_database_that_changed_is_not_trusted(home: Path, change: str) -> None:
    remember(locate_tracker(home), app="shop", team="data", experiment_id="7")
    _change(home, change)
    assert find_prepared_environment(home, "shop", "data") is None


def test_a_lost_or_damaged_database_or_note_is_not_trusted(home: Path) -> None:
    remember(locate_tracker(home), app="shop", team="data", experiment_id="7")
    (note,) = (home / "tracker" / "prepared").iterdir()
    text = note.read_text()
    for damaged in ("", "{", "[]", "null"):
        note.write_text(damaged)
        assert find_prepared_environment(home, "shop", "data") is None
    note.write_text(text)
    assert find_prepared_environment(home, "shop", "data") is not None
    database = home / "tracker" / "mlflow.db"
    database.write_bytes(b"not a database")
    assert find_prepared_environment(home, "shop", "data") is None
    database.unlink()
    assert find_prepared_environment(home, "shop", "data") is None
    assert not database.exists()


def test_a_servers_environment_is_known_without_a_request_to_it(tmp_path: Path) -> None:
    uri = "http://user:secret@127.0.0.1:9"
    remember(locate_tracker(tmp_path, uri), app="a-b", team="c", experiment_id="12")
    environment = find_prepared_environment(tmp_path, "a-b", "c", tracker_uri=uri)
    assert environment is not None
    assert environment["MLFLOW_EXPERIMENT_ID"] == "12"
    assert find_prepared_environment(tmp_path, "a", "b-c", tracker_uri=uri) is None
    assert find_prepared_environment(tmp_path, "a-b", "c", tracker_uri="http://127.0.0.1:10") is None
    assert not any("secret" in path.name + path.read_text() for path in tmp_path.rglob("*.json"))


def test_a_home_that_cannot_be_written_does_without_notes(tmp_path: Path) -> None:
    (tmp_path / "tracker").write_text("in the way")
    remember(locate_tracker(tmp_path, "http://127.0.0.1:9"), app="shop", team="data", experiment_id="1")
    assert find_prepared_environment(tmp_path, "shop", "data", tracker_uri="http://127.0.0.1:9") is None


def test_steps_get_an_absolute_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate_tracker(Path("home"), "sqlite:///mine.db").tracking_uri == f"sqlite:///{tmp_path / 'mine.db'}"
    assert locate_tracker(Path("home")).tracking_uri == f"sqlite:///{tmp_path / 'home/tracker/mlflow.db'}"
    assert locate_tracker(Path("home")).artifact_root == tmp_path / "home/tracker/artifacts"
    assert locate_tracker(Path("home"), "https://mlflow.example/").tracking_uri == "https://mlflow.example"
    assert locate_tracker(Path("home"), "http://127.0.0.1:5000").artifact_root is None


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///mlruns", "databricks", "ftp://host", "http:host", "sqlite://", "sqlite:///:memory:"]
)
def test_a_tracker_or_home_that_cannot_be_used_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InvalidError, match=r"sqlite:///"):
        locate_tracker(tmp_path, uri)
    for character in "?%":
        with pytest.raises(InvalidError, match="cannot contain"):
            locate_tracker(tmp_path / f"a{character}b")


def test_tags_are_added_to_what_runs_will_carry() -> None:
    place = TrackerPlace(tracking_uri="http://127.0.0.1:9", artifact_root=None, notes=Path("notes"))
    base = build_step_environment(place.tracking_uri, app="shop", team="data", experiment_id="7")
    both = add_run_tags(base, {"scanflow.step": "train", "scanflow.run": "grüner-otter"})
    of_step = {"scanflow.step": "train", "scanflow.run": "grüner-otter"}
    assert json.loads(both["MLFLOW_RUN_CONTEXT"]) == {"scanflow.app": "shop", "scanflow.team": "data"} | of_step
    assert both == base | {"MLFLOW_RUN_CONTEXT": both["MLFLOW_RUN_CONTEXT"]}
    assert add_run_tags({}, {"scanflow.step": "train"}) == {}
